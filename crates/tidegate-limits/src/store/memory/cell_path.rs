//! Settles steps on cells, under the locks of all their lines: the slow path.
//!
//! It can settle any step: with new keys among several, waits, charges that end, limits that changed, and states that
//! do not fit a word. A cell becomes a word again as soon as its state fits one.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::rate::GcraWord;
use tidegate_core::{State, Tick};

use super::cache_line::{LockedLine, Seized};
use super::name::{Class, Name};
use super::table::{Both, Sought, Table, TablePlace};
use crate::store::{Cell, Settled, Step, settle};

/// The latest tick that the word of a wide state can hold, in the year 2407: the next number marks a seized slot.
const WIDE_LATEST: u64 = GcraWord::NONE - 1;

/// What is written into a slot.
#[derive(Debug)]
pub(super) struct SlotContent {
    pub(super) cell: Cell,
    pub(super) owner: u32,
    /// Whether the cell goes into the overflow even if a word could hold it: its quota holds for one step only, or it lay
    /// there before it was exported.
    pub(super) beside: bool,
}

impl Table {
    /// Settles any step: locks the lines of all its keys, converts their slots into cells, and back.
    pub(super) fn settle_cells(&self, step: &Step<'_>, keys: &[Sought]) -> Settled {
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
        let (settled, changed) = settle(step, &mut cells);
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
        settled
    }

    /// Turns the state of a seized slot into a cell.
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

    /// Makes a seized slot empty.
    pub(super) fn free(&self, both: &Both<'_>, place: TablePlace, seized: &mut Seized<'_>) {
        seized.rename(both.at(place), Name::EMPTY);
        seized.word = 0;
        self.mark(place);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}
