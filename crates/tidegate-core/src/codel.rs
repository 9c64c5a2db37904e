//! CoDel for a line of waiting work: drop what has waited long, and only while *everybody* waits long.
//!
//! A burst makes some wait, which is what a line is for. A line in which even the quickest has waited is no burst: more arrives than can be
//! served. So the least wait of each interval decides: above the target, the service is overloaded for the next interval, and whoever has
//! waited twice the target by the time of its turn is dropped instead of served, since its caller is about to give up.
//!
//! Once a line has stood for an interval, it is served from its *newest* end (adaptive LIFO): the newest still has somebody waiting for its
//! answer, the oldest may not. A line that empties is served in order again.
//!
//! # When
//! Right for any line in front of a limit: it needs no knowledge of the service, and idles while all is well. Wrong where each wait is
//! long by design, as a batch of jobs; and it drops after the wait: what should not even be let in is refused by a throttle or a limit.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | target | 1 ns to 1 h | 5 ms | the least wait of an interval above which the service is overloaded |
//! | interval | 1 ns to 1 h | 100 ms | how long a least wait is taken over |
//!
//! # Source
//! The form of folly's `Codel`: not CoDel's growing rate of drops but all that waited twice the target; and B. Maurer, "Fail at Scale", ACM
//! Queue 13(8), 2015, for adaptive LIFO and the longest wait of [`Codel::longest_wait`]. CoDel itself is RFC 8289; that an empty line ends
//! the overload is from there. In folly the first turn of all is an interval by itself, so that one long wait at the start is an overload;
//! here it begins one.

use core::time::Duration;

use crate::error::QuotaError;
use crate::knob::in_range;
use crate::time::{Tick, onward};

/// Decides who of a waiting line is served.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::codel::{Codel, End, Turn};
/// use tidegate_core::Tick;
///
/// let codel = Codel::default();
/// let mut state = codel.start(Tick::EPOCH);
/// let mut take = |at, waited| {
///     let at = Tick::EPOCH.after(Duration::from_millis(at));
///     codel.take(&mut state, at, Duration::from_millis(waited))
/// };
/// // For an interval nobody waited less than 20 ms.
/// assert_eq!([take(1, 20), take(2, 20), take(60, 20), take(90, 20)], [Turn::Serve; 4]);
/// // The first after it only begins the next, in which those are dropped who waited more than 10 ms.
/// assert_eq!([take(103, 20), take(104, 11), take(105, 10)], [Turn::Serve, Turn::Drop, Turn::Serve]);
/// assert_eq!(codel.end(&state, Tick::from_secs(1)), End::Newest);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    target: Duration,
    interval: Duration,
}

/// What [`Codel`] remembers of a line: 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelState {
    /// The latest tick that was told.
    last: Tick,
    /// When the interval ends, after which the least wait of it counts.
    interval_ends: Tick,
    /// The least wait of the interval; `None` before its first turn.
    least: Option<Duration>,
    overloaded: bool,
    /// When the line was last empty.
    emptied: Tick,
}

/// What becomes of whoever is taken out of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "whoever is to be dropped must not be served"]
pub enum Turn {
    /// It is served.
    Serve,
    /// It is refused: it has waited too long in an overloaded line.
    Drop,
}

/// The end of a line from which the next is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Whoever has waited longest.
    Oldest,
    /// Whoever came last.
    Newest,
}

impl Default for Codel {
    fn default() -> Self {
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

impl Codel {
    /// Sets the least wait of an interval above which the service is overloaded, 1 ns to 1 h. Twice as much is dropped.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn target(self, wait: Duration) -> Result<Self, QuotaError> {
        Ok(Self { target: up_to_an_hour("target", wait)?, ..self })
    }

    /// Sets how long a least wait is taken over, 1 ns to 1 h.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn interval(self, span: Duration) -> Result<Self, QuotaError> {
        Ok(Self { interval: up_to_an_hour("interval", span)?, ..self })
    }

    /// Returns the state of an empty line.
    #[must_use]
    pub const fn start(&self, now: Tick) -> CodelState {
        CodelState { last: now, interval_ends: now, least: None, overloaded: false, emptied: now }
    }

    /// Takes somebody out of the line who has waited `waited`, and says what becomes of it. The first turn of an interval is always served.
    pub fn take(&self, state: &mut CodelState, at: Tick, waited: Duration) -> Turn {
        let at = step(state, at);
        let least = match state.least {
            Some(least) if at <= state.interval_ends => least,
            before => {
                state.overloaded = before.is_some_and(|least| least > self.target);
                (state.interval_ends, state.least) = (at.after(self.interval), Some(waited));
                return Turn::Serve;
            }
        };
        state.least = Some(least.min(waited));
        if state.overloaded && waited > self.target * 2 { Turn::Drop } else { Turn::Serve }
    }

    /// Says whether somebody who has waited `waited`, and whose turn it is not, need not wait on: it would be dropped at its turn, or it
    /// is being passed over, for the line is served from its newest end, and has waited longer than an interval. Counts nothing.
    ///
    /// While the newest are served their waits are short, and the line is not overloaded by them; only this finds the oldest.
    #[must_use]
    pub fn given_up(&self, state: &CodelState, now: Tick, waited: Duration) -> bool {
        (state.overloaded && waited > self.target * 2) || (self.stands(state, now) && waited > self.interval)
    }

    /// Takes in that the line is empty: there is no overload.
    pub fn emptied(&self, state: &mut CodelState, at: Tick) {
        state.emptied = step(state, at);
        state.overloaded = false;
    }

    /// Returns from which end the next is taken: the newest once the line has not been empty for longer than an interval.
    #[must_use]
    pub fn end(&self, state: &CodelState, now: Tick) -> End {
        if self.stands(state, now) { End::Newest } else { End::Oldest }
    }

    /// Returns the longest that somebody who joins now may wait before being refused: the interval as a rule, and the target once
    /// the line has not been empty for longer than an interval. For lines whose waiters give up by a timer rather than at their turn.
    #[must_use]
    pub fn longest_wait(&self, state: &CodelState, now: Tick) -> Duration {
        if self.stands(state, now) { self.target } else { self.interval }
    }

    /// Returns whether the last interval was one of overload.
    #[must_use]
    pub const fn overloaded(&self, state: &CodelState) -> bool {
        state.overloaded
    }

    fn stands(&self, state: &CodelState, now: Tick) -> bool {
        now.since(state.emptied) > self.interval
    }
}

/// Moves time on, and returns what the tick counts as. After a long step back of the clock, what lies ahead of it begins now.
fn step(state: &mut CodelState, at: Tick) -> Tick {
    let at = onward(state.last, at);
    if at < state.last {
        (state.interval_ends, state.emptied) = (at, at);
    }
    state.last = at;
    at
}

fn up_to_an_hour(name: &'static str, span: Duration) -> Result<Duration, QuotaError> {
    let range = Duration::from_nanos(1)..=Duration::from_secs(3600);
    in_range(name, span, &range, "is not a time to wait; use 1 ns to 1 h")
}

#[cfg(test)]
mod tests;
