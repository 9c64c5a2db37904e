//! CoDel for a queue of waiting work: drops work that has waited long, but only while *all* work waits long.
//!
//! A burst makes some work wait, which is the purpose of a queue; but if even the work that waited least had to wait
//! long, more arrives than can be served. So the least wait of each interval decides. If it is above the target, the
//! service counts as overloaded for the next interval. In that, work that has waited more than twice the target by its
//! turn is dropped, since its caller is about to give up. Once a queue has stood for an interval, it is served from
//! its *newest* end (adaptive LIFO): the caller of the newest work still waits for an answer, the caller of the oldest
//! may not. After the queue was empty it is served in order again.
//!
//! Use it for any queue in front of a limit, except where waits are long by design, as for batch jobs.
//!
//! # Source
//! The form of folly's `Codel`, without CoDel's growing rate of drops. Adaptive LIFO is from B. Maurer, "Fail at
//! Scale", ACM Queue 13(8), 2015. CoDel itself is RFC 8289, which is also the source for an empty queue ending the
//! overload. In folly the very first turn is an interval by itself; here it begins an interval.

use core::time::Duration;

use crate::error::{QuotaError, in_range};
use crate::time::{Tick, onward};

/// Decides which work of a waiting queue is served.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-queue-orders.svg)
/// of a simulated service in and after an overload, with its queue in this order, first come first served, and newest
/// first ([figures](https://github.com/tidegate/tidegate/blob/main/docs/protection/bulkheads.md#the-adaptive-order)).
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
/// // For an interval nothing waited less than 20 ms.
/// assert_eq!([take(1, 20), take(2, 20), take(60, 20), take(90, 20)], [Turn::Serve; 4]);
/// // The first turn after it only begins the next interval, in which work that waited more than 10 ms is dropped.
/// assert_eq!([take(103, 20), take(104, 11), take(105, 10)], [Turn::Serve, Turn::Drop, Turn::Serve]);
/// assert_eq!(codel.end(&state, Tick::from_secs(1)), End::Newest);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    target: Duration,
    interval: Duration,
}

/// The state of [`Codel`] for one queue: 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelState {
    last: Tick,
    /// When the interval ends. Its least wait then decides about overload.
    interval_ends: Tick,
    /// The least wait of the interval; `None` before its first turn.
    least: Option<Duration>,
    overloaded: bool,
    emptied: Tick,
}

/// Whether work that is taken out of the queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "work that is to be dropped must not be served"]
pub enum Turn {
    /// Serve it.
    Serve,
    /// Refuse it: it has waited too long in an overloaded queue.
    Drop,
}

/// The end of a queue from which the next work is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The work that has waited longest.
    Oldest,
    /// The work that came last.
    Newest,
}

impl Default for Codel {
    fn default() -> Self {
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) }
    }
}

impl Codel {
    /// Sets the least wait of an interval above which the service is overloaded, 1 ns to 1 h; 5 ms by default. While
    /// it is overloaded, work that waited more than twice this is dropped.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn target(self, wait: Duration) -> Result<Self, QuotaError> {
        Ok(Self { target: up_to_an_hour("target", wait)?, ..self })
    }

    /// Sets the span over which a least wait is taken, 1 ns to 1 h; 100 ms by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn interval(self, span: Duration) -> Result<Self, QuotaError> {
        Ok(Self { interval: up_to_an_hour("interval", span)?, ..self })
    }

    /// Returns the state of an empty queue.
    #[must_use]
    pub const fn start(&self, now: Tick) -> CodelState {
        CodelState { last: now, interval_ends: now, least: None, overloaded: false, emptied: now }
    }

    /// Records that work which has waited for `waited` leaves the queue, and returns whether to serve or to drop it.
    /// The first turn of an interval is always served.
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

    /// Says whether work that has waited for `waited` may give up before its turn: it would be dropped at its turn, or
    /// it is being passed over because the queue is served from its newest end, and has waited longer than an
    /// interval. While the newest are served, only this finds the oldest. Changes nothing.
    #[must_use]
    pub fn given_up(&self, state: &CodelState, now: Tick, waited: Duration) -> bool {
        (state.overloaded && waited > self.target * 2) || (self.stands(state, now) && waited > self.interval)
    }

    /// Records that the queue is empty, which ends an overload.
    pub fn emptied(&self, state: &mut CodelState, at: Tick) {
        state.emptied = step(state, at);
        // Nor is the next interval judged by the waits before.
        (state.least, state.overloaded) = (None, false);
    }

    /// Returns the end from which the next work is taken: the newest once the queue has not been empty for longer
    /// than an interval.
    #[must_use]
    pub fn end(&self, state: &CodelState, now: Tick) -> End {
        if self.stands(state, now) { End::Newest } else { End::Oldest }
    }

    #[cfg(test)]
    const fn overloaded(&self, state: &CodelState) -> bool {
        state.overloaded
    }

    fn stands(&self, state: &CodelState, now: Tick) -> bool {
        now.since(state.emptied) > self.interval
    }
}

/// Advances the time, and returns the tick to use. If the clock was set far back, ticks that lie ahead of it move to
/// now.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::EPOCH.after(Duration::from_millis(millis))
    }

    /// Takes turns, each a time in milliseconds and a wait in milliseconds; returns the result of each.
    fn turns(codel: &Codel, state: &mut CodelState, turns: &[(u64, u64)]) -> Vec<Turn> {
        turns.iter().map(|&(now, waited)| codel.take(state, at(now), Duration::from_millis(waited))).collect()
    }

    use Turn::{Drop, Serve};

    /// An interval of 100 ms, overload above a least wait of 5 ms, and drops above 10 ms.
    #[test]
    fn the_published_numbers() {
        let codel = Codel::default();
        let mut state = codel.start(at(0));
        // The very first turn, and then an interval in which something waited no longer than the target.
        assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50), (50, 5), (102, 50)]), [Serve; 4]);
        assert_eq!(turns(&codel, &mut state, &[(103, 50), (104, 6), (202, 50)]), [Serve, Serve, Serve]);
        assert!(!codel.overloaded(&state), "the interval to 102 ms had a wait of 5 ms");
        // The interval that ended at 202 ms had no wait below 6 ms.
        assert_eq!(
            turns(&codel, &mut state, &[(203, 50)]),
            [Serve],
            "the first turn of an interval is never dropped"
        );
        assert!(codel.overloaded(&state));
        let next = turns(&codel, &mut state, &[(204, 50), (205, 10), (206, 11), (303, 7)]);
        assert_eq!(next, [Drop, Serve, Drop, Serve]);
        // Still overloaded by its least wait of 7 ms; the next interval, with 5 ms, ends it.
        let next =
            turns(&codel, &mut state, &[(304, 50), (305, 50), (306, 5), (404, 50), (405, 50), (406, 50)]);
        assert_eq!(next, [Serve, Drop, Serve, Drop, Serve, Serve]);
    }

    #[test]
    fn a_line_that_stands_is_served_from_its_newest_end_until_it_empties() {
        let codel = Codel::default();
        let mut state = codel.start(at(0));
        for (emptied, now, end) in
            [(0, 100, End::Oldest), (0, 101, End::Newest), (150, 250, End::Oldest), (150, 251, End::Newest)]
        {
            codel.emptied(&mut state, at(emptied));
            assert_eq!(codel.end(&state, at(now)), end, "at {now} ms");
        }
    }

    /// The newest wait for a millisecond each, so nothing is overloaded; the oldest are passed over for ever.
    #[test]
    fn those_who_are_passed_over_are_given_up_after_an_interval() {
        let codel = Codel::default();
        let mut state = codel.start(at(0));
        assert_eq!(turns(&codel, &mut state, &[(1, 1), (102, 1), (150, 1)]), [Serve; 3]);
        let given_up = |now, waited| codel.given_up(&state, at(now), Duration::from_millis(waited));
        assert!(!codel.overloaded(&state) && given_up(150, 101));
        assert!(
            !given_up(150, 100) && !given_up(100, 101),
            "within an interval, and in a line that was empty lately"
        );

        let mut state = codel.start(at(0));
        assert_eq!(turns(&codel, &mut state, &[(1, 20), (50, 20), (102, 20)]), [Serve; 3]);
        codel.emptied(&mut state, at(102));
        assert!(!codel.given_up(&state, at(103), Duration::from_millis(20)));
    }

    /// Overloaded before a night without work: the first turn in the morning, after a slow start, is not judged by
    /// yesterday's overload.
    #[test]
    fn an_empty_line_ends_the_overload() {
        let codel = Codel::default();
        let mut state = codel.start(at(0));
        assert_eq!(
            turns(&codel, &mut state, &[(1, 50), (2, 50), (103, 50), (104, 50)]),
            [Serve, Serve, Serve, Drop]
        );
        codel.emptied(&mut state, at(105));
        assert_eq!(turns(&codel, &mut state, &[(120, 50)]), [Serve]);

        // Regression: the waits of the evening, which had not made an interval yet, were the least wait of the night.
        let mut state = codel.start(at(0));
        assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50)]), [Serve; 2]);
        let morning = 36_000_000;
        codel.emptied(&mut state, at(3));
        codel.emptied(&mut state, at(morning));
        assert_eq!(turns(&codel, &mut state, &[(morning + 15, 15), (morning + 16, 11)]), [Serve; 2]);
        assert!(!codel.overloaded(&state));
    }

    #[test]
    fn a_clock_that_steps_far_back_does_not_stop_the_intervals() {
        let codel = Codel::default();
        let mut state = codel.start(at(100_000));
        assert_eq!(turns(&codel, &mut state, &[(100_001, 50), (100_002, 50), (0, 50)]), [Serve; 3]);
        assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50)]), [Serve, Drop]);
        assert_eq!((codel.end(&state, at(100)), codel.end(&state, at(101))), (End::Oldest, End::Newest));
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let text = Codel::default().target(Duration::ZERO).unwrap_err().to_string();
        assert_eq!(text, "target 0ns is not a time to wait; use 1 ns to 1 h");
        assert!(Codel::default().interval(Duration::MAX).is_err());
    }

    proptest! {
        #[test]
        fn nobody_is_dropped_who_waited_little_and_the_first_of_an_interval_never(
            steps in prop::collection::vec((0u64..200_000_000, any::<Duration>(), any::<bool>(), any::<bool>()), 1..200),
        ) {
            let codel = Codel::default();
            let (mut now, mut state) = (Tick::EPOCH, codel.start(Tick::EPOCH));
            let mut served = None;
            for (nanos, waited, short, empty) in steps {
                now = now.after(Duration::from_nanos(nanos));
                let waited = if short { Duration::from_nanos(waited.as_nanos() as u64 % 20_000_000) } else { waited };
                if empty {
                    codel.emptied(&mut state, now);
                }
                let turn = codel.take(&mut state, now, waited);
                if turn == Drop {
                    prop_assert!(waited > Duration::from_millis(10));
                    prop_assert!(served.is_some_and(|served| now.since(served) <= Duration::from_millis(100)));
                } else {
                    served = Some(now);
                }
            }
        }
    }

    /// What the documentation says of its size.
    #[test]
    fn the_state_is_as_small_as_documented() {
        assert_eq!(size_of::<CodelState>(), 48);
    }
}
