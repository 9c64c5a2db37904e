//! Executes steps on cells, under the locks of all their lines: the slow path.
//!
//! A cell becomes a word again as soon as its state fits one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::rate::GcraWord;
use tidegate_core::{Algorithm, Quota, State, Tick};

use super::MemoryStore;
use super::cache_line::{LockedLine, Seized};
use super::limit::{Class, Name};
use super::table::{Both, Sought, Table, TablePlace};
use crate::clock::HeldTime;
use crate::store::{Cell, Charge, Ending, Executed, Op, Step, execute};

/// The latest tick that the word of a wide state can hold, in the year 2407: the next number marks a seized slot.
const WIDE_LATEST: u64 = GcraWord::NONE - 1;

#[derive(Debug)]
pub(super) struct SlotContent {
    pub(super) cell: Cell,
    pub(super) owner: u32,
    /// Whether the cell goes into the overflow even if a word could hold it: its quota holds for one step only, or it
    /// lay there before it was exported.
    pub(super) beside: bool,
}

impl Table {
    pub(super) fn execute_cells(&self, step: &Step<'_>, keys: &[Sought], time: &HeldTime) -> Executed {
        let mut order: SmallVec<[usize; 8]> = keys.iter().flat_map(|key| self.lines_of(*key)).collect();
        order.sort_unstable();
        order.dedup();
        let locked: SmallVec<[LockedLine<'_>; 8]> =
            order.iter().map(|line| self.line(*line).lock()).collect();
        let held = |line: usize| {
            let at = order.binary_search(&line).expect("the lines of each key were put into the order above");
            (line, &locked[at])
        };
        let both = |key: Sought| Both { lines: self.lines_of(key).map(held) };
        let places: SmallVec<[Option<TablePlace>; 4]> =
            keys.iter().map(|key| self.place(&both(*key), *key)).collect();
        let mut in_order: SmallVec<[usize; 4]> = (0..keys.len()).filter(|at| places[*at].is_some()).collect();
        in_order.sort_unstable_by_key(|at| places[*at]);
        let mut hands: SmallVec<[Option<(TablePlace, Seized<'_>)>; 4]> = keys.iter().map(|_| None).collect();
        for at in in_order {
            hands[at] = places[at].map(|place| (place, held(place.line).1.seize(place.slot)));
        }
        let mut cells: SmallVec<[Option<Cell>; 4]> = hands
            .iter()
            .map(|hand| hand.as_ref().and_then(|(place, seized)| self.cell(*place, seized, step.now)))
            .collect();
        let (executed, changed) = execute(step, &mut cells);
        if changed {
            time.reach(step.now);
        }
        for (((key, cell), hand), charge) in keys.iter().zip(cells).zip(&mut hands).zip(step.charges) {
            let both = both(*key);
            match (cell, hand) {
                (None, None) => {}
                (None, Some((place, seized))) => self.free(&both, *place, seized),
                // Nothing has changed: a wide state goes back into the overflow; a word is still in its slot.
                (Some(cell), Some((place, seized))) if !changed => {
                    if seized.name().class() == Class::WIDE {
                        self.overflow.put(place.line, place.slot, cell, charge.rules.owner);
                    }
                }
                (Some(cell), hand) => {
                    if hand.is_none() {
                        *hand = self.claim(&both, *key, charge.rules.owner, step.now, None, None);
                    }
                    if let Some((place, seized)) = hand {
                        let content =
                            SlotContent { cell, owner: charge.rules.owner, beside: charge.inline_quota };
                        self.write(&both, *place, seized, *key, content, step.now);
                    }
                }
            }
        }
        executed
    }

    fn cell(&self, place: TablePlace, seized: &Seized<'_>, now: Tick) -> Option<Cell> {
        match self.classes.get(seized.name().class()) {
            None => self.overflow.take(place.line, place.slot),
            Some(limit) => {
                let state = State::Gcra(limit.form().widen(seized.word, now));
                // The quota is present: a number that a seized slot carries is not given to another limit.
                Some(Cell::new(limit.quota()?, state))
            }
        }
    }

    /// Writes a cell into a seized slot: as a word if it fits one and its quota holds for more than this step,
    /// otherwise into the overflow.
    pub(super) fn write(
        &self,
        both: &Both<'_>,
        place: TablePlace,
        seized: &mut Seized<'_>,
        key: Sought,
        content: SlotContent,
        now: Tick,
    ) {
        let SlotContent { cell, owner, beside } = content;
        let narrow = match &cell.state {
            State::Gcra(state) if cell.forgotten.is_none() && !beside => self
                .classes
                .of(&cell.quota, owner, now)
                .and_then(|limit| Some((limit.class(), limit.form().narrow(state, now)?))),
            _ => None,
        };
        let (class, word) = narrow.unwrap_or_else(|| (Class::WIDE, Self::wide_word(&cell)));
        if class == Class::WIDE {
            self.overflow.put(place.line, place.slot, cell, owner);
        }
        self.give(both, place, seized, key, class);
        seized.word = word;
    }

    /// Returns the word of a slot whose cell lies in the overflow: the tick from which the cell is equivalent to none.
    pub(super) fn wide_word(cell: &Cell) -> u64 {
        cell.full_at().unwrap_or(Tick::MAX).as_nanos().min(WIDE_LATEST)
    }

    pub(super) fn free(&self, both: &Both<'_>, place: TablePlace, seized: &mut Seized<'_>) {
        seized.rename(both.at(place), Name::EMPTY);
        seized.word = 0;
        self.mark(place);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

// Changes a state in the overflow in place.
//
// A step over several keys locks the two lines of each. For one key that has a slot, it is enough to seize that slot. A
// caller that changes only one key, such as a keyed breaker, need not copy its state first, because no other limit can
// still refuse. For a breaker, these copies were most of the cost of a call.

/// What happens to a key without a state: it gets that of a new key, which is then changed, or it is left without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    Begins,
    Stays,
}

impl MemoryStore {
    /// Changes the cell of a key in place, and returns the result of `change`; `None` where the key has no cell and
    /// [stays](Absent::Stays) without one.
    ///
    /// For a store whose keys are all under one `quota`, whose states never fit a word. The tick passed to `change` is
    /// not before `now`, nor before that of any earlier change. `change` runs while the key is locked, so it must not
    /// call the store or anything that waits.
    pub(crate) fn change<R>(
        &self,
        key: &[u8],
        quota: &Arc<Quota>,
        absent: Absent,
        now: Tick,
        change: impl FnOnce(&mut Cell, Tick) -> R,
    ) -> Option<R> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        let now = time.hold(now);
        // Time is read again while the key is held: its former holder may have come with a later tick.
        let change = |cell: &mut Cell| change(cell, time.latest().max(now));
        let key = table.sought(table.fingerprint(key), key);
        for line in [table.first(key.fingerprint()), table.second(key.fingerprint())] {
            if let Some((place, seized)) = table.seize_known(line, key) {
                return Some(table.change_seized(place, seized, change));
            }
        }
        let [low, high] = table.lines_of(key);
        let (first, second) = (table.line(low).lock(), table.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        if let Some(place) = table.place(&both, key) {
            // Another thread has added the key meanwhile.
            return Some(table.change_seized(place, both.at(place).seize(place.slot), change));
        }
        if absent == Absent::Stays {
            return None;
        }
        let mut cell = Cell::new(Arc::clone(quota), quota.fresh(now));
        let result = change(&mut cell);
        if let Some((place, mut seized)) = table.claim(&both, key, 0, now, None, None) {
            let content = SlotContent { cell, owner: 0, beside: false };
            table.write(&both, place, &mut seized, key, content, now);
        }
        Some(result)
    }
}

impl Table {
    fn seize_known(&self, line: usize, key: Sought) -> Option<(TablePlace, Seized<'_>)> {
        let name = key.name(Class::WIDE);
        let (slot, _) = self.line(line).glance_key(name).filter(|(_, seen)| *seen == name)?;
        let (place, seized) = (TablePlace { line, slot }, self.line(line).seize(slot));
        // The slot may have been given to another key before it was seized.
        (seized.name() == name && self.holds_key(place, key)).then_some((place, seized))
    }

    /// Changes the cell of a seized slot, and writes to the slot when the cell will be equivalent to none.
    fn change_seized<R>(
        &self,
        place: TablePlace,
        mut seized: Seized<'_>,
        change: impl FnOnce(&mut Cell) -> R,
    ) -> R {
        let changed = self.overflow.change(place.line, place.slot, |held| {
            held.as_mut().map(|(cell, _)| {
                let result = change(cell);
                seized.word = Self::wide_word(cell);
                result
            })
        });
        self.mark(place);
        changed.flatten().expect("a slot without a limit's number has its cell in the overflow")
    }

    /// Executes a step of one charge on a key that has a slot and a state that does not fit a word, neither now nor
    /// afterwards; otherwise returns `false` and does nothing.
    pub(super) fn execute_in_place(
        &self,
        step: &Step<'_>,
        charge: &Charge<'_>,
        key: Sought,
        time: &HeldTime,
        executed: &mut Executed,
    ) -> bool {
        let may_free = match step.op {
            Op::Take | Op::Draw | Op::Peek | Op::Breaker(_) => false,
            Op::Finish(endings) => matches!(endings.first(), Some(Ending::Forget)),
            Op::Reset => true,
        };
        if may_free || matches!(**charge.quota, Quota::Gcra(_)) {
            return false;
        }
        for line in [self.first(key.fingerprint()), self.second(key.fingerprint())] {
            let Some((place, mut seized)) = self.seize_known(line, key) else { continue };
            let changed = self.overflow.change(place.line, place.slot, |held| {
                let (cell, _) = held.take_if(|(cell, _)| !matches!(cell.state, State::Gcra(_)))?;
                let mut cells = [Some(cell)];
                let changed;
                (*executed, changed) = execute(step, &mut cells);
                if changed {
                    time.reach(step.now);
                }
                let [cell] = cells;
                if let (true, Some(cell)) = (changed, &cell) {
                    seized.word = Self::wide_word(cell);
                }
                *held = cell.map(|cell| (cell, charge.rules.owner));
                Some(changed)
            });
            let Some(changed) = changed.flatten() else { return false };
            if changed {
                self.mark(place);
            }
            return true;
        }
        false
    }
}
