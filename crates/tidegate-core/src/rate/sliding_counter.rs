//! The sliding counter: the counts of two fixed windows, where the older one fades.
//!
//! Windows begin at multiples of their length, counted from the clock's epoch. The units spent at a moment are
//! estimated as the units of the current window, plus those of the window before in proportion to how much of it
//! still overlaps the window that ends now: `current + previous · (1 − elapsed/window)`.
//!
//! The estimate assumes that the previous window was spent evenly, and is wrong by as much as it was not: units spent
//! in its last moment fade at once. So no aligned window sees more than the limit, and no span of one window's length
//! more than twice the limit. Where the limit must hold in every span, use [`SlidingWindow`](super::SlidingWindow).
//!
//! Promises ahead are kept one by one, so that undoing one leaves the state as if it had not been made. Comparisons
//! are exact: both sides are multiplied by the window, which fits 128 bits.

use core::time::Duration;

use super::exact::{AHEAD, AHEAD_IN_ENGINE, MOST_UNITS, above, excess, grant, share, until, wide};
use super::ledger::Carried;
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::time::{Rate, Tick};

/// A count in a sliding window, estimated from two fixed ones.
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

#[derive(Clone, Copy, Debug)]
struct WindowUnits {
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

    fn begins(&self, index: u64) -> u128 {
        u128::from(index) * u128::from(self.window())
    }

    /// Returns the units that act in the window before that of `at`, and in the window of `at`, which is not before
    /// the state's last change. Promises count only if they act by `at`.
    fn counts(&self, state: &SlidingCounterState, at: Tick) -> WindowUnits {
        let window = self.index(at);
        let (mut previous, mut current) = match window - self.index(state.last.min(at)) {
            0 => (state.previous, state.current),
            1 => (state.current, 0),
            _ => (0, 0),
        };
        for promise in state.promises().iter().filter(|promise| promise.act <= at) {
            match window - self.index(promise.act) {
                0 => current = current.saturating_add(promise.units).min(MOST_UNITS),
                1 => previous = previous.saturating_add(promise.units).min(MOST_UNITS),
                _ => {}
            }
        }
        WindowUnits { previous, current }
    }

    /// Returns the state at a later tick: promises that have acted by then are counted, and what no longer matters is dropped.
    fn rolled(&self, state: &SlidingCounterState, at: Tick) -> SlidingCounterState {
        let WindowUnits { previous, current } = self.counts(state, at);
        let mut next = SlidingCounterState { last: at, previous, current, more: None };
        if let Some(more) = &state.more {
            let promises = more.promises.iter().filter(|promise| promise.act > at).copied().collect();
            self.keep(&mut next, promises, more.carried);
        }
        next
    }

    fn keep(&self, state: &mut SlidingCounterState, promises: Vec<Promise>, carried: Option<Carried>) {
        let carried = carried.filter(|carried| self.outlives(*carried) > wide(state.last));
        let more = !promises.is_empty() || carried.is_some();
        state.more = more.then(|| Box::new(More { promises, carried }));
    }

    /// Returns the first tick at which no unit counts any more that acted before a change.
    fn outlives(&self, carried: Carried) -> u128 {
        self.begins(self.index(carried.until())) + 2 * u128::from(self.window())
    }

    /// Returns the state with more units, which act at its last change or behind all promises.
    fn with(&self, mut state: SlidingCounterState, act: Tick, units: u64) -> SlidingCounterState {
        if act <= state.last {
            state.current = state.current.saturating_add(units).min(MOST_UNITS);
            return state;
        }
        let (mut promises, carried) =
            state.more.take().map_or((Vec::new(), None), |more| (more.promises, more.carried));
        match promises.last_mut() {
            Some(latest) if latest.act >= act => {
                latest.units = latest.units.saturating_add(units).min(MOST_UNITS);
            }
            _ => promises.push(Promise { act, units }),
        }
        self.keep(&mut state, promises, carried);
        state
    }

    /// Returns the estimate at `at` times the window. At most 2^124: counts up to 2^61 times a window of up to 2^62, twice.
    fn spent(&self, counts: WindowUnits, at: Tick) -> u128 {
        let WindowUnits { previous, current } = counts;
        let overlap = self.window() - at.as_nanos() % self.window();
        u128::from(previous) * u128::from(overlap) + u128::from(current) * u128::from(self.window())
    }

    /// Returns how many ns into a window the count of the window before has faded to `room`; the whole window if that
    /// takes until its end.
    fn faded(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        // Below the window, because room < previous.
        let overlap = u128::from(room) * u128::from(self.window()) / u128::from(previous);
        self.window() - overlap as u64
    }

    /// Returns the first tick, not before `from`, at which `units` fit.
    fn place(&self, counts: WindowUnits, from: Tick, units: u64) -> u128 {
        let WindowUnits { previous, current } = counts;
        let begins = self.begins(self.index(from));
        let room = self.rate.count() - units;
        if let Some(left) = room.checked_sub(current) {
            // At the latest when the window ends: then the previous count has faded completely, and the current one fits.
            return wide(from).max(begins + u128::from(self.faded(previous, left)));
        }
        // In the next window, the current count is the one that fades. If it has to fade completely, the place is the
        // window after that.
        begins + u128::from(self.window()) + u128::from(self.faded(current, room))
    }

    fn full(&self, state: &SlidingCounterState) -> u128 {
        let latest = state.open_from(state.last);
        let windows = match self.counts(state, latest) {
            WindowUnits { previous: 0, current: 0 } => return wide(latest),
            WindowUnits { current: 0, .. } => 1,
            _ => 2,
        };
        self.begins(self.index(latest)) + windows * u128::from(self.window())
    }

    fn estimate(&self, state: &SlidingCounterState, at: Tick) -> u64 {
        // At most twice `MOST_UNITS`, which fits 64 bits.
        self.spent(self.counts(state, at), at).div_ceil(u128::from(self.window())) as u64
    }
}

impl Storable for SlidingCounter {
    type State = SlidingCounterState;

    fn last_change(&self, state: &SlidingCounterState) -> Option<Tick> {
        Some(state.last)
    }

    /// The estimate at the last change, rounded up, becomes the count of the window that holds `to`. Windows have
    /// fixed places, so a count that fades in one cannot be moved.
    fn set_back(&self, state: &SlidingCounterState, to: Tick) -> SlidingCounterState {
        let (from, latest) = (state.last, state.open_from(state.last));
        let carried = Carried::new(from, latest, state.carried());
        self.counted_at(state, from, latest, to, carried)
    }

    fn largest(&self) -> usize {
        SlidingCounterState::LARGEST
    }
}

impl Algorithm for SlidingCounter {
    type State = SlidingCounterState;

    fn fresh(&self, now: Tick) -> SlidingCounterState {
        SlidingCounterState { last: now, previous: 0, current: 0, more: None }
    }

    fn decide(&self, state: &SlidingCounterState, ask: Ask) -> Transition<SlidingCounterState> {
        let units = ask.cost.units();
        if units > self.rate.count() {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let from = state.open_from(at);
        let place = self.place(self.counts(state, from), from, units);
        let (act, wait) = match grant(ask, at, place, state.room(at, place)) {
            Ok(granted) => granted,
            Err(refused) => return refused,
        };
        let next = self.with(self.rolled(state, at), act, units);
        Transition::Allowed {
            wait,
            next,
            receipt: Receipt { at, act, cost: ask.cost, mark: Receipt::mark(0, 0) },
        }
    }

    fn standing(&self, state: &SlidingCounterState, now: Tick) -> Standing {
        let at = now.max(state.last);
        let limit = self.rate.count();
        let open = state.open_from(at);
        let spent = self.estimate(state, open);
        let remaining = if open == at { limit.saturating_sub(spent) } else { 0 };
        Standing { limit, remaining, debt: above(spent, limit), reset_after: until(at, self.full(state)) }
    }

    /// Takes unused units out of the window in which the charge acts, if that is the current window, the one before
    /// or one ahead; exact, whatever was charged since. Units used beyond the charge act now, behind all promises.
    /// They fade through the next window like any charge, and the next request waits until the estimate has room.
    fn settle(
        &self,
        state: &SlidingCounterState,
        now: Tick,
        receipt: &Receipt,
        used: u64,
    ) -> SlidingCounterState {
        let at = now.max(state.last);
        match receipt.cost.units().checked_sub(used) {
            Some(0) => state.clone(),
            Some(back) => self.give_back(state, at, receipt, back),
            None => self.with(self.rolled(state, at), state.open_from(at), excess(receipt, used)),
        }
    }

    /// Keeps both counts and every promise if the window stays the same. Under another window the estimate, rounded up,
    /// becomes the count of the current one. While promises lie ahead, all units that count at the latest of them act with it.
    fn carry(&self, old: &Self, state: &SlidingCounterState, now: Tick, how: Replace) -> SlidingCounterState {
        let last = now.max(state.last);
        let latest = state.open_from(last);
        let promised = latest > last;
        let carried = Carried::new(last, latest, state.carried());
        let mut next = if how == Replace::Reset {
            self.fresh(last)
        } else if self.window() == old.window() {
            old.rolled(state, last)
        } else {
            old.counted_at(state, last, latest, last, carried)
        };
        if how == Replace::Proportional && !promised {
            let share = |count| share(count, self.rate.count(), old.rate.count());
            (next.previous, next.current) = (share(next.previous), share(next.current));
        }
        let promises = next.promises().to_vec();
        self.keep(&mut next, promises, Some(carried));
        next
    }

    fn full_at(&self, state: &SlidingCounterState) -> Option<Tick> {
        let outdated = state.carried().map_or(0, |carried| self.outlives(carried));
        u64::try_from(self.full(state).max(outdated)).ok().map(Tick::from_nanos)
    }
}

impl SlidingCounter {
    /// Returns a state that was last changed at `to` and counts all units that this one counts at `from`; while
    /// promises lie ahead, they act with `latest`, the last of them.
    fn counted_at(
        &self,
        state: &SlidingCounterState,
        from: Tick,
        latest: Tick,
        to: Tick,
        carried: Carried,
    ) -> SlidingCounterState {
        let mut next = self.fresh(to);
        let mut promises = Vec::new();
        if latest > from {
            let WindowUnits { previous, current } = self.counts(state, latest);
            let units = previous.saturating_add(current).min(MOST_UNITS);
            promises.push(Promise { act: latest.before(from.since(to)), units });
        } else {
            next.current = self.estimate(state, from).min(MOST_UNITS);
        }
        self.keep(&mut next, promises, Some(carried));
        next
    }

    fn give_back(
        &self,
        state: &SlidingCounterState,
        at: Tick,
        receipt: &Receipt,
        back: u64,
    ) -> SlidingCounterState {
        if state.carried().is_some_and(|carried| carried.outdates(receipt)) {
            return state.clone();
        }
        let mut next = self.rolled(state, at);
        let window = self.index(receipt.act);
        if receipt.act > at {
            let Some(more) = &mut next.more else { return state.clone() };
            let promise = more.promises.iter().position(|promise| promise.act >= receipt.act);
            let Some(found) = promise.filter(|at| self.index(more.promises[*at].act) == window) else {
                return state.clone();
            };
            more.promises[found].units = more.promises[found].units.saturating_sub(back);
            if more.promises[found].units == 0 {
                more.promises.remove(found);
            }
            let (promises, carried) = (std::mem::take(&mut more.promises), more.carried);
            self.keep(&mut next, promises, carried);
            return next;
        }
        match self.index(at) - window {
            0 => next.current = next.current.saturating_sub(back),
            1 => next.previous = next.previous.saturating_sub(back),
            _ => return state.clone(),
        }
        next
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

/// The state of [`SlidingCounter`] for one key, 32 bytes: two counts and a tick. On the heap,
/// 16 bytes for each promise ahead, at most 4,096 of them, and 48 while there is one or a change of parameters matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingCounterState {
    /// The tick of the last change. The window in which it lies is the current one.
    last: Tick,
    previous: u64,
    current: u64,
    more: Option<Box<More>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct More {
    /// Units that act after `last`, in order; no new charge acts before the latest of them.
    promises: Vec<Promise>,
    carried: Option<Carried>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promise {
    act: Tick,
    units: u64,
}

impl SlidingCounterState {
    const LARGEST: usize = 3 * 8 + Carried::LARGEST + 8 + AHEAD_IN_ENGINE * 16;

    fn promises(&self) -> &[Promise] {
        self.more.as_ref().map_or(&[], |more| &more.promises)
    }

    fn carried(&self) -> Option<Carried> {
        self.more.as_ref().and_then(|more| more.carried)
    }

    /// Returns the first tick, not before `at`, at which a new charge overtakes no promise.
    fn open_from(&self, at: Tick) -> Tick {
        self.promises().last().map_or(at, |latest| latest.act.max(at))
    }

    /// Returns the wait until there is room for one more promise, to act at `place`; zero if there is.
    fn room(&self, at: Tick, place: u128) -> Duration {
        let promises = self.promises();
        if promises.len() < AHEAD || promises.last().is_none_or(|latest| wide(latest.act) >= place) {
            return Duration::ZERO;
        }
        let ahead = &promises[promises.partition_point(|promise| promise.act <= at)..];
        ahead.len().checked_sub(AHEAD).map_or(Duration::ZERO, |many| ahead[many].act.since(at))
    }
}

impl Bytes for SlidingCounterState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u64(self.previous);
        out.u64(self.current);
        self.carried().write(out);
        out.u64(self.promises().len() as u64);
        for promise in self.promises() {
            out.tick(promise.act);
            out.u64(promise.units);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, previous, current) = (from.tick()?, from.u64()?, from.u64()?);
        if previous.max(current) > MOST_UNITS {
            return Err(DecodeError::Value { field: "count" });
        }
        let (carried, count) = (Option::<Carried>::read(from)?, from.u64()?);
        if count > AHEAD as u64 {
            return Err(DecodeError::Value { field: "promises" });
        }
        let (mut promises, mut latest): (Vec<Promise>, _) = (Vec::new(), last);
        for _ in 0..count {
            let promise = Promise { act: from.tick()?, units: from.u64()? };
            if promise.act <= latest || promise.units == 0 || promise.units > MOST_UNITS {
                return Err(DecodeError::Value { field: "promises" });
            }
            latest = promise.act;
            promises.push(promise);
        }
        let more = count > 0 || carried.is_some();
        Ok(Self { last, previous, current, more: more.then(|| Box::new(More { promises, carried })) })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::decision::Cost;
    use crate::rate::timeline;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = SlidingCounter::new(Rate::new(10, Duration::from_secs(1)).unwrap());
        let rows = [
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
        ];
        timeline::holds(&limit, &rows);
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
        assert_eq!(limit.settle(&ahead, ms(500), &receipt, 0), three);
    }

    #[test]
    fn a_charge_of_the_window_before_gives_back_there() {
        let limit = SlidingCounter::new(Rate::new(10, Duration::from_secs(1)).unwrap());
        let charge = |state: &SlidingCounterState, at, units| {
            let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("any wait")
            };
            (next, receipt)
        };
        let (one, first) = charge(&limit.fresh(ms(0)), 600, 8);
        let (two, second) = charge(&one, 1500, 2);
        let left = |state: &SlidingCounterState, at| limit.standing(state, ms(at)).remaining;
        assert_eq!(left(&two, 1500), 4, "8 · 0.5 and 2");
        assert_eq!(left(&limit.settle(&two, ms(1500), &first, 0), 1500), 8);
        assert_eq!(left(&limit.settle(&two, ms(1500), &first, 4), 1500), 6);
        assert_eq!(left(&limit.settle(&two, ms(2000), &first, 0), 2000), 8, "of two windows ago nothing");
        // Seven more units than charged: above the limit in this window, and they fade through the next.
        let debt = limit.settle(&two, ms(1500), &second, 9);
        assert_eq!((left(&debt, 1500), limit.standing(&debt, ms(1500)).debt), (0, 3));
        assert_eq!(left(&debt, 2500), 5);
        assert_eq!(charge(&debt, 1500, 10).1.act, ms(3000));
    }

    #[test]
    fn two_hundred_promises_are_undone_one_by_one() {
        let limit = SlidingCounter::new(Rate::new(1000, Duration::from_secs(1)).unwrap());
        let mut state = limit.fresh(ms(0));
        let mut receipts = Vec::new();
        for units in [1000; 2].into_iter().chain([1; 200]) {
            let ask = Ask::within(ms(0), Cost::new(units).unwrap(), Duration::MAX);
            let Transition::Allowed { next, receipt, .. } = limit.decide(&state, ask) else {
                panic!("any wait")
            };
            (state, _) = (next, receipts.push(receipt));
        }
        for receipt in receipts.iter().rev() {
            state = limit.settle(&state, ms(0), receipt, 0);
        }
        assert_eq!(limit.standing(&state, ms(0)).remaining, 1000);
    }

    #[test]
    fn a_span_of_one_window_sees_nearly_twice_the_limit_and_never_more() {
        let limit = SlidingCounter::new(Rate::new(100, Duration::from_secs(1)).unwrap());
        let ask = Ask::allow(ms(999), Cost::new(100).unwrap());
        let Transition::Allowed { next: mut state, .. } = limit.decide(&limit.fresh(ms(0)), ask) else {
            panic!("it is empty")
        };
        let mut spent = 100;
        for at in 1000..1999 {
            if let Transition::Allowed { next, .. } = limit.decide(&state, Ask::allow(ms(at), Cost::ONE)) {
                (state, spent) = (next, spent + 1);
            }
        }
        assert_eq!(spent, 199);
    }
}
