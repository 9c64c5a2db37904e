//! Takes back what was handed out.

use std::mem;
use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::bytes::DecodeError;

use super::TrackedStore;
use super::recorder::{Recorder, Restored};
use crate::store::memory::changes::ReadSheet;
use crate::store::memory::line::WAYS;
use crate::store::memory::marks::PER_WORD;
use crate::store::memory::piece::{Entry, RestoreError};
use crate::store::memory::table::{Both, Place, Sought, Table};

/// Pieces whose ticks lie further ahead of the present were written by a clock that was fast, and not before a short step back: as far as a
/// running store's time stands still without more ado, five minutes.
const FAR: Duration = Duration::from_secs(300);

impl Recorder {
    /// Takes back a piece, into a store of the same number of keys, under the same seed, which keeps keys in the same way. To be called with
    /// the latest piece first, so that what earlier ones say of the same slots is passed over; and before the store settles its first step.
    ///
    /// `now` is the present. Where the piece is from later, by up to five minutes, time stands still until it is as late. Where it is from
    /// later than that, a clock was fast that has been set right since. States are then set back
    /// ([`Quota::set_back`](tidegate_core::Quota::set_back)): each key is as empty as it was, from now on.
    ///
    /// # Errors
    /// [`RestoreError`] for bytes that are damaged or are none of these, and [`RestoreError::Form`] for a store of another form. The store
    /// is then of no use.
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
        self.restored.seen.resize(self.told.len(), 0);
        while let Some((slot, entry)) = sheet.next()? {
            let slot = usize::try_from(slot).ok().filter(|slot| *slot < table.slots());
            let slot = slot.ok_or(DecodeError::Value { field: "slot" })?;
            let place = Place { line: slot / WAYS, slot: slot % WAYS };
            let (word, bit) = (slot / PER_WORD, 1 << (slot % PER_WORD));
            if self.restored.seen[word] & bit != 0 {
                continue;
            }
            self.restored.seen[word] |= bit;
            let Some(mut entry) = entry else { continue };
            self.told[word] |= bit;
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

    /// Takes note that all pieces are restored: of what they said, nothing has changed, unless states were set back. Returns the latest tick
    /// that a piece was from.
    pub fn all_restored(&mut self) -> Tick {
        let Restored { latest, set_back, .. } = mem::take(&mut self.restored);
        if !set_back {
            for word in self.marks().words() {
                self.marks().take(word);
            }
        }
        latest
    }

    /// Takes over the keys of another store under the same seed, of any number of keys, which keeps keys in the same way. All of them count
    /// as changed.
    ///
    /// Where there is less room than there was, keys further from full stay, and those over their limit before all others; the others are
    /// counted ([`Occupancy::evicted`](crate::store::Occupancy::evicted)).
    ///
    /// # Errors
    /// [`RestoreError::Form`] where the other store keeps keys in another way, [`RestoreError::Seed`] where it has another seed.
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
    /// Puts a key into a slot that is empty, unless it has another one already. `false`, and nothing is changed, where the key cannot have
    /// that slot.
    fn put_at(&self, place: Place, entry: Entry, now: Tick) -> bool {
        let key = Sought::of_parts(entry.print, entry.full_key);
        let [low, high] = self.lines_of(key);
        if place.line != low && place.line != high {
            return false;
        }
        let (first, second) = (self.line(low).lock(), self.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        // There: the key has moved, and what its old slot holds since then is in a piece that was not kept.
        if self.place(&both, key).is_none() {
            let mut seized = both.at(place).seize(place.slot);
            self.vacate(place, &seized);
            self.write(&both, (place, &mut seized), key, (entry.cell, entry.owner, entry.beside), now);
        }
        true
    }
}
