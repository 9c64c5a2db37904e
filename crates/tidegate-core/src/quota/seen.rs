//! The state of a limit, from what one decision saw of it.
//!
//! A refusal tells what was left, when the limit would be full again, and after what wait the cost would pass. For most
//! limits that determines the state, so whoever keeps a decision need not keep, or even read, the state beside it: a store
//! does no work for that. The waits are rounded up to a nanosecond; of the states that agree with all three numbers, the one
//! with the most spent is taken. It differs from the true one by less than a nanosecond's worth, and it decides the same
//! request with the same answer, which is tried before it is returned.
//!
//! | limit | known |
//! |---|---|
//! | GCRA, leaky bucket, token bucket of one bandwidth that refills evenly or by intervals, fixed window | always, unless reservations wait or were given back out of order |
//! | token bucket of several bandwidths or with an aligned refill; sliding window, counter and log; queue; warm-up; profiles of other libraries; guards | never: their states hold more than a decision shows |

use core::time::Duration;

use super::{Quota, State};
use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Decision, Retry, Ruling, Standing, Transition};
use crate::rate::{FixedWindow, FixedWindowState, Refill, TokenBucket, TokenBucketState};
use crate::time::{Tick, nanos};

impl Quota {
    /// Returns a state that decides `ask` as `seen` says: the same ruling, and at `ask.now` the same standing. `None` if what
    /// was seen does not determine one, which is so for some algorithms always. `seen.standing` is that before the
    /// decision, as refusals and looks return it.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::decision::Ruling;
    /// use tidegate_core::{Algorithm, Ask, Cost, Decision, Quota, Tick, Transition};
    ///
    /// let (quota, now) = (Quota::per_second(3).burst(1).gcra()?, Tick::from_secs(9));
    /// let ask = Ask::allow(now, Cost::ONE);
    /// let Transition::Allowed { next: spent, .. } = quota.decide(&quota.fresh(now), ask) else { panic!("full") };
    /// let Transition::Denied { retry } = quota.decide(&spent, ask) else { panic!("spent") };
    /// let seen = Decision { ruling: Ruling::Denied { retry }, standing: quota.standing(&spent, now) };
    /// assert_eq!(quota.state_seen(ask, &seen), Some(spent));
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn state_seen(&self, ask: Ask, seen: &Decision) -> Option<State> {
        let state = match self {
            Self::Gcra(limit) => {
                let pace =
                    Even { scale: limit.pace.scale, unit: limit.pace.unit, at_once: limit.pace.at_once };
                State::Gcra(limit.owing(ask.now, pace.spent(ask, seen)?))
            }
            Self::LeakyBucket(limit) => {
                let pace =
                    Even { scale: limit.pace.scale, unit: limit.pace.unit, at_once: limit.pace.at_once };
                State::LeakyBucket(limit.owing(ask.now, pace.spent(ask, seen)?))
            }
            Self::TokenBucket(limit) => State::TokenBucket(bucket(limit, ask, seen)?),
            Self::FixedWindow(limit) => State::FixedWindow(window(limit, ask.now, &seen.standing)?),
            _ => return None,
        };
        let ruling = match self.decide(&state, ask) {
            Transition::Allowed { wait, .. } => Ruling::Allowed { wait },
            Transition::Denied { retry } => Ruling::Denied { retry },
        };
        let again = Decision { ruling, standing: self.standing(&state, ask.now) };
        (again == *seen).then_some(state)
    }
}

/// A limit that fills evenly: in a nanosecond by `scale` of which a unit is `unit`, up to `at_once` units.
struct Even {
    scale: u64,
    unit: u64,
    at_once: u64,
}

impl Even {
    /// Returns the most that may have been spent, in scaled time, by everything that was seen.
    fn spent(&self, ask: Ask, seen: &Decision) -> Option<u128> {
        let Standing { remaining, debt, reset_after, .. } = seen.standing;
        let (scale, unit) = (i128::from(self.scale), i128::from(self.unit));
        let of = |units: u64| i128::from(units).saturating_mul(unit);
        // Each number that was seen bounds it: above the first, at most the second.
        let part = |most: i128, part: i128| (most.saturating_sub(part), most);
        let resets = part(i128::from(nanos(reset_after)).saturating_mul(scale), scale);
        let stands = match debt {
            0 => part(of(self.at_once).saturating_sub(of(remaining)), unit),
            debt => part(of(self.at_once).saturating_add(of(debt)), unit),
        };
        // What may be spent for the cost to pass at once.
        let passes = of(self.at_once).saturating_sub(of(ask.cost.units()));
        let waits = match seen.ruling {
            Ruling::Allowed { wait: Duration::ZERO } => (i128::MIN, passes),
            Ruling::Allowed { wait } => part(passes.saturating_add(scale.saturating_mul(ns(wait))), scale),
            Ruling::Denied { retry: Retry::After(wait) } => {
                let wait = ns(wait).saturating_add(ns(ask.max_wait));
                part(passes.saturating_add(scale.saturating_mul(wait)), scale)
            }
            Ruling::Denied { .. } => (i128::MIN, i128::MAX),
        };
        let above = resets.0.max(stands.0).max(waits.0);
        let most = resets.1.min(stands.1).min(waits.1);
        u128::try_from(most).ok().filter(|_| above < most)
    }
}

fn ns(span: Duration) -> i128 {
    i128::from(nanos(span))
}

/// Returns the units spent, owed ones included.
fn units_spent(standing: &Standing) -> u64 {
    standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt)
}

fn bucket(limit: &TokenBucket, ask: Ask, seen: &Decision) -> Option<TokenBucketState> {
    let [bandwidth] = limit.bandwidths() else { return None };
    let (gain, weight) = bandwidth.pace();
    match bandwidth.refill {
        Refill::Continuous => {
            let pace = Even { scale: gain, unit: weight, at_once: bandwidth.capacity() };
            Some(TokenBucket::owing(ask.now, pace.spent(ask, seen)?, 0))
        }
        Refill::Interval => {
            let spent = units_spent(&seen.standing);
            let periods = u128::from(spent.div_ceil(gain)) * u128::from(bandwidth.rate().period_nanos());
            let into = periods.checked_sub(u128::from(nanos(seen.standing.reset_after)))?;
            let into = u64::try_from(into).ok().filter(|into| *into < bandwidth.rate().period_nanos())?;
            Some(TokenBucket::owing(ask.now, u128::from(spent), into))
        }
        Refill::Aligned => None,
    }
}

fn window(limit: &FixedWindow, now: Tick, standing: &Standing) -> Option<FixedWindowState> {
    let Some(used) = Cost::new(units_spent(standing)) else { return Some(limit.fresh(now)) };
    let opened = match limit.calendar_parts() {
        // The clock tells the window.
        Some(_) => now,
        None => {
            let end = now.as_nanos().checked_add(nanos(standing.reset_after))?;
            Tick::from_nanos(end.checked_sub(nanos(limit.period()))?)
        }
    };
    match limit.decide(&limit.fresh(opened), Ask::allow(opened, used)) {
        Transition::Allowed { next, .. } => Some(next),
        Transition::Denied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rate::CalendarUnit;

    fn quotas(count: u64, period_ms: u64, burst: u64) -> Vec<(&'static str, Quota)> {
        let of = || Quota::per(count, Duration::from_millis(period_ms)).burst(burst);
        let plain = || Quota::per(count, Duration::from_millis(period_ms));
        vec![
            ("gcra", of().gcra().unwrap()),
            ("leaky bucket", of().leaky_bucket().unwrap()),
            ("token bucket", of().token_bucket().unwrap()),
            ("interval bucket", of().interval_bucket().unwrap()),
            ("rolling window", plain().fixed_window().unwrap()),
            ("calendar window", Quota::per_day(count).calendar_window(CalendarUnit::Minute, "UTC").unwrap()),
        ]
    }

    /// Returns what a decision shows: the ruling, and the standing before it.
    fn seen(quota: &Quota, state: &State, ask: Ask) -> (Decision, Option<State>) {
        let standing = quota.standing(state, ask.now);
        match quota.decide(state, ask) {
            Transition::Allowed { wait, next, .. } => {
                (Decision { ruling: Ruling::Allowed { wait }, standing }, Some(next))
            }
            Transition::Denied { retry } => (Decision { ruling: Ruling::Denied { retry }, standing }, None),
        }
    }

    proptest! {
        /// Whatever the traffic, a state is found that decides each request as the true one did.
        #[test]
        fn what_a_decision_saw_gives_its_state(
            count in 1..1_000_u64, period_ms in 1..100_000_u64, burst in 1..500_u64,
            traffic in proptest::collection::vec((0..3_000_000_000_u64, 1..300_u64), 1..60),
        ) {
            for (name, quota) in quotas(count, period_ms, burst) {
                let mut now = 1_800_000_000_000_000_000;
                let mut state = quota.fresh(Tick::from_nanos(now));
                for (gap, cost) in &traffic {
                    now += gap;
                    let ask = Ask::allow(Tick::from_nanos(now), Cost::new(*cost).unwrap());
                    let (decided, next) = seen(&quota, &state, ask);
                    let found = quota.state_seen(ask, &decided);
                    prop_assert!(found.is_some(), "{name}: {decided:?} of {state:?}");
                    let found = found.unwrap();
                    prop_assert_eq!(&seen(&quota, &found, ask).0, &decided, "{}", name);
                    state = next.unwrap_or(state);
                }
            }
        }
    }

    #[test]
    fn what_is_not_determined_is_not_guessed() {
        let now = Tick::from_secs(1_800_000_000);
        let ask = Ask::allow(now, Cost::ONE);
        let per_second = || Quota::per_second(10).burst(20);
        let unknown = [
            per_second().aligned_bucket().unwrap(),
            Quota::per_second(10).sliding_window(5).unwrap(),
            Quota::per_second(10).sliding_counter().unwrap(),
            Quota::per_second(10).sliding_log().unwrap(),
            Quota::concurrency(3, Duration::from_secs(60)).unwrap(),
        ];
        for quota in unknown {
            let (decided, _) = seen(&quota, &quota.fresh(now), ask);
            assert_eq!(quota.state_seen(ask, &decided), None, "{quota:?}");
        }
        let quota = per_second().gcra().unwrap();
        let (mut decided, _) = seen(&quota, &quota.fresh(now), ask);
        decided.standing.remaining = 3;
        assert_eq!(quota.state_seen(ask, &decided), None, "a standing that no state has");
    }
}
