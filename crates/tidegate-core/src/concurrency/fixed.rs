//! A bulkhead of fixed size: work takes a place when it enters and returns it when it leaves.
//!
//! A refusal cannot say when the same ask would pass. A holder that never comes back would keep its place for ever:
//! where holders can be lost, places have a time to live, after which they lapse. Without a time to live the state is
//! one number; with it, it holds the number of places in use for each tick at which places lapse. That tick is also in
//! the receipt, so a lapsed place cannot be returned. The tick is rounded up, by less than a thousandth of the time to
//! live, so that many places share few ticks.

use core::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Storable;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::guard::{Guard, Outcome};
use crate::time::{Rate, Tick, nanos};

/// A bulkhead: at most `max` places in use at once.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::Concurrency;
/// use tidegate_core::{Ask, Cost, Guard, Outcome, Retry, Tick, Transition};
///
/// let guard = Concurrency::new(1)?.ttl(Duration::from_secs(30))?;
/// let ask = |secs| Ask::allow(Tick::from_secs(secs), Cost::ONE);
/// let Transition::Allowed { next: busy, receipt, .. } = guard.enter(&guard.fresh(Tick::EPOCH), ask(0)) else { panic!() };
///
/// assert_eq!(guard.enter(&busy, ask(29)), Transition::Denied { retry: Retry::Unknown });
/// assert!(matches!(guard.enter(&busy, ask(30)), Transition::Allowed { .. }), "the place has lapsed");
///
/// let left = guard.leave(&busy, Tick::from_secs(1), &receipt, Outcome::Success);
/// assert!(matches!(guard.enter(&left, ask(1)), Transition::Allowed { .. }));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    max: u64,
    /// In nanoseconds; `u64::MAX` if places do not lapse.
    ttl: u64,
}

/// The state of [`Concurrency`] for one key: 40 bytes, and on the heap, from the second distinct tick at which places
/// lapse, 16 bytes for each tick. With one time to live there are at most 2,501 ticks, 40 KiB, and never more than
/// places in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyState {
    /// Receipts from before this tick find no place: the key was reset, or was not known then.
    since: Tick,
    last: Tick,
    /// The places in use, ascending by the tick at which they lapse; [`Tick::MAX`] means never.
    taken: SmallVec<[Taken; 1]>,
}

/// Places that lapse at the same tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    until: Tick,
    places: u64,
}

impl Concurrency {
    /// The largest number of places, 65,536. It bounds the size of one key to 40 KiB (1 MiB if the time to live is
    /// changed over and over while places are in use); each change copies the key's list.
    pub const MAX_PLACES: u64 = 1 << 16;

    /// Makes a guard of `max` places, 1 to [`Concurrency::MAX_PLACES`], which do not lapse: for holders that cannot
    /// be lost, as within one process.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range.
    pub fn new(max: u64) -> Result<Self, QuotaError> {
        if max == 0 || max > Self::MAX_PLACES {
            let want = "is not a number of places; use 1 to 65536";
            return Err(QuotaError::Parameter { name: "max", value: max.to_string(), want });
        }
        Ok(Self { max, ttl: u64::MAX })
    }

    /// Sets the time to live of a place whose holder never comes back, 1 ns to [`Rate::MAX_PERIOD`]: longer than any
    /// work takes, since work that outlives its place runs beside the work that got the place next. A place never
    /// lapses early, and late by less than a thousandth of this.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn ttl(self, ttl: Duration) -> Result<Self, QuotaError> {
        if ttl.is_zero() || ttl > Rate::MAX_PERIOD {
            let want = "is not a time to live; use 1 ns to 146 years";
            return Err(QuotaError::Parameter { name: "ttl", value: format!("{ttl:?}"), want });
        }
        Ok(Self { ttl: nanos(ttl), ..self })
    }

    pub(crate) fn resized(self, max: u64) -> Self {
        Self { max: max.clamp(1, Self::MAX_PLACES), ..self }
    }

    /// Returns how many places there are.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the time to live of a place; `None` where places do not lapse.
    #[must_use]
    pub const fn time_to_live(&self) -> Option<Duration> {
        match self.ttl {
            u64::MAX => None,
            ttl => Some(Duration::from_nanos(ttl)),
        }
    }

    /// Returns when a place taken at `at` lapses, a multiple of [`step`]; [`Tick::MAX`] means never.
    fn lapses(&self, at: Tick) -> Tick {
        let until = at.after(Duration::from_nanos(self.ttl)).as_nanos();
        let step = step(self.ttl);
        Tick::from_nanos(until.div_ceil(step).saturating_mul(step))
    }
}

/// Returns the largest of 1, 2 and 5 times the powers of ten that is at most a thousandth of `ttl`, and at least 1.
fn step(ttl: u64) -> u64 {
    let most = (ttl / 1000).max(1);
    let tens = 10u64.pow(most.ilog10());
    match most / tens {
        1 => tens,
        2..5 => 2 * tens,
        _ => 5 * tens,
    }
}

impl ConcurrencyState {
    fn live(&self, at: Tick) -> &[Taken] {
        let lapsed = self.taken.partition_point(|taken| taken.until <= at && taken.until != Tick::MAX);
        &self.taken[lapsed..]
    }

    pub(super) const fn last(&self) -> Tick {
        self.last
    }

    pub(super) fn in_use(&self, at: Tick) -> u64 {
        self.live(at).iter().fold(0, |sum, taken| sum.saturating_add(taken.places))
    }

    /// Returns the state without the places of a receipt; `None` if they are not there, because they lapsed or were
    /// forgotten.
    pub(super) fn without(&self, at: Tick, receipt: &Receipt) -> Option<Self> {
        let until = u64::try_from(receipt.marks().0).map(Tick::from_nanos).ok()?;
        let live = self.live(at);
        let found = live.binary_search_by_key(&until, |taken| taken.until).ok()?;
        if receipt.at < self.since {
            return None;
        }
        let mut taken: SmallVec<[Taken; 1]> = SmallVec::from_slice(live);
        taken[found].places = taken[found].places.saturating_sub(receipt.cost.units());
        if taken[found].places == 0 {
            taken.remove(found);
        }
        Some(Self { since: self.since, last: at, taken })
    }

    /// Returns the state in which the places of a receipt lapse at `until`, if that is later, and the tick at which they
    /// do; `None` if they are not there.
    pub(super) fn extended(&self, at: Tick, receipt: &Receipt, until: Tick) -> Option<(Self, Tick)> {
        let (held, places) =
            (u64::try_from(receipt.marks().0).map(Tick::from_nanos).ok()?, receipt.cost.units());
        let all = self.live(at).iter().any(|taken| taken.until == held && taken.places >= places);
        let until = until.max(held);
        all.then(|| self.without(at, receipt)).flatten().map(|left| (left.with(at, until, places), until))
    }

    fn with(&self, at: Tick, until: Tick, places: u64) -> Self {
        let live = self.live(at);
        // Search before copying: a vector with room for one more entry would move a state of a single tick, the usual
        // one, to the heap.
        let taken = match live.binary_search_by_key(&until, |taken| taken.until) {
            Ok(found) => {
                let mut taken: SmallVec<[Taken; 1]> = SmallVec::from_slice(live);
                taken[found].places = taken[found].places.saturating_add(places);
                taken
            }
            // A time to live that was shortened puts new places before old ones.
            Err(behind) => {
                let mut taken = SmallVec::with_capacity(live.len() + 1);
                taken.extend_from_slice(&live[..behind]);
                taken.push(Taken { until, places });
                taken.extend_from_slice(&live[behind..]);
                taken
            }
        };
        Self { since: self.since, last: at, taken }
    }
}

impl Storable for Concurrency {
    type State = ConcurrencyState;

    fn last_change(&self, state: &ConcurrencyState) -> Option<Tick> {
        Some(state.last)
    }

    /// Caps every lapse at that of a place taken at `to`. A place whose tick changes by this can no longer be
    /// returned; it lapses.
    fn set_back(&self, state: &ConcurrencyState, to: Tick) -> ConcurrencyState {
        let latest = self.lapses(to);
        let mut next = ConcurrencyState { since: state.since.min(to), last: to, taken: SmallVec::new() };
        for Taken { until, places } in state.live(state.last).iter().copied() {
            let until = if until == Tick::MAX { until } else { until.min(latest) };
            match next.taken.last_mut() {
                Some(last) if last.until == until => last.places = last.places.saturating_add(places),
                _ => next.taken.push(Taken { until, places }),
            }
        }
        next
    }

    fn largest(&self) -> usize {
        // Places lapse at multiples of a step, all within a time to live and a step from now.
        let ticks = match self.ttl {
            u64::MAX => 1,
            ttl => ttl.div_ceil(step(ttl)).saturating_add(1),
        };
        // At most 65,536.
        8 + 8 + 8 + 16 * ticks.min(self.max) as usize
    }
}

/// Reads walk the list of places; a change copies it.
impl Guard for Concurrency {
    type State = ConcurrencyState;

    fn fresh(&self, now: Tick) -> ConcurrencyState {
        ConcurrencyState { since: now, last: now, taken: SmallVec::new() }
    }

    /// Enters if `ask.cost` places are free, at once or not at all: ignores `max_wait`.
    fn enter(&self, state: &ConcurrencyState, ask: Ask) -> Transition<ConcurrencyState> {
        let places = ask.cost.units();
        let Some(room) = self.max.checked_sub(places) else { return Transition::NEVER };
        let at = ask.now.max(state.last);
        if state.in_use(at) > room {
            return Transition::Denied { retry: Retry::Unknown };
        }
        let until = self.lapses(at);
        let mark = Receipt::mark(u128::from(until.as_nanos()), 0);
        Transition::Allowed {
            wait: Duration::ZERO,
            next: state.with(at, until, places),
            receipt: Receipt { at, act: at, cost: ask.cost, mark },
        }
    }

    /// Returns the places of the receipt, whatever the outcome. If the place has lapsed, the state does not change.
    fn leave(&self, state: &ConcurrencyState, now: Tick, receipt: &Receipt, _: Outcome) -> ConcurrencyState {
        state.without(now.max(state.last), receipt).unwrap_or_else(|| state.clone())
    }

    /// The places lapse as if they had been taken now, or when they were due to if that is later, as after the time to
    /// live was shortened.
    fn extend(
        &self,
        state: &ConcurrencyState,
        now: Tick,
        receipt: &Receipt,
    ) -> Option<(ConcurrencyState, Receipt)> {
        let at = now.max(state.last);
        let (next, until) = state.extended(at, receipt, self.lapses(at))?;
        let mark = Receipt::mark(u128::from(until.as_nanos()), receipt.marks().1);
        Some((next, Receipt { mark, ..*receipt }))
    }

    /// `reset_after` is the time until the last place lapses, [`Duration::MAX`] if one never does. `debt` counts the
    /// places in use beyond the limit after the limit was lowered.
    fn standing(&self, state: &ConcurrencyState, now: Tick) -> Standing {
        let at = now.max(state.last);
        let in_use = state.in_use(at);
        let reset_after = match state.live(at).last() {
            None => Duration::ZERO,
            Some(Taken { until: Tick::MAX, .. }) => Duration::MAX,
            Some(last) => last.until.since(at),
        };
        Standing {
            limit: self.max,
            remaining: self.max.saturating_sub(in_use),
            debt: in_use.saturating_sub(self.max),
            reset_after,
        }
    }

    /// Work inside keeps its places, and they lapse when they were due to. `Proportional` is the same as `AsIs`. A
    /// lowered limit admits nothing until enough work has left. `Reset` forgets the work inside.
    fn carry(&self, _: &Self, state: &ConcurrencyState, now: Tick, how: Replace) -> ConcurrencyState {
        let at = now.max(state.last);
        match how {
            Replace::AsIs | Replace::Proportional => {
                ConcurrencyState { since: state.since, last: at, taken: SmallVec::from_slice(state.live(at)) }
            }
            // A nanosecond later, so that new work cannot enter at the tick of the work that was forgotten.
            Replace::Reset => self.fresh(at.after(Duration::from_nanos(1))),
        }
    }

    fn full_at(&self, state: &ConcurrencyState) -> Option<Tick> {
        match state.taken.last() {
            None => Some(state.last),
            Some(Taken { until: Tick::MAX, .. }) => None,
            Some(last) => Some(last.until.max(state.last)),
        }
    }
}

impl Bytes for Concurrency {
    fn write(&self, out: &mut Writer) {
        out.u64(self.max);
        out.u64(self.ttl);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (max, ttl) = (from.u64()?, from.u64()?);
        let forever = Self::new(max).map_err(|_| DecodeError::Value { field: "max" })?;
        match ttl {
            u64::MAX => Ok(forever),
            ttl => forever.ttl(Duration::from_nanos(ttl)).map_err(|_| DecodeError::Value { field: "ttl" }),
        }
    }
}

impl Bytes for ConcurrencyState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.since);
        out.tick(self.last);
        out.u64(self.taken.len() as u64);
        for taken in &self.taken {
            out.tick(taken.until);
            out.u64(taken.places);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (since, last, count) = (from.tick()?, from.tick()?, from.u64()?);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > from.left() / 16 {
            return Err(DecodeError::Short);
        }
        let (mut taken, mut sum) = (SmallVec::<[Taken; 1]>::with_capacity(count), 0u64);
        for _ in 0..count {
            let one = Taken { until: from.tick()?, places: from.u64()? };
            if taken.last().is_some_and(|newest| newest.until >= one.until) {
                return Err(DecodeError::Value { field: "until" });
            }
            sum = sum.saturating_add(one.places);
            // The largest limit bounds the sum of any valid state.
            if one.places == 0 || sum > Concurrency::MAX_PLACES {
                return Err(DecodeError::Value { field: "places" });
            }
            taken.push(one);
        }
        Ok(Self { since, last, taken })
    }
}

#[cfg(test)]
mod tests;
