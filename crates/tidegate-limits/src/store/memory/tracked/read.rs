//! Restores a store from the pieces that were handed out.

use std::mem;
use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::bytes::DecodeError;

use super::TrackedStore;
use super::recorder::{Recorder, Restored};
use crate::store::memory::cache_line::WAYS;
use crate::store::memory::cell_path::SlotContent;
use crate::store::memory::changed_slots::PER_WORD;
use crate::store::memory::changes::ReadSheet;
use crate::store::memory::export_form::{ExportedKey, RestoreError};
use crate::store::memory::table::{Both, Sought, Table, TablePlace};

/// A piece whose tick lies further ahead of the present than this was written by a fast clock; a smaller difference
/// comes from a short step back. Five minutes, the same bound for which a running store's time stands still.
const FAR: Duration = Duration::from_secs(300);

impl Recorder {
    /// Restores a piece, into a store of the same number of keys, under the same seed, which keeps keys in the same
    /// way. Call it with the latest piece first, so that what earlier pieces say of the same slots is skipped, and
    /// before the store settles its first step.
    ///
    /// `now` is the present. If the piece is from up to five minutes later than that, the store's time stands still
    /// until that tick. If it is from even later, the clock that wrote it was fast and has since been corrected. Then
    /// states are set back ([`Quota::set_back`](tidegate_core::Quota::set_back)): each key is as empty as it was, from
    /// `now` on.
    ///
    /// # Errors
    /// [`RestoreError`] for bytes that are damaged or not a piece, and [`RestoreError::Form`] for a store of another
    /// form. The store must not be used after an error.
    pub fn restore(&mut self, piece: &[u8], now: Tick) -> Result<(), RestoreError> {
        let number = self.restored.pieces;
        self.restored.pieces += 1;
        let mut sheet = ReadSheet::open(piece, number)?;
        let (table, time) = (&self.store.memory.shared.table, &self.store.memory.shared.time);
        if sheet.lines != table.lines.count() as u64 || sheet.full_keys != table.full_keys.is_some() {
            return Err(RestoreError::Form);
        }
        let set_back = sheet.tick > now.after(FAR);
        self.restored.latest = self.restored.latest.max(sheet.tick);
        self.restored.set_back |= set_back;
        let now = if set_back { now } else { time.hold(sheet.tick) };
        self.restored.seen.resize(self.handed_out.len(), 0);
        while let Some((slot, entry)) = sheet.next()? {
            let slot = usize::try_from(slot).ok().filter(|slot| *slot < table.slots());
            let slot = slot.ok_or(DecodeError::Value { field: "slot" })?;
            let place = TablePlace { line: slot / WAYS, slot: slot % WAYS };
            let (word, bit) = (slot / PER_WORD, 1 << (slot % PER_WORD));
            if self.restored.seen[word] & bit != 0 {
                continue;
            }
            self.restored.seen[word] |= bit;
            let Some(mut entry) = entry else { continue };
            self.handed_out[word] |= bit;
            if set_back && let Some(state) = entry.cell.quota.set_back(&entry.cell.state, now) {
                entry.cell.state = state;
            }
            let matters = entry.cell.full_at().is_none_or(|full| full > now);
            if matters && !table.put_at(place, entry, now) {
                return Err(DecodeError::Value { field: "fingerprint" }.into());
            }
        }
        Ok(())
    }

    /// Notes that all pieces are restored: their slots count as unchanged, unless states were set back. Returns the
    /// latest tick of any piece.
    pub fn all_restored(&mut self) -> Tick {
        let Restored { latest, set_back, .. } = mem::take(&mut self.restored);
        if !set_back {
            for word in self.marks().words() {
                self.marks().take(word);
            }
        }
        latest
    }

    /// Takes over the keys of another store under the same seed, which keeps keys in the same way and may have another
    /// number of keys. All of them count as changed.
    ///
    /// If there is less room than before, keys further from full stay, and keys over their limit before all others; the
    /// others are counted as evicted ([`Occupancy::evicted`](crate::store::Occupancy::evicted)).
    ///
    /// # Errors
    /// [`RestoreError::Form`] if the other store keeps keys in another way, [`RestoreError::Seed`] if it has another
    /// seed.
    pub fn take_over(&mut self, other: &TrackedStore) -> Result<(), RestoreError> {
        let (table, from) = (self.store.table(), other.table());
        if table.keep() != from.keep() {
            return Err(RestoreError::Form);
        }
        if table.probe() != from.probe() {
            return Err(RestoreError::Seed);
        }
        let latest = || other.memory.shared.time.latest();
        let now = self.store.memory.shared.time.hold(latest());
        for line in 0..from.lines.count() {
            for entry in from.entries_of(line, latest) {
                table.put(entry, now);
            }
        }
        Ok(())
    }
}

impl Table {
    /// Puts a key into an empty slot, unless it has another slot already. Returns `false`, and changes nothing, if the
    /// key cannot have that slot.
    fn put_at(&self, place: TablePlace, entry: ExportedKey, now: Tick) -> bool {
        let key = Sought::of_parts(entry.fingerprint, entry.full_key);
        let [low, high] = self.lines_of(key);
        if place.line != low && place.line != high {
            return false;
        }
        let (first, second) = (self.line(low).lock(), self.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        // If the key has a place already, it had moved there, and the later piece about its old slot was not stored.
        if self.place(&both, key).is_none() {
            let mut seized = both.at(place).seize(place.slot);
            self.vacate(place, &seized);
            let content = SlotContent { cell: entry.cell, owner: entry.owner, beside: entry.beside };
            self.write(&both, place, &mut seized, key, content, now);
        }
        true
    }
}
