//! What would have let a refused request pass: another size of the limit, cost or priority, or a longest delay; and how
//! much of a level of priority a limit admits.

use std::time::Duration;

use tidegate_core::concurrency::Concurrency;
use tidegate_core::rate::{LeakyQueue, UberPacer};
use tidegate_core::{Criticality, Priority, Quota, Rate, Retry, Standing};

use crate::gate::LimitDecision;
use crate::policy::Limit;
use tidegate_limits::duration_text::millis_up;
use tidegate_limits::priority::KeepFor;

/// The smallest changes with which a request would have passed a limit that refused it, each on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize))]
pub struct AllowedWith {
    /// The smallest sufficient burst, count per window or number of places; absent if no limit can have that much, and
    /// for limits whose size is not a number in the file: queues, pacers and adaptive limits.
    pub burst_at_least: Option<u64>,
    /// The largest cost that would have passed; absent if nothing is left.
    pub cost_at_most: Option<u64>,
    /// The lowest level of priority that would have passed; absent if none would.
    pub priority_at_least: Option<&'static str>,
    /// The smallest `max_wait` of the limit that would have let the request pass, after a delay, in milliseconds rounded
    /// up. Absent if none would (the cost is above the burst, the queue is full, the caller waits for less time), and if
    /// the limit takes no `max_wait`.
    pub max_wait_at_least_ms: Option<u64>,
}

/// Returns what would have let the request pass. `left` is how long the caller still waits, if that is known.
pub(super) fn allowed_with(
    limit: &LimitDecision,
    quota: Option<&Quota>,
    of: Option<&Limit>,
    priority: Priority,
    left: Option<Duration>,
) -> AllowedWith {
    let keep_for = of.map(|of| of.keep_for).unwrap_or_default();
    let standing = limit.decision.standing;
    let spent = standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt);
    let needed = keep_for.least_capacity(priority, spent.saturating_add(limit.cost.units()));
    // No key of the file enlarges a limit that a law moves. That of a queue or a pacer is bounded by its longest delay.
    let needed = needed.filter(|_| quota.is_none_or(|quota| word(quota).is_some()));
    let most = if quota.is_some_and(Quota::is_guard) { Concurrency::MAX_PLACES } else { Rate::MAX_COUNT };
    let passes = |level: &Criticality| {
        let kept_back = quota
            .map_or(0, |quota| keep_for.kept_in_places((*level).into(), quota, standing.limit, limit.cost));
        !limit.delays && limit.cost.units().saturating_add(kept_back) <= standing.remaining
    };
    let level = Criticality::ALL.into_iter().filter(|level| Priority::of(*level) > priority).find(passes);
    let max_wait = quota.zip(of).and_then(|(quota, of)| {
        // The caller's time may have shortened the delay that was accepted.
        let accepted = left.map_or(of.max_wait, |left| left.min(of.max_wait));
        let asked = limit.cost.units().saturating_add(limit.kept_back);
        let needed = max_wait_at_least(quota, asked, standing, limit.decision.retry(), accepted)?;
        left.is_none_or(|left| needed <= left).then_some(needed)
    });
    AllowedWith {
        burst_at_least: needed.filter(|needed| *needed <= most),
        cost_at_most: Some(limit.remaining()).filter(|remaining| *remaining > 0),
        priority_at_least: level.map(Criticality::as_str),
        max_wait_at_least_ms: max_wait.map(millis_up),
    }
}

/// Returns the policy file's word for the size of a limit, and the text after the number; `None` if no key of the file
/// sets the size.
pub(super) fn word(quota: &Quota) -> Option<(&'static str, &'static str)> {
    match quota {
        Quota::Concurrency(_) => Some(("max", "")),
        Quota::FixedWindow(_) | Quota::SlidingWindow(_) | Quota::SlidingCounter(_) | Quota::SlidingLog(_) => {
            Some(("rate", " per window"))
        }
        Quota::LeakyQueue(_)
        | Quota::UberPacer(_)
        | Quota::GuavaBursty(_)
        | Quota::GuavaWarming(_)
        | Quota::Adaptive(_) => None,
        _ => Some(("burst", "")),
    }
}

/// Returns how many of the 128 cohorts of the request's level a limit admits now, if it refused the request only because
/// it keeps a part back for higher priority; `None` otherwise, and for a limit that may delay requests.
pub(super) fn cohorts_admitted(
    limit: &LimitDecision,
    quota: &Quota,
    keep_for: KeepFor,
    level: Criticality,
) -> Option<u8> {
    let Standing { limit: whole, remaining, .. } = limit.decision.standing;
    let sheds = limit.kept_back > 0 && !limit.delays && limit.cost.units() <= remaining;
    sheds.then(|| keep_for.cohorts_admitted(level, quota, whole, remaining, limit.cost))
}

/// Returns the smallest longest delay with which a refused request for `asked` units would have passed, rounded up to the
/// microsecond; `None` if none would, if it is not known, and for a limit that takes no `max_wait` in a file. `accepted` is
/// the delay that the refusal went by.
fn max_wait_at_least(
    quota: &Quota,
    asked: u64,
    standing: Standing,
    retry: Retry,
    accepted: Duration,
) -> Option<Duration> {
    let needed = match (quota, retry) {
        (Quota::LeakyQueue(queue), _) => in_queue(queue, asked, standing, retry, accepted),
        (
            Quota::Gcra(_)
            | Quota::TokenBucket(_)
            | Quota::WarmUp(_)
            | Quota::XTime(_)
            | Quota::GuavaBursty(_)
            | Quota::GuavaWarming(_),
            // The time at which the request may act does not move, so waiting first and being delayed add up.
            Retry::After(after),
        ) => accepted.checked_add(after),
        (Quota::UberPacer(pacer), _) => paced(pacer, asked, standing),
        _ => None,
    }?;
    // Profiles of Guava count whole microseconds.
    let nanos = needed.as_nanos().div_ceil(1000).saturating_mul(1000);
    Some(tidegate_core::time::span(nanos))
}

/// Returns how long `asked` takes wait for the last of them; `None` if that is beyond all time.
///
/// Each take is due an interval after the one before, so many at once wait even at a pacer that has rested. It may catch
/// up on its slack; a pacer that was never asked has nothing to catch up on. It is then ready for one take, while one
/// that has rested is ready for all of its limit.
fn paced(pacer: &UberPacer, asked: u64, standing: Standing) -> Option<Duration> {
    let interval = pacer.interval();
    let longest = interval.checked_mul(pacer.slack())?;
    let more = interval.as_nanos().checked_mul(u128::from(asked.checked_sub(1)?))?;
    let more = Duration::from_nanos(u64::try_from(more).ok()?);
    let (ahead, behind) = match standing.reset_after {
        Duration::ZERO if standing.remaining < standing.limit => (Duration::ZERO, Duration::ZERO),
        rest => (rest, longest),
    };
    Some((ahead.checked_add(more)?).saturating_sub(behind))
}

/// Returns the delay of a request in a queue, if there is a place for it.
fn in_queue(
    queue: &LeakyQueue,
    asked: u64,
    standing: Standing,
    retry: Retry,
    accepted: Duration,
) -> Option<Duration> {
    let time_of = |units: u64| {
        let (period, count) = (queue.rate().period_nanos(), queue.rate().count());
        let nanos = (u128::from(units) * u128::from(period)).div_ceil(u128::from(count));
        tidegate_core::time::span(nanos)
    };
    let delay = match retry {
        Retry::After(after) => accepted.checked_add(after)?,
        // Refused by the delay of a rested queue, which is `reset_after` away from being one.
        _ => {
            let delayed = asked.checked_sub(queue.slack().saturating_add(1))?;
            time_of(delayed).checked_add(standing.reset_after)?
        }
    };
    // The last place is this long before its turn.
    (delay <= time_of(queue.places())).then_some(delay)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::rate::{ColdFactor, GuavaBursty, GuavaWarming, UberPacer, XTime};
    use tidegate_core::{Algorithm as _, Ask, Cost, State, Tick, Transition};

    use super::*;

    /// One limit of each kind that takes a `max_wait`, with some that never find a longer delay enough.
    fn quotas() -> Vec<Quota> {
        let rate = || Quota::per_second(7);
        vec![
            rate().burst(5).gcra().unwrap(),
            rate().burst(5).token_bucket().unwrap(),
            rate().burst(5).interval_bucket().unwrap(),
            rate().burst(5).aligned_bucket().unwrap(),
            rate().leaky_queue(4).unwrap(),
            rate().burst(3).leaky_queue(2).unwrap(),
            rate().warm_up(Duration::from_secs(2), ColdFactor::THREE).unwrap(),
            XTime::new(7.0, 5).unwrap().into(),
            UberPacer::new(Rate::new(7, Duration::from_secs(1)).unwrap(), 3).unwrap().into(),
            GuavaBursty::new(7.0, 1.0).unwrap().into(),
            GuavaWarming::new(7.0, Duration::from_secs(2), 3.0).unwrap().into(),
        ]
    }

    fn allowed(quota: &Quota, state: &State, ask: Ask) -> bool {
        matches!(quota.decide(state, ask), Transition::Allowed { .. })
    }

    proptest! {
        /// The delay is tried on the limit itself: it is enough, a millisecond less is not, and where none is named the longest
        /// one is not enough either.
        #[test]
        fn the_delay_that_is_named_passes_and_less_does_not(
            place in 0..11_usize,
            before in prop::collection::vec((0..300_u64, 1..4_u64), 0..12),
            units in 1..8_u64,
            accepted_ms in prop_oneof![Just(0), 0..900_u64],
        ) {
            let quota = &quotas()[place];
            let start = 1_000_000_000_000;
            let mut state = quota.fresh(Tick::from_nanos(start));
            let mut now = start;
            for (ms, units) in before {
                now += ms * 1_000_003;
                let ask = Ask::within(Tick::from_nanos(now), Cost::new(units).unwrap(), Duration::from_secs(1));
                if let Transition::Allowed { next, .. } = quota.decide(&state, ask) {
                    state = next;
                }
            }
            let (at, cost) = (Tick::from_nanos(now), Cost::new(units).unwrap());
            let accepted = Duration::from_millis(accepted_ms);
            if let Transition::Denied { retry } = quota.decide(&state, Ask::within(at, cost, accepted)) {
                let told = max_wait_at_least(quota, units, quota.standing(&state, at), retry, accepted);
                match told.map(millis_up) {
                    Some(ms) => {
                        prop_assert!(allowed(quota, &state, Ask::within(at, cost, Duration::from_millis(ms))), "{quota:?} {ms}");
                        let less = Duration::from_millis(ms - 1);
                        prop_assert!(!allowed(quota, &state, Ask::within(at, cost, less)), "{quota:?} less than {ms}");
                    }
                    None => {
                        let day = Duration::from_secs(86_400);
                        prop_assert!(!allowed(quota, &state, Ask::within(at, cost, day)), "{quota:?} {retry:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_limit_that_delays_nobody_names_no_delay() {
        let at = Tick::from_secs(1);
        for quota in [
            Quota::per_second(1).fixed_window().unwrap(),
            Quota::per_second(1).leaky_bucket().unwrap(),
            Quota::concurrency(1, Duration::from_secs(1)).unwrap(),
        ] {
            let retry = Retry::After(Duration::from_secs(1));
            let standing = quota.standing(&quota.fresh(at), at);
            assert_eq!(max_wait_at_least(&quota, 1, standing, retry, Duration::ZERO), None);
        }
    }
}
