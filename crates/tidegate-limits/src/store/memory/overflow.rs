//! Keeps the states that do not fit a word: it has a place for a whole cell for each slot of the table.
//!
//! Cells lie in small groups, each with its own lock, at places that belong to the table's slots: so there is no
//! search, and nothing large is ever moved, however many cells there are. Nothing is allocated before the first cell
//! comes.

use std::sync::OnceLock;

use parking_lot::Mutex;

use super::cache_line::WAYS;
use crate::store::Cell;

/// The number of lines in a group: a group's cells, 32 of 64 bytes, are allocated together.
const LINES: usize = 8;

/// Cells, each with the owner of its key.
type Group = Mutex<Vec<Option<(Cell, u32)>>>;

#[derive(Debug)]
pub(super) struct Overflow {
    lines: usize,
    groups: OnceLock<Box<[Group]>>,
}

impl Overflow {
    pub(super) const fn new(lines: usize) -> Self {
        Self { lines, groups: OnceLock::new() }
    }

    /// Takes the cell of a seized slot.
    pub(super) fn take(&self, line: usize, slot: usize) -> Option<Cell> {
        let mut group = self.groups.get()?[line / LINES].lock();
        group.get_mut(line % LINES * WAYS + slot)?.take().map(|(cell, _)| cell)
    }

    /// Puts a cell into the place of a slot, with the owner of its key.
    pub(super) fn put(&self, line: usize, slot: usize, cell: Cell, owner: u32) {
        let make = || (0..self.lines.div_ceil(LINES)).map(|_| Group::default()).collect();
        let mut group = self.groups.get_or_init(make)[line / LINES].lock();
        if group.is_empty() {
            group.resize(LINES * WAYS, None);
        }
        group[line % LINES * WAYS + slot] = Some((cell, owner));
    }

    /// Changes the cell of a seized slot, and the owner of its key, in place.
    pub(super) fn change<R>(
        &self,
        line: usize,
        slot: usize,
        change: impl FnOnce(&mut Option<(Cell, u32)>) -> R,
    ) -> Option<R> {
        let mut group = self.groups.get()?[line / LINES].lock();
        group.get_mut(line % LINES * WAYS + slot).map(change)
    }

    /// Passes the cell of a slot and the owner of its key to `look`.
    pub(super) fn with<R>(&self, line: usize, slot: usize, look: impl FnOnce(&Cell, u32) -> R) -> Option<R> {
        let group = self.groups.get()?[line / LINES].lock();
        group.get(line % LINES * WAYS + slot)?.as_ref().map(|(cell, owner)| look(cell, *owner))
    }

    /// Returns how many cells there are.
    #[cfg(all(test, not(tidegate_loom)))]
    pub(super) fn kept(&self) -> usize {
        let groups = self.groups.get().into_iter().flatten();
        groups.map(|group| group.lock().iter().flatten().count()).sum()
    }
}
