//! What time brings about in a breaker by itself, found out without a change of its state: so that a refusal copies nothing.

use core::time::Duration;

use super::parameters::CircuitBreaker;
use super::rules::Figure;
use super::state::{Inner, Phase};
use crate::decision::Retry;
use crate::time::Tick;

/// How often figures are compared at most for the time since the last change: a window has at most a thousand spans.
const MOST_EVALUATIONS: u32 = 1_001;

/// What time has brought about by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// Figures that were compared while nobody asked have opened a closed breaker, and nothing else.
    Trip {
        /// Until when it is open.
        until: Tick,
    },
    /// Something that takes a state to be changed.
    Change,
}

impl CircuitBreaker {
    /// Returns what time has brought about since the last change, for [`advance`](Self::advance) to do.
    pub(super) fn due(&self, is: &Inner, at: Tick) -> Due {
        let idle = is.idle_at(self.by.healthy);
        let is_forgotten = idle != Tick::MAX && at >= idle;
        let is_released =
            is.forced.as_ref().is_some_and(|forced| forced.until <= at && forced.until != Tick::MAX);
        if is_forgotten || is_released {
            return Due::Change;
        }
        match (self.tripped_by_time(is, at), &is.forced) {
            (None, _) => Due::Nothing,
            (Some((when, _)), None) => {
                Due::Trip { until: self.open_until(is, self.remembered(is, at), when) }
            }
            (Some(_), Some(_)) => Due::Change,
        }
    }

    /// Returns why a call may not enter, if any reason, without a copy of the state. `None` where the state has to be changed to know.
    pub(super) fn refused_at(&self, is: &Inner, at: Tick) -> Option<Option<Retry>> {
        match self.due(is, at) {
            Due::Nothing => Some(self.refusal(is, at)),
            Due::Trip { until } => Some(self.refused_until(until, at)),
            Due::Change => None,
        }
    }

    /// Returns when to try again a breaker that is open until `until`; `None` where a probe may enter.
    pub(super) fn refused_until(&self, until: Tick, at: Tick) -> Option<Retry> {
        Some(self.open_time_left(until, at)).filter(|left| !left.is_zero()).map(Retry::After)
    }

    /// Returns the last open time, unless it has been forgotten by `at`.
    pub(super) fn remembered(&self, is: &Inner, at: Tick) -> u64 {
        let Phase::Closed { since, .. } = is.phase else { return is.grown };
        let is_forgotten = at >= is.recovered_at(since, self.by.healthy) && self.by.healthy != u64::MAX;
        if is_forgotten { 0 } else { is.grown }
    }

    /// Returns until when it is open if it trips at `at`, its last open time having been `grown`.
    pub(super) fn open_until(&self, is: &Inner, grown: u64, at: Tick) -> Tick {
        let time = self.by.open.grown(grown);
        at.after(Duration::from_nanos(self.by.open.jittered(time, at, (is.since, is.last))))
    }

    /// Compares figures at each multiple of their span since the last change, up to `at`, and returns the first tick at which one is over; see
    /// [`Evaluate::Every`]. While closed; changes nothing.
    pub(super) fn tripped_by_time(&self, is: &Inner, at: Tick) -> Option<(Tick, Figure)> {
        let Phase::Closed { outcomes, consecutive, .. } = &is.phase else { return None };
        let mut ahead = outcomes.ahead();
        let mut compared = is.last;
        // A window that nobody adds to is empty after so many spans.
        for _ in 0..=MOST_EVALUATIONS {
            compared = self.next_evaluation(compared, at)?;
            let totals = ahead.totals(compared);
            if let Some(figure) = self.by.rules.tripped_by(totals, *consecutive) {
                return Some((compared, figure));
            }
            // A window of calls does not change with time.
            if totals.calls == 0 || outcomes.empty_at().is_none() {
                return None;
            }
        }
        None
    }

    /// The time until the first probe may enter.
    fn open_time_left(&self, until: Tick, at: Tick) -> Duration {
        let left = until.since(at);
        let late = self.by.open.strict && at <= until;
        if late { left.saturating_add(Duration::from_nanos(1)) } else { left }
    }
}
