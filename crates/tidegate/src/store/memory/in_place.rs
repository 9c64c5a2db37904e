//! Changes a state that lies beside the table where it is.
//!
//! A step copies a state before it changes it, because another limit of the step may still refuse. Whoever asks for one key alone can spare the
//! copy, which for a breaker is most of what a call costs.

use std::sync::Arc;

use tidegate_core::{Algorithm, Quota, Tick};

use super::MemoryStore;
use super::line::Seized;
use super::name::Class;
use super::table::{Both, Place, Sought, Table};
use crate::store::Cell;

/// What becomes of a key without a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is given the state of a new key, which is then changed.
    Begins,
    /// It is left as it is.
    Stays,
}

impl MemoryStore {
    /// Changes the cell of a key in place, and returns what `change` does; `None` where the key has none, and [stays](Absent::Stays) so.
    ///
    /// For a store whose keys are all under one `quota`, whose states never fit a word. The tick that `change` is told is not before `now`,
    /// nor before that of any earlier change. It runs while the key is held, so it must not call the store or anything that waits.
    pub(crate) fn change<R>(
        &self,
        key: &[u8],
        (quota, absent): (&Arc<Quota>, Absent),
        now: Tick,
        change: impl FnOnce(&mut Cell, Tick) -> R,
    ) -> Option<R> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        let now = time.hold(now);
        // Read again where the key is held: whoever held it before may have come with a later tick.
        let change = |cell: &mut Cell| change(cell, time.latest().max(now));
        let key = table.sought(table.print(key), key);
        for line in [table.first(key.print()), table.second(key.print())] {
            if let Some((place, seized)) = table.seize_known(line, key) {
                return Some(table.change_seized(place, seized, change));
            }
        }
        let [low, high] = table.lines_of(key);
        let (first, second) = (table.line(low).lock(), table.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        if let Some(place) = table.place(&both, key) {
            // Another thread has brought it meanwhile.
            return Some(table.change_seized(place, both.at(place).seize(place.slot), change));
        }
        if absent == Absent::Stays {
            return None;
        }
        let mut cell = Cell::new(Arc::clone(quota), quota.fresh(now));
        let result = change(&mut cell);
        if let Some((place, mut seized)) = table.claim(&both, key, 0, now, (None, None)) {
            table.write(&both, (place, &mut seized), key, (cell, 0, false), now);
        }
        Some(result)
    }
}

impl Table {
    /// Seizes the slot that a key has in one line; `None` where it has none there.
    fn seize_known(&self, line: usize, key: Sought) -> Option<(Place, Seized<'_>)> {
        let name = key.name(Class::WIDE);
        let (slot, _) = self.line(line).glance_key(name).filter(|(_, seen)| *seen == name)?;
        let (place, seized) = (Place { line, slot }, self.line(line).seize(slot));
        // The slot may have been given to another key before it was seized.
        (seized.name() == name && self.is(place, key)).then_some((place, seized))
    }

    /// Changes the cell of a seized slot, and notes in the slot when the cell is as good as none.
    fn change_seized<R>(
        &self,
        place: Place,
        mut seized: Seized<'_>,
        change: impl FnOnce(&mut Cell) -> R,
    ) -> R {
        let changed = self.overflow.change(place.line, place.slot, |cell| {
            let result = change(cell);
            seized.word = Self::wide_word(cell);
            result
        });
        self.mark(place);
        changed.expect("a slot without a limit's number has its cell in the overflow")
    }
}
