//! The ledger: units spent, slot by slot, shared by the sliding log and the sliding window.
//!
//! The algorithm defines its slots by [`Slots`]: a tick for the log, a bucket for the window. A ledger is an ascending
//! list of slots with the units that act in each. Both algorithms decide by the same rule: *a cost may act at the
//! first tick, not before the last promise, at which the slots that have not ended leave room for it*.
//!
//! No promise ahead is forgotten: if the last ones are undone, those before them decide again. So a promise that
//! would fill a slot too many is refused, with the wait until a slot ends. A forgotten promise could only be kept as a
//! tick before which nothing acts, which no settlement could lower. Debts may fill at most 64 slots beyond those of a
//! window. Of more, the oldest count as one that lasts as long as the newest of them. `floor` is left by changes of
//! the parameters, and by states of versions that did forget: nothing acts before it.

use core::time::Duration;

use smallvec::SmallVec;

use super::exact::{AHEAD, AHEAD_IN_ENGINE, MOST_UNITS, above, excess, grant, share, until, wide};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::time::{Rate, Tick};

/// How an algorithm divides time into slots. The beginnings and the ends ascend with the slot.
pub(crate) trait Slots {
    /// The last tick of a slot.
    fn last_tick(&self, slot: u64) -> u128;
    /// The slot that a tick lies in.
    fn slot(&self, tick: Tick) -> u64;
    /// The first tick of a slot.
    fn begins(&self, slot: u64) -> u128;
    /// The first tick at which a slot no longer counts.
    fn ends(&self, slot: u64) -> u128;
    /// The most units that may count at once.
    fn limit(&self) -> u64;
    /// The most slots that count at once when the limit is kept.
    fn span(&self) -> usize;
}

/// Slots that debts may fill beyond those of a window: each charge copies the list, and who overspends that often
/// waits long anyway.
const MOST_DEBTS: usize = 64;

/// Returns the most slots that a ledger keeps: those of a window, of debts, and of promises, of which there may always
/// be a window's.
fn most(slots: &impl Slots) -> usize {
    let span = slots.span();
    span.saturating_add(MOST_DEBTS).saturating_add(span.max(AHEAD))
}

/// The units that act in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotUnits {
    slot: u64,
    units: u64,
}

/// The state of both sliding algorithms: 40 bytes, and 16 bytes per slot on the heap from the second slot on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    last: Tick,
    entries: SmallVec<[SlotUnits; 1]>,
    past: Option<Box<Past>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Past {
    /// Nothing acts before this tick; if it is [`Tick::MAX`], nothing acts any more.
    floor: Tick,
    carried: Option<Carried>,
}

impl Ledger {
    /// The size of the largest ledger of these slots in byte form, with promises for one window.
    pub(crate) fn largest(slots: &impl Slots) -> usize {
        let entries =
            slots.span().saturating_add(slots.span().max(AHEAD_IN_ENGINE)).saturating_add(MOST_DEBTS);
        (8 + 8 + Carried::LARGEST + 8_usize).saturating_add(entries.saturating_mul(16))
    }

    pub(crate) fn last(&self) -> Tick {
        self.last
    }

    pub(crate) fn fresh(now: Tick) -> Self {
        Self { last: now, entries: SmallVec::new(), past: None }
    }

    fn past(&self) -> Past {
        self.past.as_deref().copied().unwrap_or(Past { floor: Tick::EPOCH, carried: None })
    }

    fn keep(&mut self, slots: &impl Slots, past: Past) {
        let closes = past.floor > self.last || past.floor == Tick::MAX;
        let floor = if closes { past.floor } else { Tick::EPOCH };
        let carried = past.carried.filter(|carried| outlives(slots, *carried) > wide(self.last));
        self.past = (closes || carried.is_some()).then(|| Box::new(Past { floor, carried }));
    }

    /// Returns the floor. A floor at [`Tick::MAX`] stays closed even at that tick, which stands for every later one.
    fn closed_until(&self) -> u128 {
        let floor = self.past.as_ref().map_or(Tick::EPOCH, |past| past.floor);
        if floor == Tick::MAX { wide(Tick::MAX) + 1 } else { wide(floor) }
    }

    /// Returns the first tick, not before `at`, at which a new charge overtakes no promise.
    fn open_from(&self, slots: &impl Slots, at: Tick) -> u128 {
        let promised = self.entries.last().map_or(0, |entry| slots.begins(entry.slot));
        wide(at).max(self.closed_until()).max(promised)
    }

    pub(crate) fn decide(&self, slots: &impl Slots, ask: Ask) -> Transition<Self> {
        let units = ask.cost.units();
        let Some(room) = slots.limit().checked_sub(units) else { return Transition::NEVER };
        let at = ask.now.max(self.last);
        let mut place = self.open_from(slots, at);
        let mut counted = 0u64;
        for entry in self.entries.iter().rev() {
            counted = counted.saturating_add(entry.units);
            if counted > room {
                // Older slots have ended by then, and newer ones leave room.
                place = place.max(slots.ends(entry.slot));
                break;
            }
        }
        let (act, wait) = match grant(ask, at, place, self.room(slots, at, place)) {
            Ok(granted) => granted,
            Err(refused) => return refused,
        };
        let next = self.with(slots, at, act, units);
        Transition::Allowed {
            wait,
            next,
            receipt: Receipt { at, act, cost: ask.cost, mark: Receipt::mark(0, 0) },
        }
    }

    /// Returns the wait until the list has room for a promise at `place`; zero if it has.
    fn room(&self, slots: &impl Slots, at: Tick, place: u128) -> Duration {
        if place <= wide(at) || self.entries.len() < most(slots) {
            return Duration::ZERO;
        }
        let live = self.live(slots, wide(at));
        let joins = live.last().is_some_and(|newest| place < slots.begins(newest.slot.saturating_add(1)));
        let ends = live.len().checked_sub(most(slots)).filter(|_| !joins).map(|many| live[many].slot);
        ends.map_or(Duration::ZERO, |slot| until(at, slots.ends(slot)))
    }

    fn with(&self, slots: &impl Slots, at: Tick, act: Tick, units: u64) -> Self {
        let (live, slot) = (self.live(slots, wide(at)), slots.slot(act));
        let joins = live.last().is_some_and(|newest| newest.slot >= slot);
        let mut entries: SmallVec<[SlotUnits; 1]> = SmallVec::with_capacity(live.len() + usize::from(!joins));
        entries.extend_from_slice(live);
        match entries.last_mut() {
            Some(newest) if joins => newest.units = newest.units.saturating_add(units).min(MOST_UNITS),
            _ => entries.push(SlotUnits { slot, units }),
        }
        let mut next = Self { last: at, entries, past: None };
        if self.past.is_some() {
            next.keep(slots, self.past());
        }
        next
    }

    fn live(&self, slots: &impl Slots, at: u128) -> &[SlotUnits] {
        let ended = self.entries.partition_point(|entry| slots.ends(entry.slot) <= at);
        &self.entries[ended..]
    }

    /// Keeps the list within its bound, which only debts and changes of the parameters exceed. Promises fill no slot
    /// beyond it.
    fn forget(&mut self, most: usize) {
        let Some(many) = self.entries.len().checked_sub(most) else { return };
        let joined = self.entries.drain(..many).fold(0u64, |sum, entry| sum.saturating_add(entry.units));
        if let Some(oldest) = self.entries.first_mut() {
            oldest.units = oldest.units.saturating_add(joined).min(MOST_UNITS);
        }
    }

    fn drop_oldest(&mut self, slots: &impl Slots, count: usize) {
        if let Some(dropped) = count.checked_sub(1).and_then(|at| self.entries.get(at)) {
            self.raise_floor(slots.ends(dropped.slot));
            self.entries.drain(..count);
        }
    }

    fn raise_floor(&mut self, floor: u128) {
        let mut past = self.past();
        past.floor = past.floor.max(Tick::from_nanos(u64::try_from(floor).unwrap_or(u64::MAX)));
        self.past = Some(Box::new(past));
    }

    fn counted(&self, slots: &impl Slots, at: u128) -> u64 {
        self.live(slots, at).iter().fold(0, |sum, entry| sum.saturating_add(entry.units))
    }

    fn full(&self, slots: &impl Slots) -> u128 {
        self.closed_until().max(self.entries.last().map_or(0, |entry| slots.ends(entry.slot)))
    }

    pub(crate) fn standing(&self, slots: &impl Slots, now: Tick) -> Standing {
        let at = now.max(self.last);
        let limit = slots.limit();
        let open = self.open_from(slots, at);
        let counted = self.counted(slots, open);
        let remaining = if open == wide(at) { limit.saturating_sub(counted) } else { 0 };
        Standing { limit, remaining, debt: above(counted, limit), reset_after: until(at, self.full(slots)) }
    }

    pub(crate) fn full_at(&self, slots: &impl Slots) -> Option<Tick> {
        let outdated = self.past().carried.map_or(0, |carried| outlives(slots, carried));
        u64::try_from(self.full(slots).max(outdated)).ok().map(Tick::from_nanos)
    }

    pub(crate) fn settle(&self, slots: &impl Slots, now: Tick, receipt: &Receipt, used: u64) -> Self {
        let at = now.max(self.last);
        match receipt.cost.units().checked_sub(used) {
            Some(0) => self.clone(),
            Some(back) => self.give_back(slots, at, receipt, back),
            None => {
                let act = Tick::from_nanos(u64::try_from(self.open_from(slots, at)).unwrap_or(u64::MAX));
                let mut next = self.with(slots, at, act, excess(receipt, used));
                if act <= at {
                    next.forget(slots.span().saturating_add(MOST_DEBTS));
                }
                next
            }
        }
    }

    fn give_back(&self, slots: &impl Slots, at: Tick, receipt: &Receipt, back: u64) -> Self {
        let outdated = self.past().carried.is_some_and(|carried| carried.outdates(receipt));
        let slot = slots.slot(receipt.act);
        let found = self.entries.binary_search_by_key(&slot, |entry| entry.slot);
        let Some(found) = found.ok().filter(|_| !outdated && slots.ends(slot) > wide(at)) else {
            return self.clone();
        };
        let mut next = Self { last: at, ..self.clone() };
        let units = &mut next.entries[found].units;
        *units = units.saturating_sub(back);
        if *units == 0 {
            next.entries.remove(found);
        }
        next.keep(slots, self.past());
        next
    }

    /// Carries the ledger from one division of time into slots to another. An old slot counts as acting as late as it
    /// can. If there are more units than the new limit, the newest are kept: older ones decide nothing before the
    /// first of those ends. Units above the old limit are above the new one, too.
    pub(crate) fn carry(&self, old: &impl Slots, new: &impl Slots, now: Tick, how: Replace) -> Self {
        self.moved(old, new, now.max(self.last), Duration::ZERO, how)
    }

    /// Returns the ledger as it was at its last change, as if that had been at `to`, an earlier tick.
    pub(crate) fn set_back(&self, slots: &impl Slots, to: Tick) -> Self {
        self.moved(slots, slots, self.last, self.last.since(to), Replace::AsIs)
    }

    fn moved(&self, old: &impl Slots, new: &impl Slots, last: Tick, back: Duration, how: Replace) -> Self {
        let mut next = Self::fresh(last.before(back));
        let promised =
            self.entries.last().map_or(0, |newest| old.last_tick(newest.slot)).max(self.closed_until());
        let promised = Tick::from_nanos(u64::try_from(promised).unwrap_or(u64::MAX));
        let carried = Some(Carried::new(last, promised, self.past().carried));
        let floor = match self.past().floor {
            _ if how == Replace::Reset => Tick::EPOCH,
            Tick::MAX => Tick::MAX,
            floor => floor.before(back),
        };
        next.keep(new, Past { floor, carried });
        if how == Replace::Reset {
            return next;
        }
        let (mut sum, mut shared) = (0u64, 0);
        for SlotUnits { slot, units } in self.live(old, wide(last)) {
            let begins = old.begins(*slot);
            let acted = begins <= wide(last);
            // Units granted at once acted by the last change. A promise acts as its slot begins or, once a change has
            // put it between two edges, by the floor that this change left.
            let latest = begins.max(self.closed_until()).max(if acted { wide(self.last) } else { 0 });
            let tick = old.last_tick(*slot).min(latest);
            let mut units = *units;
            if acted && how == Replace::Proportional {
                // Takes the shares of running sums, so that rounding up happens once and not in every slot.
                sum = sum.saturating_add(units).min(Rate::MAX_COUNT);
                let running = share(sum, new.limit(), old.limit());
                (units, shared) = (running - shared, running);
            }
            let tick = Tick::from_nanos(u64::try_from(tick).unwrap_or(u64::MAX)).before(back);
            let slot = new.slot(tick);
            if !acted && new.begins(slot) < wide(tick) {
                // The slot alone would let a new charge overtake this promise.
                next.raise_floor(wide(tick));
            }
            match next.entries.last_mut() {
                Some(newest) if newest.slot >= slot => newest.units = newest.units.saturating_add(units),
                _ if units > 0 => next.entries.push(SlotUnits { slot, units }),
                _ => {}
            }
        }
        let debt = above(self.counted(old, self.open_from(old, last)), old.limit());
        next.keep_newest(new, debt);
        next.forget(most(new));
        next
    }

    /// Cuts the list to the newest units, at most the limit and a debt.
    fn keep_newest(&mut self, slots: &impl Slots, debt: u64) {
        let mut room = slots.limit().saturating_add(debt);
        for at in (0..self.entries.len()).rev() {
            let entry = &mut self.entries[at];
            if entry.units > room {
                entry.units = room;
                let cut = entry.slot;
                self.drop_oldest(slots, if room == 0 { at + 1 } else { at });
                self.raise_floor(slots.ends(cut));
                return;
            }
            room -= entry.units;
        }
    }
}

fn outlives(slots: &impl Slots, carried: Carried) -> u128 {
    slots.ends(slots.slot(carried.until()))
}

impl Bytes for Ledger {
    fn write(&self, out: &mut Writer) {
        let Past { floor, carried } = self.past();
        out.tick(self.last);
        out.tick(floor);
        carried.write(out);
        out.u64(self.entries.len() as u64);
        for entry in &self.entries {
            out.u64(entry.slot);
            out.u64(entry.units);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, floor, carried) = (from.tick()?, from.tick()?, Option::<Carried>::read(from)?);
        let past = (floor > Tick::EPOCH || carried.is_some()).then(|| Box::new(Past { floor, carried }));
        let count = from.u64()?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > from.left() / 16 {
            return Err(DecodeError::Short);
        }
        let mut entries: SmallVec<[SlotUnits; 1]> = SmallVec::with_capacity(count);
        for _ in 0..count {
            let entry = SlotUnits { slot: from.u64()?, units: from.u64()? };
            if entries.last().is_some_and(|newest| newest.slot >= entry.slot) {
                return Err(DecodeError::Value { field: "slot" });
            }
            if entry.units == 0 || entry.units > MOST_UNITS {
                return Err(DecodeError::Value { field: "units" });
            }
            entries.push(entry);
        }
        Ok(Self { last, entries, past })
    }
}

/// When the parameters last changed: 16 bytes. Receipts from before give nothing back, since their units may have been
/// scaled, cut or forgotten. It is kept only while such a receipt could still refer to a window that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    at: Tick,
    /// No charge made up to `at` acts later than this, or in a window that opens later than this.
    until: Tick,
}

impl Carried {
    pub(crate) const LARGEST: usize = 1 + 8 + 8;

    /// Makes the record of a change at `at`, where no earlier charge acts after `until`. The `earlier` change may
    /// have left later acts.
    pub(crate) fn new(at: Tick, until: Tick, earlier: Option<Self>) -> Self {
        Self { at, until: until.max(at).max(earlier.map_or(Tick::EPOCH, |earlier| earlier.until)) }
    }

    /// Says whether a charge was made before the change, or at the same tick.
    pub(crate) fn outdates(self, receipt: &Receipt) -> bool {
        receipt.at <= self.at
    }

    pub(crate) const fn shifted(self, by: i64) -> Self {
        Self { at: self.at.shifted(by), until: self.until.shifted(by) }
    }

    /// Reads what is behind the first byte of an optional change in byte form.
    pub(crate) fn read_some(first: u8, from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        match first {
            0 => Ok(None),
            1 => {
                let (at, until) = (from.tick()?, from.tick()?);
                let right = at <= until;
                right.then_some(Some(Self { at, until })).ok_or(DecodeError::Value { field: "carried" })
            }
            _ => Err(DecodeError::Value { field: "carried" }),
        }
    }

    /// Returns the tick after which charges made before the change no longer matter.
    pub(crate) const fn until(self) -> Tick {
        self.until
    }
}

impl Bytes for Option<Carried> {
    fn write(&self, out: &mut Writer) {
        out.u8(u8::from(self.is_some()));
        if let Some(carried) = self {
            out.tick(carried.at);
            out.tick(carried.until);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Carried::read_some(from.u8()?, from)
    }
}

/// Implements an algorithm for parameters that divide time into slots; the state is a ledger of these slots.
macro_rules! ledger_algorithm {
    ($params:ident, $state:ident) => {
        /// Every decision walks the slots in use, newest first, until it is clear whether the cost fits; an allowed
        /// charge copies them.
        impl Algorithm for $params {
            type State = $state;

            fn fresh(&self, now: Tick) -> $state {
                $state(Ledger::fresh(now))
            }

            fn decide(&self, state: &$state, ask: Ask) -> Transition<$state> {
                state.0.decide(self, ask).map($state)
            }

            fn standing(&self, state: &$state, now: Tick) -> Standing {
                state.0.standing(self, now)
            }

            /// Takes unused units out of the slot in which the charge acts (a tick of the log, a bucket of the
            /// window), as long as that slot counts. Exact, whatever was charged since. Units used beyond the charge
            /// act now, behind all promises.
            fn settle(&self, state: &$state, now: Tick, receipt: &Receipt, used: u64) -> $state {
                $state(state.0.settle(self, now, receipt, used))
            }

            fn carry(&self, old: &Self, state: &$state, now: Tick, how: Replace) -> $state {
                $state(state.0.carry(old, self, now, how))
            }

            fn full_at(&self, state: &$state) -> Option<Tick> {
                state.0.full_at(self)
            }
        }

        impl Storable for $params {
            type State = $state;

            fn last_change(&self, state: &$state) -> Option<Tick> {
                Some(state.0.last())
            }

            fn set_back(&self, state: &$state, to: Tick) -> $state {
                $state(state.0.set_back(self, to))
            }

            fn largest(&self) -> usize {
                Ledger::largest(self)
            }
        }

        impl Bytes for $state {
            fn write(&self, out: &mut Writer) {
                self.0.write(out);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ledger::read(from).map(Self)
            }
        }
    };
}

pub(super) use ledger_algorithm;
