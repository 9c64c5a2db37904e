//! The most units that a limit grants over a span of time: the number with which to compare a key's peak. The rate as
//! written is not that number, since a burst or the edge of a window comes on top.

use core::time::Duration;

use super::Quota;
use crate::rate::{Bandwidth, Refill};
use crate::time::{Rate, nanos};

impl Quota {
    /// Returns the most units of one key that act in any span of this length, the end of the span excluded. Units act
    /// when their wait is over: if waits up to `max_wait` are accepted, the units asked for in a span act in a span
    /// that is longer by `max_wait`.
    ///
    /// A caller that asks for more within such a span was refused or delayed at least once. A caller can reach this
    /// number, or one unit less; for the sliding counter only, it is a bound that no caller reaches. For a span of
    /// zero it is the number granted at once. Calendar windows count at their usual length, so a day that is an hour
    /// short may grant more; so may the one end of an [aligned refill](crate::rate::Refill::Aligned) that comes early
    /// because the wall clock was set. `None` for the warm-up, the profiles of other libraries, and guards. Costs a
    /// few divisions.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::Quota;
    ///
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(Quota::per_minute(60).burst(20).gcra()?.granted_within(minute), Some(80));
    /// assert_eq!(Quota::per_minute(60).fixed_window()?.granted_within(minute), Some(120));
    /// assert_eq!(Quota::per_minute(60).sliding_log()?.granted_within(minute), Some(60));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn granted_within(&self, span: Duration) -> Option<u64> {
        let granted = match self {
            Self::Gcra(limit) => flowing(limit.burst(), limit.rate(), span),
            Self::LeakyBucket(limit) => flowing(limit.capacity(), limit.rate(), span),
            // Places are for units that wait; the slack, one more unit, and the rate leave.
            Self::LeakyQueue(limit) => flowing(limit.slack() + 1, limit.rate(), span),
            Self::TokenBucket(limit) => {
                limit.bandwidths().iter().map(|bandwidth| refilled(bandwidth, span)).min()?
            }
            Self::FixedWindow(limit) => in_windows(limit.limit(), limit.period(), span),
            Self::SlidingCounter(limit) => in_windows(limit.rate().count(), limit.rate().period(), span),
            Self::SlidingWindow(limit) => in_any_window(limit.rate(), span),
            Self::SlidingLog(limit) => in_any_window(limit.rate(), span),
            Self::WarmUp(_) | Self::XTime(_) | Self::UberPacer(_) | Self::GuavaBursty(_) => return None,
            Self::GuavaWarming(_) | Self::Concurrency(_) | Self::Breaker(_) | Self::Adaptive(_) => {
                return None;
            }
        };
        Some(u64::try_from(granted).unwrap_or(u64::MAX))
    }
}

fn flowing(burst: u64, rate: Rate, span: Duration) -> u128 {
    let (count, period) = rate.reduced();
    let back = u128::from(count) * u128::from(nanos(span)) / u128::from(period);
    u128::from(burst) + back
}

fn refilled(bandwidth: &Bandwidth, span: Duration) -> u128 {
    match bandwidth.refill {
        Refill::Continuous => flowing(bandwidth.capacity(), bandwidth.rate(), span),
        // Aligned ends lie a period apart as well, and one may come right after the span begins.
        Refill::Interval | Refill::Aligned => {
            let rate = bandwidth.rate();
            // What a refill brings beyond the capacity is lost.
            let refill = u128::from(rate.count().min(bandwidth.capacity()));
            u128::from(bandwidth.capacity()) + refill * begun(rate.period(), span)
        }
    }
}

/// Returns one limit for the window in which the span begins, and one for each window that begins later within it.
fn in_windows(limit: u64, window: Duration, span: Duration) -> u128 {
    u128::from(limit) * (1 + begun(window, span))
}

/// Returns the most windows that begin within a span, after its first nanosecond.
fn begun(window: Duration, span: Duration) -> u128 {
    u128::from(nanos(span).saturating_sub(1)).div_ceil(u128::from(nanos(window).max(1)))
}

/// Returns one limit for each period into which the span is divided, the last of them shorter.
fn in_any_window(rate: Rate, span: Duration) -> u128 {
    u128::from(rate.count())
        * u128::from(nanos(span).max(1)).div_ceil(u128::from(nanos(rate.period()).max(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rate::TokenBucket;
    use crate::time::Tick;
    use crate::{Algorithm, Ask, Cost, QuotaError, Transition};

    /// Takes one unit first and then all that remain, at each of these ticks; returns the tick and the units of each charge.
    fn greedy(quota: &Quota, at: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
        let mut state = quota.fresh(Tick::from_secs(1_000));
        let mut taken = Vec::new();
        for at in at {
            let now = Tick::from_nanos(1_000_000_000_000 + at);
            let all = quota.standing(&state, now).remaining;
            let Some(cost) = Cost::new(if taken.is_empty() { 1 } else { all }) else { continue };
            if let Transition::Allowed { next, wait, .. } = quota.decide(&state, Ask::allow(now, cost)) {
                assert_eq!(wait, Duration::ZERO);
                state = next;
                taken.push((at, cost.units()));
            }
        }
        taken
    }

    /// Returns the most units taken in any span of this length.
    fn most(taken: &[(u64, u64)], span: u64) -> u64 {
        let from = |(begin, _): &(u64, u64)| {
            let within = taken.iter().filter(|(at, _)| at >= begin && *at < begin + span.max(1));
            within.map(|(_, units)| units).sum()
        };
        taken.iter().map(from).max().unwrap_or(0)
    }

    fn quotas(count: u64, burst: u64) -> Result<Vec<Quota>, QuotaError> {
        let rate = || Quota::per(count, Duration::from_nanos(1_000)).burst(burst);
        let window = || Quota::per(count, Duration::from_nanos(1_000));
        Ok(vec![
            rate().gcra()?,
            rate().token_bucket()?,
            rate().leaky_bucket()?,
            rate().interval_bucket()?,
            rate().aligned_bucket()?,
            window().fixed_window()?,
            window().sliding_counter()?,
            window().sliding_window(10)?,
            window().sliding_log()?,
        ])
    }

    proptest! {
        #[test]
        fn no_span_has_more(
            count in 1u64..40,
            burst in 1u64..40,
            span in 1u64..5_000,
            steps in prop::collection::vec(1u64..900, 1..60),
        ) {
            for quota in quotas(count, burst).unwrap() {
                let at = steps.iter().scan(0, |at, step| { *at += step; Some(*at) });
                let most = most(&greedy(&quota, at), span);
                let granted = quota.granted_within(Duration::from_nanos(span)).unwrap();
                prop_assert!(most <= granted, "{quota:?}: {most} of {granted}");
            }
        }
    }

    #[test]
    fn whoever_takes_all_gets_as_much() {
        for quota in quotas(30, 20).unwrap() {
            // One unit opens a window; shortly before its end all remaining units are taken, tick by tick.
            let at = std::iter::once(0).chain(990..2_100);
            let most = most(&greedy(&quota, at), 1_000);
            let granted = quota.granted_within(Duration::from_nanos(1_000)).unwrap();
            let reached = match quota {
                Quota::SlidingCounter(_) => most > granted / 2,
                // The unit that opened a window is missing at its end; the last one returns when the span is over.
                _ => most + 1 >= granted,
            };
            assert!(reached, "{quota:?}: {most} of {granted}");
        }
    }

    /// A window used to be said to grant twice its limit in a span of zero.
    #[test]
    fn a_span_of_zero_has_what_is_granted_at_once() {
        let rate = Rate::new(10, Duration::from_secs(60)).unwrap();
        let at_once = [Refill::Interval, Refill::Aligned]
            .map(|refill| TokenBucket::new(Bandwidth::new(rate, 30).unwrap().refill(refill)).into());
        for quota in quotas(30, 20).unwrap().into_iter().chain(at_once) {
            for span in [0, 1] {
                assert_eq!(
                    quota.granted_within(Duration::from_nanos(span)),
                    Some(quota.capacity()),
                    "{quota:?}"
                );
            }
        }
    }

    #[test]
    fn the_least_of_several_bandwidths_and_no_guess_for_peers() {
        let bandwidth = |count, secs, capacity| {
            Bandwidth::new(Rate::new(count, Duration::from_secs(secs)).unwrap(), capacity).unwrap()
        };
        let both = TokenBucket::several([bandwidth(10, 1, 10), bandwidth(100, 60, 100)]).unwrap();
        let within = |quota: &Quota, secs| quota.granted_within(Duration::from_secs(secs));
        assert_eq!((within(&both.clone().into(), 1), within(&both.into(), 60)), (Some(20), Some(200)));
        let interval = TokenBucket::new(bandwidth(10, 60, 30).refill(Refill::Interval));
        assert_eq!(within(&interval.into(), 60), Some(40));
        let aligned = TokenBucket::new(bandwidth(10, 60, 30).refill(Refill::Aligned));
        assert_eq!(within(&aligned.into(), 61), Some(50), "one end at its begin, and one 60 s later");
        assert_eq!(within(&Quota::concurrency(5, Duration::from_secs(1)).unwrap(), 1), None);
        let most =
            Quota::per(Rate::MAX_COUNT, Duration::from_nanos(1)).burst(Rate::MAX_COUNT).gcra().unwrap();
        assert_eq!(most.granted_within(Duration::MAX), Some(u64::MAX));
    }
}
