//! Controlled delay: tells a queue that stands from one that only had a burst.
//!
//! A burst makes everybody wait and is worked off; a standing queue makes everybody wait and is never worked off, so all of it is delay
//! without use. What tells them apart is the *shortest* wait over an interval: after a burst somebody soon waits for no time at all, in a
//! standing queue nobody does. While it stands, whoever waited too long is refused, and the rest is served in time.

use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Tick, nanos};

/// When a queue stands, and what is too long a wait then.
///
/// | knob | default | range |
/// |---|---|---|
/// | `target`: the shortest wait that a queue may keep | 5 ms | 1 ns to 1 h |
/// | `interval`: over which the shortest wait is taken | 100 ms | `target` to 24 h |
///
/// `target` is what the work can spare for waiting; `interval` is longer than the usual burst, as a rule twenty times the target. While the
/// queue stands, waits of more than twice the target are refused.
///
/// # Source
/// K. Nichols and V. Jacobson, "Controlling Queue Delay", ACM Queue 10(5), 2012, in the form for servers of B. Maurer, "Fail at Scale",
/// ACM Queue 13(8), 2015, as in folly's `Codel`: the first wait of each interval is never refused.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::Tick;
/// use tidegate_core::codel::{Codel, CodelState};
///
/// let codel = Codel::new(Duration::from_millis(5), Duration::from_millis(100))?;
/// let mut state = CodelState::default();
/// let mut refused = 0;
/// for at in (0..1000).step_by(10) {
///     let now = Tick::from_nanos(at * 1_000_000);
///     refused += u32::from(codel.refuses(&mut state, now, Duration::from_millis(50)));
/// }
/// assert!(state.is_overloaded() && refused > 70, "nobody waited for less than 50 ms");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    target: u64,
    interval: u64,
}

/// What [`Codel`] remembers of a queue: 32 bytes. Start again from the default where the queue became empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodelState {
    /// When the current interval ends; the epoch before the first wait.
    ends: Tick,
    /// The shortest wait of the current interval.
    shortest: u64,
    overloaded: bool,
    begun: bool,
}

impl Default for Codel {
    fn default() -> Self {
        Self { target: 5_000_000, interval: 100_000_000 }
    }
}

impl Codel {
    /// Sets the target and the interval.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range.
    pub fn new(target: Duration, interval: Duration) -> Result<Self, QuotaError> {
        if target.is_zero() || target > Duration::from_secs(3600) {
            let want = "is no wait to aim at; use 1 ns to 1 h";
            return Err(QuotaError::Parameter { name: "target", value: format!("{target:?}"), want });
        }
        if interval < target || interval > Duration::from_secs(86_400) {
            let want = "is no interval; use the target to 24 h";
            return Err(QuotaError::Parameter { name: "interval", value: format!("{interval:?}"), want });
        }
        Ok(Self { target: nanos(target), interval: nanos(interval) })
    }

    /// Returns the longest wait that is served while the queue stands: twice the target.
    #[must_use]
    pub const fn longest_wait(&self) -> Duration {
        Duration::from_nanos(2 * self.target)
    }

    /// Takes in how long the one has waited whose turn has come, and says whether to refuse it. `now` before an earlier one stays in the
    /// interval of that.
    pub fn refuses(&self, state: &mut CodelState, now: Tick, waited: Duration) -> bool {
        let waited = nanos(waited);
        if !state.begun || now >= state.ends {
            // Nothing is known before the first interval has ended.
            state.overloaded = state.begun && state.shortest > self.target;
            state.begun = true;
            state.ends = now.after(Duration::from_nanos(self.interval));
            state.shortest = waited;
            return false;
        }
        state.shortest = state.shortest.min(waited);
        state.overloaded && waited > 2 * self.target
    }
}

impl CodelState {
    /// Says whether the queue stands: nobody waited for less than the target in the last interval.
    #[must_use]
    pub const fn is_overloaded(&self) -> bool {
        self.overloaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_is_worked_off_and_a_standing_queue_is_cut() {
        let codel = Codel::default();
        let mut state = CodelState::default();
        let mut at = |now: u64, wait| {
            let refused = codel.refuses(&mut state, Tick::from_nanos(now * 1_000_000), ms(wait));
            (refused, state.is_overloaded())
        };
        for (now, wait, expected) in [
            (0, 80, (false, false)),   // the first interval begins
            (50, 60, (false, false)),  // a burst
            (90, 1, (false, false)),   // worked off
            (100, 50, (false, false)), // the shortest was 1 ms
            (150, 40, (false, false)),
            (200, 50, (false, true)), // the shortest was 40 ms; the first of an interval is never refused
            (210, 11, (true, true)),  // more than twice the target
            (220, 10, (false, true)), // twice the target is served
            (300, 12, (false, true)),
            (350, 5, (false, true)),
            (400, 50, (false, false)), // the shortest was 5 ms, which is the target
            (410, 50, (false, false)),
        ] {
            assert_eq!(at(now, wait), expected, "at {now} ms");
        }
    }

    #[test]
    fn knobs_out_of_range_are_named() {
        assert!(Codel::new(Duration::ZERO, ms(1)).is_err() && Codel::new(ms(5), ms(4)).is_err());
        assert!(Codel::new(ms(3_600_001), Duration::MAX).is_err());
        let least = Codel::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
        assert!(!least.refuses(&mut CodelState::default(), Tick::MAX, Duration::MAX));
        assert_eq!(Codel::new(ms(5), ms(100)), Ok(Codel::default()));
    }
}
