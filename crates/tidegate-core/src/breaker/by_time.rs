//! Computes what time alone has changed in a breaker, without changing its state, so that a refusal copies nothing.

use core::time::Duration;

use super::parameters::CircuitBreaker;
use super::rules::Figure;
use super::state::{Phase, StateFields};
use crate::decision::Retry;
use crate::time::Tick;

/// The most comparisons of figures for the time since the last change: a window has at most a thousand spans.
const MOST_EVALUATIONS: u32 = 1_001;

/// The change that time alone has made.
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

    /// For a closed breaker with [`Evaluate::Every`](super::Evaluate::Every): compares the figures at each multiple of
    /// the span since the last change, up to `at`, and returns the first tick at which one reaches its threshold.
    /// Changes nothing.
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

    /// Returns the time until the first probe may enter.
    fn open_time_left(&self, until: Tick, at: Tick) -> Duration {
        let left = until.since(at);
        let late = self.parameters.open.strict && at <= until;
        if late { left.saturating_add(Duration::from_nanos(1)) } else { left }
    }
}
