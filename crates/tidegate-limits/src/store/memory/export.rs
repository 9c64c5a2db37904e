//! Exports a table as bytes while checks go on, and restores a table from them.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::{State, Tick};

use super::MemoryStore;
use super::cache_line::WAYS;
use super::cell_path::SlotContent;
use super::export_form::{Entries, ExportedKey, Piece, PieceContent, RestoreError, read};
use super::name::{Class, Name};
use super::table::{Both, Keep, Sought, Table, TablePlace};
use crate::store::Cell;

/// A piece ends after the line with which it reaches this size, in bytes.
const ENOUGH: usize = 64 << 10;

/// An exported table, piece by piece; see [`MemoryStore::export`].
///
/// Each piece is made when it is asked for: at most 64 KiB and the states of one line.
#[derive(Debug)]
pub struct Export<'s> {
    store: &'s MemoryStore,
    number: u64,
    entries: u64,
    /// The next line; `None` before the first piece.
    line: Option<usize>,
    done: bool,
}

impl MemoryStore {
    /// Exports the table as bytes, which [`MemoryStore::restore`] reads under the same seed: all keys whose limits are
    /// not full again, with their notes of resets and of charges ended out of order, and the states in the overflow.
    /// Returns `None` for a store whose seed no other process can have ([`MemoryStore::with_seed`]).
    ///
    /// The export is made while checks go on. It locks one line of four keys at a time, for as long as it takes to copy
    /// them. So each key is consistent, and at least as new as when the export began; of two keys charged in one step,
    /// one may be from before that step and one from after it. A key that was evicted and came again while the export
    /// was under way may be missing, or be there twice; the later entry counts.
    ///
    /// The bytes do not contain the seed. They contain fingerprints and, in a store of full keys, keys of up to 15
    /// bytes as they are: store them only where the keys themselves may be stored. About 90 bytes a key.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::store::{Charge, MemoryStore, Op, Seed, Step};
    /// use tidegate::{Cost, Quota, Tick};
    ///
    /// let seed = Seed::random();
    /// let store = MemoryStore::with_seed(1000, &seed)?;
    /// let once = Arc::new(Quota::per_hour(1).gcra()?);
    /// let charges = [Charge::new(b"ann", &once, Cost::ONE)];
    /// let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    /// assert!(store.settle(&step)?.allowed);
    ///
    /// let pieces: Vec<Vec<u8>> = store.export().into_iter().flatten().collect();
    /// let next = MemoryStore::restore(5000, &seed, &pieces)?;
    /// assert!(!next.settle(&step)?.allowed, "spent is spent");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn export(&self) -> Option<Export<'_>> {
        self.shared.table.low_bits.as_ref()?;
        Some(Export { store: self, number: 0, entries: 0, line: None, done: false })
    }

    /// Restores an exported store, with room for `keys` live keys, 1 to [`MemoryStore::MAX_KEYS`]. The new store keeps
    /// keys as the exported one did: in full or as fingerprints.
    ///
    /// If there is less room than before, keys further from full stay, and keys over their limit before all others;
    /// keys that are dropped are counted as evicted ([`super::super::Occupancy::evicted`]). Time goes on from the
    /// latest tick that the exported store had seen: the clock of this process should not be behind that. Owners are
    /// numbers of policies; they should mean the same policies as before.
    ///
    /// # Errors
    /// [`RestoreError`] if pieces are missing, cut, altered, out of order, or made under another seed. An export
    /// without its last piece is an error too, because the keys in it would be full again. So is a number of keys for
    /// which no table can be made.
    pub fn restore<P: AsRef<[u8]>>(
        keys: usize,
        seed: &super::Seed,
        pieces: impl IntoIterator<Item = P>,
    ) -> Result<Self, RestoreError> {
        let mut restored: Option<(Self, Tick)> = None;
        let mut entries = 0;
        let mut number = 0;
        let mut last = None;
        for piece in pieces {
            if last.is_some() {
                return Err(RestoreError::Missing { piece: number });
            }
            match (read(piece.as_ref(), number)?, &restored) {
                (PieceContent::First { full_keys, probe, tick }, None) => {
                    let keep = if full_keys { Keep::Keys } else { Keep::Fingerprints };
                    let store = Self::made(keys, |keys| Table::seeded(keys, keep, seed))?;
                    if store.shared.table.probe() != probe {
                        return Err(RestoreError::Seed);
                    }
                    restored = Some((store, Tick::from_nanos(tick)));
                }
                (PieceContent::Entries(bytes), Some((store, now))) => {
                    let table = &store.shared.table;
                    for entry in (Entries { bytes, full_keys: table.keep() == Keep::Keys }) {
                        table.put(entry?, *now);
                        entries += 1;
                    }
                }
                (PieceContent::Last { entries: all, tick }, Some(_)) => last = Some((all, tick)),
                _ => return Err(RestoreError::Missing { piece: number }),
            }
            number += 1;
        }
        let cut = RestoreError::Missing { piece: number };
        let Some(((store, _), (all, tick))) = restored.zip(last) else { return Err(cut) };
        if all != entries {
            return Err(cut);
        }
        store.shared.time.hold(Tick::from_nanos(tick));
        Ok(store)
    }
}

impl Iterator for Export<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.done {
            return None;
        }
        let (table, time) = (&self.store.shared.table, &self.store.shared.time);
        let number = self.number;
        self.number += 1;
        let Some(from) = self.line else {
            self.line = Some(0);
            let full_keys = table.keep() == Keep::Keys;
            return Some(Piece::first(full_keys, table.probe(), time.latest().as_nanos()));
        };
        let mut piece = Piece::entries(number);
        let empty = piece.len();
        let mut line = from;
        while line < table.lines.count() && piece.len() < ENOUGH {
            for entry in table.entries_of(line, || time.latest()) {
                piece.push(&entry);
                self.entries += 1;
            }
            line += 1;
        }
        self.line = Some(line);
        if piece.len() > empty {
            return Some(piece.finish());
        }
        self.done = true;
        Some(Piece::last(number, self.entries, time.latest().as_nanos()))
    }
}

impl Table {
    /// Copies the keys of a line whose limits are not full again.
    pub(super) fn entries_of(&self, line: usize, latest: impl Fn() -> Tick) -> SmallVec<[ExportedKey; WAYS]> {
        let held = self.line(line).lock();
        let mut entries = SmallVec::new();
        for slot in 0..WAYS {
            let name = held.name(slot);
            if name == Name::EMPTY {
                continue;
            }
            let seized = held.seize(slot);
            // Read while the slot is seized: its former holder wrote at no later tick.
            let now = latest();
            let beside = name.class() == Class::WIDE;
            let copied = match self.classes.get(name.class()) {
                None => self.overflow.with(line, slot, |cell, owner| (cell.clone(), owner)),
                Some(limit) => limit.quota().map(|quota| {
                    let state = State::Gcra(limit.form().widen(seized.word, now));
                    (Cell::new(quota, state), limit.owner())
                }),
            };
            drop(seized);
            let place = TablePlace { line, slot };
            let live = copied.filter(|(cell, _)| cell.full_at().is_none_or(|full| full > now));
            entries.extend(live.map(|(cell, owner)| ExportedKey {
                fingerprint: self.fingerprint_of(place, name),
                full_key: self.full_keys.as_ref().map(|full_keys| full_keys.at(line, slot)),
                owner,
                beside,
                cell,
            }));
        }
        entries
    }

    /// Puts an exported key into the table, replacing its present state if it has one.
    pub(super) fn put(&self, entry: ExportedKey, now: Tick) {
        let key = Sought::of_parts(entry.fingerprint, entry.full_key);
        let [low, high] = self.lines_of(key);
        let (first, second) = (self.line(low).lock(), self.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        let known = self.place(&both, key).map(|place| {
            let seized = both.at(place).seize(place.slot);
            if seized.name().class() == Class::WIDE {
                self.overflow.take(place.line, place.slot);
            }
            (place, seized)
        });
        let rank = Some(super::eviction::rank(&entry.cell, now));
        let slot = known.or_else(|| self.claim(&both, key, entry.owner, now, None, rank));
        if let Some((place, mut seized)) = slot {
            let content = SlotContent { cell: entry.cell, owner: entry.owner, beside: entry.beside };
            self.write(&both, place, &mut seized, key, content, now);
        }
    }

    pub(super) fn fingerprint_of(&self, place: TablePlace, name: Name) -> u64 {
        // Relaxed: written and read under the lock of the line.
        let low = self
            .low_bits
            .as_ref()
            .map_or(0, |low| low[place.line * WAYS + place.slot].load(Ordering::Relaxed));
        name.tag() | u64::from(low)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
