//! Queries of a breaker's state at a tick. They change nothing.

use core::fmt;
use core::time::Duration;
use std::borrow::Cow;

use super::forced::{Forced, WouldTrip};
use super::judgement::Judgement;
use super::outcomes::{Totals, Window};
use super::parameters::CircuitBreaker;
use super::rules::{BreakerThresholds, Figure, WHOLE};
use super::state::{CircuitBreakerState, Condition, Phase, StateFields};
use crate::decision::Retry;
use crate::guard::Guard as _;
use crate::time::Tick;

impl CircuitBreaker {
    /// Returns the names of the parameters in which another breaker differs, as policy files write them; empty if the two
    /// are equal.
    #[must_use]
    pub fn differs_in(&self, other: &Self) -> Vec<&'static str> {
        let (ours, theirs) = (&*self.parameters, &*other.parameters);
        let judged_by = |by: &Judgement| match by {
            Judgement::Successes(_) => "close_after",
            Judgement::Batch(_) => "judge_calls",
            Judgement::Evidence(_) => "risk",
        };
        let fails = |of: &BreakerThresholds| (of.failure_ratio, of.failures);
        let differences = [
            ("window", ours.window != theirs.window),
            ("failures", fails(&ours.rules) != fails(&theirs.rules)),
            ("consecutive", ours.rules.consecutive != theirs.rules.consecutive),
            ("slow_calls", ours.rules.slow_ratio != theirs.rules.slow_ratio),
            ("slow_after", ours.slow_after != theirs.slow_after),
            ("min_calls", ours.rules.min_calls != theirs.rules.min_calls),
            ("trips", ours.rules.above != theirs.rules.above),
            ("shed_at_most", ours.shed_at_most != theirs.shed_at_most),
            ("overloaded", ours.overload_fails != theirs.overload_fails),
            ("evaluate", ours.evaluate != theirs.evaluate),
            ("open_for", ours.open.first != theirs.open.first),
            ("open_at_most", ours.open.longest != theirs.open.longest),
            ("growth", ours.open.growth != theirs.open.growth),
            ("jitter", (ours.open.jitter, ours.open.seed) != (theirs.open.jitter, theirs.open.seed)),
            ("probes", ours.probes.max() != theirs.probes.max()),
            ("ttl", ours.probes.time_to_live() != theirs.probes.time_to_live()),
            (judged_by(&theirs.judgement), ours.judgement != theirs.judgement),
            ("steps", ours.steps != theirs.steps),
            ("forget_after", ours.forget_after != theirs.forget_after),
        ];
        differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Returns the state of a key that is reset at `at`: nothing is counted, calls in flight do not count when they end,
    /// and a state that a person has forced stays until it ends by itself or by hand.
    #[must_use]
    pub fn reset(&self, state: &CircuitBreakerState, at: Tick) -> CircuitBreakerState {
        let mut next = self.fresh(at);
        if let Some(forced) = self.forced(state, at) {
            self.force_in_place(&mut next, at, Some(forced), &mut |_| ());
        }
        next
    }

    /// Returns the state as of `now`. Copies it only if a visible part changes; that an old trip no longer counts is
    /// not visible before the next trip.
    pub(super) fn at<'s>(
        &self,
        state: &'s CircuitBreakerState,
        now: Tick,
    ) -> (Cow<'s, CircuitBreakerState>, Tick) {
        let at = now.max(state.inner.last);
        if self.due(&state.inner, at) == Due::Nothing {
            return (Cow::Borrowed(state), at);
        }
        let mut state = state.clone();
        self.advance(&mut state.inner, at, &mut |_| ());
        (Cow::Owned(state), at)
    }

    /// Returns the condition of the breaker at `now`.
    #[must_use]
    pub fn condition(&self, state: &CircuitBreakerState, now: Tick) -> Condition {
        let (state, at) = self.at(state, now);
        self.condition_of(&state.inner, at)
    }

    /// Returns the calls in the window of a closed breaker, or in the current step of a half-open one.
    #[must_use]
    pub fn totals(&self, state: &CircuitBreakerState, now: Tick) -> Totals {
        let (state, at) = self.at(state, now);
        match &state.inner.phase {
            Phase::Closed { outcomes, .. } => outcomes.clone().totals(at),
            Phase::HalfOpen { totals, .. } => *totals,
            Phase::Open { .. } => Totals::default(),
        }
    }

    /// Returns the state that a person has forced the breaker into; `None` if it is not forced.
    #[must_use]
    pub fn forced(&self, state: &CircuitBreakerState, now: Tick) -> Option<Forced> {
        self.at(state, now).0.inner.forced.clone()
    }

    /// Returns how often a breaker that only measures would have opened since it was forced into that state; `None` if
    /// it would not have opened, or is in another state.
    #[must_use]
    pub fn would_trip(&self, state: &CircuitBreakerState, now: Tick) -> Option<WouldTrip> {
        self.at(state, now).0.inner.would_trip
    }
}

/// The most comparisons of figures for the time since the last change: a window has at most a thousand spans.
const MOST_EVALUATIONS: u32 = 1_001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// A comparison of figures between calls has opened a closed breaker; nothing else changed.
    Trip {
        /// When the open time ends.
        until: Tick,
    },
    /// A change that has to be made in the state.
    Change,
}

impl CircuitBreaker {
    /// Returns what time has changed since the last change of the state; [`advance`](Self::advance) applies it.
    pub(super) fn due(&self, inner: &StateFields, at: Tick) -> Due {
        let idle = inner.idle_at(self.parameters.forget_after);
        let is_forgotten = idle != Tick::MAX && at >= idle;
        let is_released =
            inner.forced.as_ref().is_some_and(|forced| forced.until <= at && forced.until != Tick::MAX);
        if is_forgotten || is_released {
            return Due::Change;
        }
        match (self.tripped_by_time(inner, at), &inner.forced) {
            (None, _) => Due::Nothing,
            (Some((when, _)), None) => {
                Due::Trip { until: self.open_until(inner, self.remembered(inner, at), when) }
            }
            (Some(_), Some(_)) => Due::Change,
        }
    }

    /// Returns the refusal for a call at `at`, or `Some(None)` if the call may enter, without copying the state.
    /// `None` if the state has to be changed first to know.
    pub(super) fn refused_at(&self, inner: &StateFields, at: Tick) -> Option<Option<Retry>> {
        match self.due(inner, at) {
            Due::Nothing => Some(self.refusal(inner, at)),
            Due::Trip { until } => Some(self.refused_until(until, at)),
            Due::Change => None,
        }
    }

    /// Returns when to retry, for a breaker that is open until `until`; `None` if a probe may enter.
    pub(super) fn refused_until(&self, until: Tick, at: Tick) -> Option<Retry> {
        Some(self.open_time_left(until, at)).filter(|left| !left.is_zero()).map(Retry::After)
    }

    /// Returns the last open time in nanoseconds, or 0 if it has been forgotten by `at`.
    pub(super) fn remembered(&self, inner: &StateFields, at: Tick) -> u64 {
        let Phase::Closed { since, .. } = inner.phase else { return inner.last_open_time };
        let is_forgotten = at >= inner.recovered_at(since, self.parameters.forget_after)
            && self.parameters.forget_after != u64::MAX;
        if is_forgotten { 0 } else { inner.last_open_time }
    }

    /// Returns when the open time ends if the breaker trips at `at` and its last open time was `last`.
    pub(super) fn open_until(&self, inner: &StateFields, last: u64, at: Tick) -> Tick {
        let time = self.parameters.open.next(last);
        at.after(Duration::from_nanos(self.parameters.open.jittered(time, at, inner.since, inner.last)))
    }

    /// For [`Evaluate::Every`](super::Evaluate::Every): compares the figures at each multiple of the span since the
    /// last change, up to `at`, and returns the first tick at which one reaches its threshold.
    pub(super) fn tripped_by_time(&self, inner: &StateFields, at: Tick) -> Option<(Tick, Figure)> {
        let Phase::Closed { outcomes, consecutive, .. } = &inner.phase else { return None };
        let mut ahead = outcomes.ahead();
        let mut compared = inner.last;
        // A window without new calls is empty after this many spans.
        for _ in 0..=MOST_EVALUATIONS {
            compared = self.next_evaluation(compared, at)?;
            let totals = ahead.totals(compared);
            if let Some(figure) = self.parameters.rules.tripped_by(totals, *consecutive) {
                return Some((compared, figure));
            }
            // A window of calls does not change with time.
            if totals.calls == 0 || outcomes.empty_at().is_none() {
                return None;
            }
        }
        None
    }

    fn open_time_left(&self, until: Tick, at: Tick) -> Duration {
        let left = until.since(at);
        let late = self.parameters.open.strict && at <= until;
        if late { left.saturating_add(Duration::from_nanos(1)) } else { left }
    }
}

/// The share of calls that a [shedding](Condition::Shedding) breaker admits, and the figures that it follows from.
///
/// Displayed as a person reads it: `admits 53% of the calls: 240 of 900 calls of the last 2 min ended well, K = 2`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Admitted {
    /// The share of calls that is admitted, in millionths.
    pub share: u32,
    /// The calls in the window.
    pub calls: u32,
    /// Those of them that did not fail; with [`Admitted::by_slow`], that were not slow.
    pub good: u32,
    /// Whether the slow calls decide the share, rather than those that failed.
    pub by_slow: bool,
    /// How many calls each good one justifies: `1/(1 - f)` for a threshold of `f`.
    pub k: f64,
    /// Whether the good calls justify less than this share, which is the least that the breaker admits.
    pub is_least: bool,
    /// The calls that count.
    pub window: Window,
}

impl CircuitBreaker {
    /// Returns what a breaker in this condition admits, and why; `None` unless it sheds. Never allocates.
    #[must_use]
    pub fn admitted(&self, condition: &Condition) -> Option<Admitted> {
        let Condition::Shedding { share, by } = *condition else { return None };
        let (Figure::FailureRatio(totals) | Figure::SlowRatio(totals)) = by else { return None };
        let rules = &self.parameters.rules;
        let most = self.parameters.shed_at_most?;
        let of = |failures: bool| {
            let (bad, threshold) = match failures {
                true => (totals.failures, rules.failure_ratio?),
                false => (totals.slow, rules.slow_ratio?),
            };
            Some((BreakerThresholds::excess_of(totals, bad, threshold)?, bad, threshold))
        };
        let (failed, slow) = (of(true), of(false));
        // As the share itself: the larger one, and the failures of two equal ones.
        let by_slow = slow.map(|(excess, ..)| excess) > failed.map(|(excess, ..)| excess);
        let (excess, bad, threshold) = if by_slow { slow? } else { failed? };
        let Totals { calls, .. } = totals;
        Some(Admitted {
            share: WHOLE.saturating_sub(share),
            calls,
            good: calls.saturating_sub(bad),
            by_slow,
            k: f64::from(WHOLE) / f64::from(WHOLE.saturating_sub(threshold).max(1)),
            is_least: excess > most,
            window: self.parameters.window,
        })
    }
}

impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, good) = (self.calls, self.good);
        write!(f, "admits {}% of the calls", self.share / (WHOLE / 100))?;
        if self.is_least {
            f.write_str(", the least that shed_at_most leaves")?;
        }
        match self.window {
            Window::Calls(_) => write!(f, ": {good} of the last {calls} calls ")?,
            Window::Time { span, .. } => {
                write!(f, ": {good} of {calls} calls of the last ")?;
                match (span.as_secs(), span.subsec_nanos()) {
                    (secs, 0) if secs >= 60 && secs.is_multiple_of(60) => write!(f, "{} min ", secs / 60)?,
                    (secs, 0) => write!(f, "{secs} s ")?,
                    _ => write!(f, "{span:?} ")?,
                }
            }
        }
        f.write_str(if self.by_slow { "were not slow" } else { "ended well" })?;
        // Two decimals: K is 1.05 for Envoy's threshold. Trailing zeros say nothing.
        let k = format!("{:.2}", self.k);
        write!(f, ", K = {}", k.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::breaker::BreakerBuilder;

    fn admitted(builder: BreakerBuilder, totals: Totals) -> Option<Admitted> {
        let breaker = builder.build().expect("in range");
        let most = breaker.parameters.shed_at_most.expect("it sheds");
        let share = breaker.parameters.rules.excess(totals, most);
        let by = breaker.parameters.rules.ratio_of(totals)?;
        breaker.admitted(&Condition::Shedding { share, by })
    }

    const fn totals(calls: u32, failures: u32, slow: u32) -> Totals {
        Totals { calls, failures, slow }
    }

    #[test]
    fn the_share_is_said_with_the_figures_that_it_follows_from() {
        let sre = CircuitBreaker::sre;
        let slow = || sre().failure_ratio(0.5).slow_calls(Duration::from_millis(100), 0.2);
        for (builder, of, says) in [
            // (900 - 2 * 240) / 901 are refused.
            (
                sre(),
                totals(900, 660, 0),
                "admits 53% of the calls: 240 of 900 calls of the last 2 min ended well, K = 2",
            ),
            // (100 - 80 / 0.95) / 101 are refused.
            (
                CircuitBreaker::envoy(),
                totals(100, 20, 0),
                "admits 84% of the calls: 80 of 100 calls of the last 30 s ended well, K = 1.05",
            ),
            (
                sre().window(Window::Calls(50)),
                totals(50, 40, 0),
                "admits 41% of the calls: 10 of the last 50 calls ended well, K = 2",
            ),
            (
                sre(),
                totals(1000, 1000, 0),
                "admits 1% of the calls, the least that shed_at_most leaves: 0 of 1000 calls of the last 2 min ended well, K = 2",
            ),
            // Of the failures alone (100 - 2 * 45) / 101 are refused, of the slow calls (100 - 40 / 0.8) / 101.
            (
                slow(),
                totals(100, 55, 60),
                "admits 50% of the calls: 40 of 100 calls of the last 2 min were not slow, K = 1.25",
            ),
            // The failures refuse more: (100 - 2 * 20) / 101 against (100 - 50 / 0.8) / 101.
            (
                slow(),
                totals(100, 80, 50),
                "admits 40% of the calls: 20 of 100 calls of the last 2 min ended well, K = 2",
            ),
        ] {
            assert_eq!(admitted(builder, of).map(|told| told.to_string()).as_deref(), Some(says));
        }
    }

    #[test]
    fn other_conditions_admit_no_share() {
        let breaker = CircuitBreaker::sre().build().expect("in range");
        assert_eq!(breaker.admitted(&Condition::Closed), None);
        let opens = CircuitBreaker::builder().build().expect("in range");
        let by = Figure::FailureRatio(totals(10, 9, 0));
        assert_eq!(opens.admitted(&Condition::Shedding { share: 1, by }), None, "it never sheds");
    }
}
