//! Breakers that shed: instead of opening, they refuse the share of calls that goes beyond what a threshold allows.
//!
//! With a threshold of `f`, the calls that ended well justify `1/(1 - f)` times as many calls. Calls beyond that number
//! are refused by chance: the share is that of the throttle [`Sre`](crate::throttle::Sre) with `1/(1 - f)` as its K.
//! Calls that were slow count as those that failed. Refused calls do not count, so a refusal changes nothing and has
//! nothing to store. The calls that still enter show whether the service recovers, so there are no probes.
//!
//! # Source
//! "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21, section on client-side
//! throttling: a threshold of a half is its K of 2. Envoy's admission control filter leaves refused requests out of
//! the count, as is done here, and bounds the refused share.

use super::machine::{Cause, ChangeReporter};
use super::parameters::{CircuitBreaker, scramble};
use super::rules::{BreakerThresholds, Figure, WHOLE};
use super::state::{Condition, Phase, StateFields};
use super::window::Totals;
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

    /// Returns the share of calls, in millionths, that goes beyond what a threshold allows if `bad` of the calls count against it;
    /// `None` for a threshold of all calls, which allows everything.
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
    /// of the call, and two ticks of the key: its first use and its last. So the same history gives the same answers,
    /// and calls at the same tick share one draw.
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

    /// Returns the condition of a closed breaker that is not forced.
    pub(super) fn closed_or_shedding(&self, inner: &StateFields, at: Tick) -> Condition {
        let Phase::Closed { outcomes, .. } = &inner.phase else { return Condition::Closed };
        match (self.shed_share(inner, at), self.parameters.rules.ratio_of(outcomes.ahead().totals(at))) {
            (share @ 1.., Some(by)) => Condition::Shedding { share, by },
            _ => Condition::Closed,
        }
    }

    /// For a breaker that may shed: reports when it begins to shed, and when it ends; changes nothing else. What time has changed by `at` was
    /// applied before.
    #[cold]
    pub(super) fn note_shedding(&self, inner: &mut StateFields, at: Tick, reporter: &mut ChangeReporter<'_>) {
        if inner.forced.is_some() {
            return;
        }
        let is = self.closed_or_shedding(inner, at);
        let Phase::Closed { outcomes, shedding, .. } = &mut inner.phase else { return };
        match is {
            Condition::Shedding { by, .. } if !*shedding => {
                *shedding = true;
                reporter.report(at, Condition::Closed, is, Cause::Tripped(by));
            }
            Condition::Closed if *shedding => {
                *shedding = false;
                let totals = outcomes.ahead().totals(at);
                let was = Condition::Shedding { share: 0, by: Figure::FailureRatio(totals) };
                reporter.report(at, was, is, Cause::Recovered(totals));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
