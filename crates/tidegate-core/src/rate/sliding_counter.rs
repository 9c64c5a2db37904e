//! The sliding counter: two counts, and the older one fades.
//!
//! Windows are fixed and begin at multiples of their length, counted from the clock's epoch. Spent at a moment is
//! estimated as *what was spent in the current window, plus what was spent in the one before, in proportion to how much
//! of that one still overlaps the window that ends now*: `current + previous · (1 − elapsed/window)`. That takes away
//! the fixed window's cliff for one number more.
//!
//! It assumes that the previous window was spent evenly, and is wrong by as much as it was not: units spent in its last
//! moment fade at once. At every act the estimate is within the limit, so no aligned window sees more than the limit,
//! and no span of one window's length more than twice; where the limit must hold in every span, take
//! [`SlidingWindow`](super::SlidingWindow).
//!
//! The estimate is never divided: both sides are multiplied by the window, which fits 128 bits. So equality is
//! equality, and the moment of the next yes is the exact nanosecond.

use super::Algorithm;
use super::settle::{settle, share, until, wide};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Transition};
use crate::time::{Rate, Tick};

/// A count in a window that slides by weighting two fixed ones.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::rate::SlidingCounter;
/// use tidegate_core::{Algorithm, Ask, Cost, Rate, Tick, Transition};
///
/// let limit = SlidingCounter::new(Rate::new(50, Duration::from_secs(60))?);
/// let early = Ask::allow(Tick::from_secs(30), Cost::new(42).unwrap());
/// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(early.now), early) else { panic!() };
/// // A quarter of the next minute has gone: 42 · 3/4 = 31.5 still count, and 18 whole units are left.
/// assert_eq!(limit.standing(&next, Tick::from_secs(75)).remaining, 18);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
///
/// # Source
/// Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    rate: Rate,
}

/// What [`SlidingCounter`] remembers of a key: 32 bytes, two counts and two ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCounterState {
    last: Tick,
    /// The latest act: nobody acts before it, and the window it lies in is the current one.
    act: Tick,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    /// Makes a limit of the count of `rate` per period.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// Returns the limit and its window.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    const fn window(&self) -> u64 {
        self.rate.period_nanos()
    }

    const fn index(&self, tick: Tick) -> u64 {
        tick.as_nanos() / self.window()
    }

    /// First tick of a window.
    fn begins(&self, index: u64) -> u128 {
        u128::from(index) * u128::from(self.window())
    }

    /// What was spent in the window of `at`, not before the state's latest act, and in the one before.
    fn counts(&self, state: &SlidingCounterState, at: Tick) -> (u64, u64) {
        match self.index(at) - self.index(state.act.min(at)) {
            0 => (state.previous, state.current),
            1 => (state.current, 0),
            _ => (0, 0),
        }
    }

    /// The estimate at `at`, times the window. Below 2^124: counts up to 2^60, twice a window of up to 2^62.
    fn spent(&self, (previous, current): (u64, u64), at: Tick) -> u128 {
        let overlap = self.window() - at.as_nanos() % self.window();
        u128::from(previous) * u128::from(overlap) + u128::from(current) * u128::from(self.window())
    }

    /// How far into a window the count before it must have faded to leave `room`; the whole window when it never does.
    fn faded(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        // Below the window, since room < previous.
        let overlap = u128::from(room) * u128::from(self.window()) / u128::from(previous);
        self.window() - overlap as u64
    }

    /// The first tick, not before `from`, at which `units` fit.
    fn place(&self, (previous, current): (u64, u64), from: Tick, units: u64) -> u128 {
        let begins = self.begins(self.index(from));
        let room = self.rate.count() - units;
        if let Some(left) = room.checked_sub(current) {
            // At the latest when the window ends: then the previous count has faded for good, and the current one fits.
            return wide(from).max(begins + u128::from(self.faded(previous, left)));
        }
        // One window on, the current count is the one that fades; faded for good, it is the window after that.
        begins + u128::from(self.window()) + u128::from(self.faded(current, room))
    }

    /// The first tick at which nothing counts any more.
    fn full(&self, state: &SlidingCounterState) -> u128 {
        let windows = match (state.previous, state.current) {
            (0, 0) => return wide(state.act),
            (_, 0) => 1,
            _ => 2,
        };
        self.begins(self.index(state.act)) + windows * u128::from(self.window())
    }
}

impl Algorithm for SlidingCounter {
    type State = SlidingCounterState;

    fn fresh(&self, now: Tick) -> SlidingCounterState {
        SlidingCounterState { last: now, act: Tick::EPOCH, previous: 0, current: 0 }
    }

    fn decide(&self, state: &SlidingCounterState, ask: Ask) -> Transition<SlidingCounterState> {
        let units = ask.cost.units();
        if units > self.rate.count() {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let from = at.max(state.act);
        let (previous, current) = self.counts(state, from);
        let (act, wait) = match settle(ask, at, self.place((previous, current), from, units)) {
            Ok(settled) => settled,
            Err(refused) => return refused,
        };
        // Where the charge waited from, and what counted before it there: what cancelling it brings back.
        let mark = wide(from) << 64 | u128::from(previous);
        let (next, mark) = match self.index(act) - self.index(from) {
            0 => ((previous, current + units), mark),
            1 => ((current, units), mark),
            _ => ((0, units), 0),
        };
        let (previous, current) = next;
        let next = SlidingCounterState { last: at, act, previous, current };
        Transition::Allowed {
            wait,
            next,
            receipt: Receipt { at, act, cost: ask.cost, mark: Receipt::mark(mark, 0) },
        }
    }

    fn standing(&self, state: &SlidingCounterState, now: Tick) -> Standing {
        let at = now.max(state.last);
        let limit = self.rate.count();
        let free = if state.act > at {
            0
        } else {
            let whole = u128::from(limit) * u128::from(self.window());
            whole.saturating_sub(self.spent(self.counts(state, at), at)) / u128::from(self.window())
        };
        // At most the limit, which fits.
        Standing { limit, remaining: free as u64, debt: 0, reset_after: until(at, self.full(state)) }
    }

    /// Gives back units of the window that `now` lies in and, once that is empty, of the one before. Nothing dates the
    /// charge: it is taken to be recent, as work that turned out cheaper is.
    fn refund(&self, state: &SlidingCounterState, now: Tick, cost: Cost) -> SlidingCounterState {
        let last = now.max(state.last);
        let act = state.act.max(last);
        let (previous, current) = self.counts(state, act);
        // Of the two windows that the state knows at its latest promise, only what has begun can hold work that is
        // done.
        let begun = |index: u64| self.begins(index) <= wide(last);
        let index = self.index(act);
        let from_current = if begun(index) { cost.units().min(current) } else { 0 };
        let rest = cost.units() - from_current;
        let from_previous = if index > 0 && begun(index - 1) { rest.min(previous) } else { 0 };
        SlidingCounterState { last, act, previous: previous - from_previous, current: current - from_current }
    }

    fn cancel(&self, state: &SlidingCounterState, now: Tick, receipt: &Receipt) -> SlidingCounterState {
        let last = now.max(state.last);
        let (index, cancelled) = (self.index(state.act), self.index(receipt.act));
        if receipt.act < last || cancelled > index {
            return *state;
        }
        let units = receipt.cost.units();
        let mut next = SlidingCounterState { last, ..*state };
        match index - cancelled {
            0 => next.current = state.current.saturating_sub(units),
            1 => next.previous = state.previous.saturating_sub(units),
            _ => return *state,
        }
        // Nobody is left in a window that has not begun: the receipt knows how things stood before it, one window back
        // at most. In a begun window a refund may have taken a promise for done work, so there the latest act stays.
        if cancelled == index && next.current == 0 && self.begins(index) > wide(last) {
            let (from, before) =
                (Tick::from_nanos((receipt.marks().0 >> 64) as u64), receipt.marks().0 as u64);
            match index.checked_sub(self.index(from)) {
                Some(0) => next.act = from.min(state.act),
                Some(1) => {
                    let previous = before.min(Rate::MAX_COUNT);
                    return SlidingCounterState { last, act: from, previous, current: state.previous };
                }
                _ => {}
            }
        }
        next
    }

    /// Keeps both counts while the window stays the same. Under another window the estimate, rounded up, becomes the
    /// count of the current one; while promises lie ahead both counts do, so that cancelling one gives no more than it
    /// took.
    fn carry(&self, old: &Self, state: &SlidingCounterState, now: Tick, how: Replace) -> SlidingCounterState {
        let last = now.max(state.last);
        if how == Replace::Reset {
            return self.fresh(last);
        }
        let promised = state.act > last;
        let act = last.max(state.act);
        let (mut previous, mut current) = old.counts(state, act);
        if self.window() != old.window() {
            let estimate = old.spent((previous, current), act).div_ceil(u128::from(old.window()));
            let sum = u128::from(previous) + u128::from(current);
            let all = if promised { sum } else { estimate };
            // Bounded by the largest limit.
            (previous, current) = (0, all.min(u128::from(Rate::MAX_COUNT)) as u64);
        }
        if how == Replace::Proportional && !promised {
            let share = |count| share(count, self.rate.count(), old.rate.count());
            (previous, current) = (share(previous), share(current));
        }
        SlidingCounterState { last, act, previous, current }
    }

    fn full_at(&self, state: &SlidingCounterState) -> Option<Tick> {
        u64::try_from(self.full(state)).ok().map(Tick::from_nanos)
    }
}

impl Bytes for SlidingCounter {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.rate().map(Self::new)
    }
}

impl Bytes for SlidingCounterState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.tick(self.act);
        out.u64(self.previous);
        out.u64(self.current);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let state =
            Self { last: from.tick()?, act: from.tick()?, previous: from.u64()?, current: from.u64()? };
        if state.previous.max(state.current) > Rate::MAX_COUNT {
            return Err(DecodeError::Value { field: "count" });
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = SlidingCounter::new(Rate::new(10, Duration::from_secs(1)).unwrap());
        let mut state = limit.fresh(ms(0));
        // (ms, cost, most wait in ms, answer: wait or least further wait in ms, remaining afterwards)
        for (at, cost, max_wait, expected, remaining) in [
            (600, 8, 0, Ok(0), 2),
            (600, 3, 0, Err(525), 2), // at 1125 the 8 have faded to 7
            (1000, 2, 0, Ok(0), 0),
            (1000, 1, 0, Err(125), 0),
            (500, 1, 0, Err(125), 0), // a step back stands still at 1000
            (1124, 1, 0, Err(1), 0),
            (1125, 1, 0, Ok(0), 0),
            (1125, 10, 1874, Err(1), 0), // not before the 3 of this window are gone, at 3000
            (1125, 1, 125, Ok(125), 0),
            (1300, 1, 0, Err(75), 0), // 4 and 8 · 0.7
            (1500, 2, 0, Ok(0), 0),
            (2000, 5, 0, Err(167), 4), // 6 fade to 5 in a sixth of a second
        ] {
            let ask = Ask::within(ms(at), Cost::new(cost).unwrap(), Duration::from_millis(max_wait));
            let answer = match limit.decide(&state, ask) {
                Transition::Allowed { wait, next, .. } => {
                    state = next;
                    Ok(wait.as_millis())
                }
                Transition::Denied { retry } => Err(retry.after().unwrap().as_nanos().div_ceil(1_000_000)),
            };
            assert_eq!(answer, expected, "at {at}");
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }

    #[test]
    fn cancelling_the_opener_brings_the_window_before_back() {
        let limit = SlidingCounter::new(Rate::new(5, Duration::from_secs(1)).unwrap());
        let ask = |cost| Ask::within(ms(500), Cost::new(cost).unwrap(), Duration::from_secs(60));
        let Transition::Allowed { next: three, .. } = limit.decide(&limit.fresh(ms(500)), ask(3)) else {
            panic!()
        };
        let Transition::Allowed { next: ahead, receipt, .. } = limit.decide(&three, ask(4)) else { panic!() };
        assert!(receipt.act > ms(1000));
        assert_eq!(limit.standing(&ahead, ms(501)).remaining, 0);
        assert_eq!(limit.cancel(&ahead, ms(500), &receipt), three);
    }
}
