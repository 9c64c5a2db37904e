//! Changes a state in the overflow in place.
//!
//! A step over several keys locks the two lines of each. For one key that has a slot, it is enough to seize that slot.
//! A caller that changes only one key, such as a keyed breaker, need not copy its state first, because no other limit
//! can still refuse. For a breaker, these copies were most of the cost of a call.

use std::sync::Arc;

use tidegate_core::{Algorithm, Quota, State, Tick};

use super::MemoryStore;
use super::cache_line::Seized;
use super::cell_path::SlotContent;
use super::name::Class;
use super::table::{Both, Sought, Table, TablePlace};
use crate::store::{Cell, Charge, Ending, Op, Settled, Step, settle};

/// What happens to a key without a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It gets the state of a new key, which is then changed.
    Begins,
    /// The key is left without a state.
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
    /// Seizes the slot of a key in one line; `None` where the key has none there.
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

    /// Settles a step of one charge on a key that has a slot and a state that does not fit a word, neither now nor
    /// afterwards; otherwise returns `false` and does nothing.
    pub(super) fn settle_in_place(
        &self,
        step: &Step<'_>,
        charge: &Charge<'_>,
        key: Sought,
        settled: &mut Settled,
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
                (*settled, changed) = settle(step, &mut cells);
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
