//! Breakers that shed: instead of opening, they refuse the share of calls that goes beyond what a threshold allows:
//! that of the throttle [`Sre`](crate::throttle::Sre) with `1/(1 - f)` as its K for a threshold of `f`. Calls that
//! were slow count as those that failed. Refused calls do not count, so a refusal has nothing to store. The calls
//! that still enter show whether the service recovers, so there are no probes.
//!
//! # Source
//! "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21: a threshold of a half is its K
//! of 2. Envoy's admission control filter leaves refused requests out of the count, as is done here, and bounds the
//! refused share.

use super::machine::{Cause, Change};
use super::outcomes::Totals;
use super::parameters::{CircuitBreaker, scramble};
use super::rules::{BreakerThresholds, Figure, WHOLE};
use super::state::{Condition, Phase, StateFields};
use crate::throttle::excess;
use crate::time::Tick;

impl BreakerThresholds {
    /// Returns the share of calls, in millionths, that a breaker that sheds refuses: at most `most`.
    pub(super) fn excess(&self, totals: Totals, most: u32) -> u32 {
        if totals.calls < self.min_calls {
            return 0;
        }
        let of = |bad: u32, allowed: Option<u32>| Self::excess_of(totals, bad, allowed?);
        let failed = of(totals.failures, self.failure_ratio);
        let slow = of(totals.slow, self.slow_ratio);
        failed.max(slow).unwrap_or(0).min(most)
    }

    /// Returns the share of calls, in millionths, that goes beyond what a threshold allows if `bad` of the calls
    /// count against it; `None` for a threshold of all calls.
    pub(super) fn excess_of(totals: Totals, bad: u32, allowed: u32) -> Option<u32> {
        let required = WHOLE.checked_sub(allowed).filter(|share| *share > 0)?;
        let k = f64::from(WHOLE) / f64::from(required);
        let (calls, accepts) = (f64::from(totals.calls), f64::from(totals.calls.saturating_sub(bad)));
        // Less than a million. Rounded down, so that rounding errors of a figure at its threshold refuse nothing.
        Some((excess(calls, accepts, k) * f64::from(WHOLE)) as u32)
    }
}

impl CircuitBreaker {
    /// Returns the share of calls, in millionths, that a closed breaker refuses at `at`: 0 unless it sheds.
    pub(super) fn shed_share(&self, inner: &StateFields, at: Tick) -> u32 {
        let (Some(most), None) = (self.parameters.shed_at_most, &inner.forced) else { return 0 };
        let Phase::Closed { outcomes, .. } = &inner.phase else { return 0 };
        self.parameters.rules.excess(outcomes.ahead().totals(at), most)
    }

    /// Says whether a call at `at` is one of the share that is refused. The draw is computed from the seed, the tick
    /// of the call, and the key's first use and its last. Calls at the same tick share one draw.
    #[cold]
    pub(super) fn sheds(&self, inner: &StateFields, at: Tick) -> bool {
        let share = self.shed_share(inner, at);
        if share == 0 {
            return false;
        }
        let of_key = scramble(inner.since.as_nanos() ^ scramble(inner.last.as_nanos()));
        let draw = scramble(self.parameters.open.seed ^ at.as_nanos() ^ of_key) >> 32;
        // At most a million.
        ((draw * u64::from(WHOLE)) >> 32) < u64::from(share)
    }

    pub(super) fn closed_or_shedding(&self, inner: &StateFields, at: Tick) -> Condition {
        let Phase::Closed { outcomes, .. } = &inner.phase else { return Condition::Closed };
        match (self.shed_share(inner, at), self.parameters.rules.ratio_of(outcomes.ahead().totals(at))) {
            (share @ 1.., Some(by)) => Condition::Shedding { share, by },
            _ => Condition::Closed,
        }
    }

    /// Reports when a breaker that may shed begins to, and when it ends. What time has changed by `at` was applied
    /// before.
    #[cold]
    pub(super) fn note_shedding(&self, inner: &mut StateFields, at: Tick, tell: &mut dyn FnMut(Change)) {
        if inner.forced.is_some() {
            return;
        }
        let is = self.closed_or_shedding(inner, at);
        let Phase::Closed { outcomes, shedding, .. } = &mut inner.phase else { return };
        match is {
            Condition::Shedding { by, .. } if !*shedding => {
                *shedding = true;
                tell(Change { at, from: Condition::Closed, to: is, cause: Cause::Tripped(by) });
            }
            Condition::Closed if *shedding => {
                *shedding = false;
                let totals = outcomes.ahead().totals(at);
                let was = Condition::Shedding { share: 0, by: Figure::FailureRatio(totals) };
                tell(Change { at, from: was, to: is, cause: Cause::Recovered(totals) });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::breaker::CircuitBreakerState;
    use crate::breaker::{BreakerBuilder, Change, Figure, Force, Forced, Window};
    use crate::bytes::{Bytes, DecodeError, Reader, Writer};
    use crate::decision::{Ask, Cost, Receipt, Retry, Transition};
    use crate::guard::{Guard, Outcome};

    const SECOND: u64 = 1_000_000_000;

    fn breaker(builder: BreakerBuilder) -> CircuitBreaker {
        builder.build().expect("in range")
    }

    fn ask(nanos: u64) -> Ask {
        Ask::allow(Tick::from_nanos(nanos), Cost::ONE)
    }

    /// Makes `calls` calls a millisecond apart, `bad` of which fail, however many are refused.
    fn with_calls(breaker: &CircuitBreaker, calls: u32, bad: u32) -> (CircuitBreakerState, u64) {
        let mut state = breaker.fresh(Tick::EPOCH);
        let (mut now, mut ended) = (0, 0);
        while ended < calls {
            now += 1_000_000;
            if let Transition::Allowed { next, receipt, .. } = breaker.enter(&state, ask(now)) {
                let outcome = if ended < bad { Outcome::Failure } else { Outcome::Success };
                state = breaker.leave(&next, Tick::from_nanos(now), &receipt, outcome);
                ended += 1;
            }
        }
        (state, now)
    }

    /// Returns the share of 20,000 calls at different ticks that may not enter.
    fn refused(breaker: &CircuitBreaker, state: &CircuitBreakerState, now: u64) -> f64 {
        let is_refused = |call: &u64| {
            let transition = breaker.enter(state, ask(now + call * 1_009));
            matches!(transition, Transition::Denied { retry: Retry::Unknown })
        };
        (1..=20_000).filter(is_refused).count() as f64 / 20_000.0
    }

    fn written_and_read<T: Bytes>(value: &T) -> Result<T, DecodeError> {
        let mut out = Writer::new(0);
        value.write(&mut out);
        let bytes = out.finish();
        let (_, mut from) = Reader::open(&bytes)?;
        let read = T::read(&mut from)?;
        from.close().map(|()| read)
    }

    #[test]
    fn the_share_is_the_published_one() {
        // (calls - K * accepts) / (calls + 1), K of 2: (100 - 2 * 25) / 101.
        let half = breaker(CircuitBreaker::sre());
        let (state, now) = with_calls(&half, 100, 75);
        let expected = 50.0 / 101.0;
        let share = (expected * 1e6) as u32;
        let by = Figure::FailureRatio(Totals { calls: 100, failures: 75, slow: 0 });
        assert_eq!(half.condition(&state, Tick::from_nanos(now)), Condition::Shedding { share, by });
        assert!((refused(&half, &state, now) - expected).abs() < 0.015);
        // (100 - 80 / 0.95) / 101.
        let envoy = breaker(CircuitBreaker::envoy());
        let (state, now) = with_calls(&envoy, 100, 20);
        let expected = (100.0 - 80.0 / 0.95) / 101.0;
        assert!((refused(&envoy, &state, now) - expected).abs() < 0.015);
        let (state, now) = with_calls(&envoy, 400, 400);
        assert!((refused(&envoy, &state, now) - 0.8).abs() < 0.015, "at most four fifths");
    }

    #[test]
    fn up_to_the_threshold_and_below_the_least_calls_nothing_is_shed() {
        let half = breaker(CircuitBreaker::builder().shed_at_most(0.9));
        for (calls, bad) in [(100, 50), (19, 19)] {
            let (state, now) = with_calls(&half, calls, bad);
            assert_eq!(half.condition(&state, Tick::from_nanos(now)), Condition::Closed, "{bad} of {calls}");
            assert_eq!(refused(&half, &state, now), 0.0);
        }
    }

    #[test]
    fn slow_calls_are_shed_as_failures_are() {
        let slow = CircuitBreaker::builder()
            .without_failure_ratio()
            .slow_calls(Duration::from_millis(10), 0.5)
            .shed_at_most(0.9);
        let slow = breaker(slow);
        let mut state = slow.fresh(Tick::EPOCH);
        let mut receipts: Vec<Receipt> = Vec::new();
        for now in 0..40 {
            let Transition::Allowed { next, receipt, .. } = slow.enter(&state, ask(now)) else { panic!() };
            (state, _) = (next, receipts.push(receipt));
        }
        for receipt in &receipts {
            state = slow.leave(&state, Tick::from_nanos(SECOND), receipt, Outcome::Success);
        }
        let Condition::Shedding { share, .. } = slow.condition(&state, Tick::from_nanos(SECOND)) else {
            panic!()
        };
        assert_eq!(share, 900_000, "all were slow");
    }

    #[test]
    fn the_window_empties_and_with_it_the_share() {
        let envoy = breaker(CircuitBreaker::envoy());
        let (mut state, now) = with_calls(&envoy, 50, 50);
        let standing = envoy.standing(&state, Tick::from_nanos(now));
        assert!(standing.reset_after <= Duration::from_secs(31), "{standing:?}");
        let later = Tick::from_nanos(now + 31 * SECOND);
        assert_eq!(envoy.condition(&state, later), Condition::Closed);
        let mut changes: Vec<Change> = Vec::new();
        let ask = Ask::allow(later, Cost::ONE);
        envoy
            .enter_in_place(&mut state, ask, &mut |change| changes.push(change))
            .expect("nothing failed of late");
        assert!(matches!(
            changes[..],
            [Change {
                from: Condition::Shedding { .. },
                to: Condition::Closed,
                cause: Cause::Recovered(_),
                ..
            }]
        ));
    }

    #[test]
    fn begin_and_end_are_reported_once() {
        let half = breaker(CircuitBreaker::builder().min_calls(4).shed_at_most(0.9));
        let mut state = half.fresh(Tick::EPOCH);
        let mut changes: Vec<Change> = Vec::new();
        let mut tell = |change| changes.push(change);
        let mut now = 0;
        for (outcome, times) in [(Outcome::Failure, 6), (Outcome::Success, 12)] {
            let mut ended = 0;
            while ended < times {
                now += 1_000_000;
                if let Ok(receipt) = half.enter_in_place(&mut state, ask(now), &mut tell) {
                    half.leave_in_place(
                        &mut state,
                        Tick::from_nanos(now),
                        &receipt,
                        None,
                        outcome,
                        &mut tell,
                    );
                    ended += 1;
                }
            }
        }
        let words: Vec<_> = changes.iter().map(|change| (change.from.as_str(), change.to.as_str())).collect();
        assert_eq!(words, [("closed", "shedding"), ("shedding", "closed")]);
        assert!(matches!(changes[0].cause, Cause::Tripped(Figure::FailureRatio(Totals { calls: 4, .. }))));
    }

    #[test]
    fn a_person_decides_over_it() {
        let envoy = breaker(CircuitBreaker::envoy());
        let (mut state, now) = with_calls(&envoy, 100, 100);
        let at = Tick::from_nanos(now);
        let force = |state: &mut CircuitBreakerState, to: Option<Force>| {
            let forced = to.map(|to| Forced::new(to, None, "a test"));
            envoy.force_in_place(state, at, forced, &mut |_| ());
        };
        for to in [Force::Closed, Force::MetricsOnly] {
            force(&mut state, Some(to));
            assert_eq!(refused(&envoy, &state, now), 0.0, "{to:?}");
        }
        force(&mut state, None);
        assert!(matches!(envoy.condition(&state, at), Condition::Shedding { .. }), "its calls decide again");
        force(&mut state, Some(Force::Disabled));
        assert_eq!(refused(&envoy, &state, now), 0.0);
        force(&mut state, None);
        assert_eq!(envoy.condition(&state, at), Condition::Closed, "the window is empty");
    }

    #[test]
    fn settings_that_shed_nothing_are_refused() {
        let text = |builder: BreakerBuilder| builder.build().map_err(|error| error.to_string());
        let shed = || CircuitBreaker::builder().shed_at_most(0.5);
        let want = "is not a share; a breaker that sheds judges by failure_ratio and slow_calls";
        assert_eq!(text(shed().consecutive(3)), Err(format!("consecutive 3 {want}")));
        assert_eq!(text(shed().failures(3)), Err(format!("failures 3 {want}")));
        assert_eq!(
            text(shed().failure_ratio(1.0)),
            Err("failure_ratio 1 allows all calls to fail, so nothing would be shed; use less than 1"
                .to_owned())
        );
        for share in [0.0, 1.0, -1.0, f64::NAN] {
            let text = text(CircuitBreaker::builder().shed_at_most(share)).unwrap_err();
            assert!(text.ends_with("is not a share to refuse; use more than 0, to 0.99"), "{text}");
        }
        let every = crate::breaker::Evaluate::Every(Duration::from_millis(500));
        assert!(
            text(shed().evaluate(every))
                .unwrap_err()
                .starts_with("evaluate Every(500ms) is not for a breaker")
        );
    }

    proptest! {
        /// The share is the SRE book's, computed in floats, for any threshold and any window.
        #[test]
        fn the_share_is_that_of_floats(
            calls in 0_u32..5_000, bad in 0.0..=1.0, threshold in 1_u32..WHOLE, most in 1..=CircuitBreaker::MOST_SHED,
        ) {
            let failures = (f64::from(calls) * bad) as u32;
            let rules = BreakerThresholds {
                failure_ratio: Some(threshold), slow_ratio: None, consecutive: None, failures: None, min_calls: 0,
                above: false,
            };
            let (all, accepts) = (f64::from(calls), f64::from(calls - failures));
            let k = 1.0 / (1.0 - f64::from(threshold) / 1e6);
            let expected = ((all - k * accepts) / (all + 1.0)).clamp(0.0, f64::from(most) / 1e6);
            let share = f64::from(rules.excess(Totals { calls, failures, slow: 0 }, most)) / 1e6;
            prop_assert!((share - expected).abs() < 2e-6, "{share} {expected}");
        }

        /// Both byte forms read back as they were written, and every state refuses at most the stated share.
        #[test]
        fn bytes_keep_a_breaker_that_sheds(calls in 1_u32..60, bad in 0_u32..60, of_calls: bool) {
            let window = if of_calls { Window::Calls(40) } else {
                Window::Time { span: Duration::from_secs(10), buckets: 10 }
            };
            let half = breaker(CircuitBreaker::builder().window(window).min_calls(10).shed_at_most(0.75));
            let (state, now) = with_calls(&half, calls, bad.min(calls));
            let at = Tick::from_nanos(now);
            prop_assert_eq!(written_and_read(&half), Ok(half.clone()));
            let read = written_and_read(&state);
            prop_assert_eq!(read.as_ref(), Ok(&state));
            if let Condition::Shedding { share, .. } = half.condition(&state, at) {
                prop_assert!((1..=750_000).contains(&share));
            }
        }
    }
}
