//! Exports a table as bytes while checks go on, and restores a table from them.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::bytes::{DecodeError, FORMAT};
use tidegate_core::{State, Tick};
use twox_hash::XxHash64;

use super::cache_line::WAYS;
use super::cell_path::SlotContent;
use super::limit::{Class, Name};
use super::seed::FullKey;
use super::table::{Both, KeyForm, Sought, Table, TablePlace};
use super::{CapacityError, MemoryStore};
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
    line: Option<usize>,
    done: bool,
}

impl MemoryStore {
    /// Exports the table as bytes, which [`MemoryStore::restore`] reads under the same seed: all keys whose limits are
    /// not full again, with their notes of resets and of charges ended out of order, and the states in the overflow.
    /// Returns `None` for a store whose seed no other process can have ([`MemoryStore::with_seed`]).
    ///
    /// The export is made while checks go on. It locks one line of four keys at a time. Each key is consistent, and at
    /// least as new as when the export began; two keys charged in one step may be from before and after it. A key that
    /// was evicted and came again while the export was under way may be missing, or be there twice; the later entry
    /// counts.
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
    /// assert!(store.execute(&step)?.allowed);
    ///
    /// let pieces: Vec<Vec<u8>> = store.export().into_iter().flatten().collect();
    /// let next = MemoryStore::restore(5000, &seed, &pieces)?;
    /// assert!(!next.execute(&step)?.allowed, "spent is spent");
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
                    let keep = if full_keys { KeyForm::Keys } else { KeyForm::Fingerprints };
                    let store = Self::made(keys, |keys| Table::seeded(keys, keep, seed))?;
                    if store.shared.table.probe() != probe {
                        return Err(RestoreError::Seed);
                    }
                    restored = Some((store, Tick::from_nanos(tick)));
                }
                (PieceContent::Entries(bytes), Some((store, now))) => {
                    let table = &store.shared.table;
                    for entry in (Entries { bytes, full_keys: table.key_form() == KeyForm::Keys }) {
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
            let full_keys = table.key_form() == KeyForm::Keys;
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

// The byte form of an exported table: pieces, each with a number and a checksum.
//
// A piece starts with `version, kind, part, number`, followed by these fields, little-endian:
//
// ```text
// first (part 0)      form: 1 byte, probe: 8, tick: 8
// entries (part 1)    fingerprint: 8, key: 16 where the form is 1, owner: 4, beside: 1, length: 4, cell: length; and again
// last (part 2)       entries in all: 8, tick: 8
// ```
//
// The last eight bytes are the XxHash64 of all bytes before. The number of the first piece is 0, and each further
// piece has the next number, so an export that was cut or reordered is detected. The cell is a [`Cell`]'s byte form,
// which has its own version.

const PIECE: u8 = 2;

/// The bytes before a piece's content: version, kind, part and number.
const HEAD: usize = 11;

const CHECKSUM: usize = 8;

/// Why an exported table was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// A piece differs from what was written.
    #[error("piece {piece} of the export is damaged; restore from another one")]
    Damaged {
        /// Its index, from 0.
        piece: u64,
    },
    /// A piece is missing or out of order.
    #[error("piece {piece} of the export is missing or out of its order")]
    Missing {
        /// Its index, from 0.
        piece: u64,
    },
    /// The seed is not that of the export.
    #[error(
        "the export was made under another seed, or by a build that hashes keys differently: its fingerprints mean nothing here"
    )]
    Seed,
    /// The store differs from the one that the keys are from, in its size or in how it tells keys apart.
    #[error("the keys are from a store of another size, or from one that distinguishes keys in another way")]
    Form,
    /// A table for so many keys cannot be made.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The bytes are undamaged but cannot be read, usually because a newer version wrote them.
    #[error("the export cannot be read")]
    Decode(#[from] DecodeError),
}

#[derive(Debug)]
pub(super) struct ExportedKey {
    pub(super) fingerprint: u64,
    pub(super) full_key: Option<FullKey>,
    pub(super) owner: u32,
    pub(super) beside: bool,
    pub(super) cell: Cell,
}

#[derive(Debug)]
pub(super) enum PieceContent<'b> {
    First { full_keys: bool, probe: u64, tick: u64 },
    Entries(&'b [u8]),
    Last { entries: u64, tick: u64 },
}

#[derive(Debug)]
pub(super) struct Piece {
    bytes: Vec<u8>,
}

impl Piece {
    fn new(part: u8, number: u64) -> Self {
        let mut bytes = vec![FORMAT, PIECE, part];
        bytes.extend_from_slice(&number.to_le_bytes());
        Self { bytes }
    }

    pub(super) fn first(full_keys: bool, probe: u64, tick: u64) -> Vec<u8> {
        let mut piece = Self::new(0, 0);
        piece.bytes.push(u8::from(full_keys));
        piece.numbers([probe, tick]).finish()
    }

    pub(super) fn entries(number: u64) -> Self {
        Self::new(1, number)
    }

    pub(super) fn last(number: u64, entries: u64, tick: u64) -> Vec<u8> {
        Self::new(2, number).numbers([entries, tick]).finish()
    }

    fn numbers(mut self, numbers: [u64; 2]) -> Self {
        for number in numbers {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, entry: &ExportedKey) {
        let cell = entry.cell.encode();
        // A cell never has four billion bytes: states are bounded far below that.
        let Ok(length) = u32::try_from(cell.len()) else { return };
        self.bytes.extend_from_slice(&entry.fingerprint.to_le_bytes());
        if let Some(full_key) = entry.full_key {
            self.bytes.extend_from_slice(&full_key.to_bytes());
        }
        self.bytes.extend_from_slice(&entry.owner.to_le_bytes());
        self.bytes.push(u8::from(entry.beside));
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&cell);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let checksum = XxHash64::oneshot(0, &self.bytes);
        self.bytes.extend_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

pub(super) fn read(bytes: &[u8], expected: u64) -> Result<PieceContent<'_>, RestoreError> {
    let damaged = RestoreError::Damaged { piece: expected };
    let Some((written, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(damaged) };
    if written.len() < HEAD || XxHash64::oneshot(0, written) != u64::from_le_bytes(*checksum) {
        return Err(damaged);
    }
    let mut from = Fields { rest: written };
    let [version, kind, part] = from.take::<3>()?;
    if version != FORMAT {
        return Err(DecodeError::Version { version }.into());
    }
    if kind != PIECE {
        return Err(DecodeError::Kind { kind }.into());
    }
    if from.u64()? != expected {
        return Err(RestoreError::Missing { piece: expected });
    }
    let read = match part {
        0 => {
            let [form] = from.take()?;
            if form > 1 {
                return Err(DecodeError::Value { field: "form" }.into());
            }
            PieceContent::First { full_keys: form == 1, probe: from.u64()?, tick: from.u64()? }
        }
        1 => return Ok(PieceContent::Entries(from.rest)),
        2 => PieceContent::Last { entries: from.u64()?, tick: from.u64()? },
        _ => return Err(DecodeError::Value { field: "part" }.into()),
    };
    match from.rest.len() {
        0 => Ok(read),
        extra => Err(DecodeError::Long { extra }.into()),
    }
}

#[derive(Debug)]
pub(super) struct Entries<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) full_keys: bool,
}

impl Iterator for Entries<'_> {
    type Item = Result<ExportedKey, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut from = Fields { rest: self.bytes };
        let entry = from.entry(self.full_keys);
        // The bytes after an entry that cannot be read have no meaning.
        self.bytes = if entry.is_ok() { from.rest } else { &[] };
        Some(entry)
    }
}

struct Fields<'b> {
    rest: &'b [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn entry(&mut self, full_keys: bool) -> Result<ExportedKey, DecodeError> {
        let fingerprint = self.u64()?;
        let full_key = if full_keys { Some(FullKey::from_bytes(self.take()?)) } else { None };
        let owner = u32::from_le_bytes(self.take()?);
        let beside = match self.take()? {
            [0] => false,
            [1] => true,
            _ => return Err(DecodeError::Value { field: "beside" }),
        };
        let length = u32::from_le_bytes(self.take()?);
        let length = usize::try_from(length).map_err(|_| DecodeError::Value { field: "length" })?;
        let (cell, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(ExportedKey { fingerprint, full_key, owner, beside, cell: Cell::decode(cell)? })
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    //! Tables that were exported and restored answer as if nothing had happened.

    #![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tidegate_core::{Cost, Finish, Outcome, Quota, Receipt, Tick};

    use super::*;
    use crate::store::{
        Charge, ChargeRules, Ending, Executed, Op, PlainStore, Seed, Step, Store, conformance,
    };

    const SEED: [u8; 32] = [7; 32];

    fn exported(store: &MemoryStore) -> Vec<Vec<u8>> {
        store.export().unwrap().collect()
    }

    fn restored(keys: usize, pieces: &[Vec<u8>]) -> MemoryStore {
        MemoryStore::restore(keys, &Seed::from_bytes(SEED), pieces).unwrap()
    }

    fn execute(store: &dyn Store, now: Tick, op: Op<'_>, charge: Charge<'_>) -> Executed {
        store.blocking_execute(&Step::new(now, op, &[charge])).unwrap()
    }

    /// What one turn of a history does: its pause in ms, key, kind, cost, longest wait in ms, and a further random number.
    type Turn = (u64, u8, u8, u64, u64, u64);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Random histories over every algorithm, waits, endings out of order and resets among them, moved from store to store.
        #[test]
        fn a_restored_table_answers_as_the_plain_map(
            full in any::<bool>(),
            turns in prop::collection::vec((0u64..3_000, 0u8..14, 0u8..20, 1u64..4, 0u64..1_500, any::<u64>()), 1..150),
            sizes in prop::collection::vec(100usize..5_000, 1..6),
        ) {
            let (seed, quotas) = (Seed::from_bytes(SEED), conformance::quotas());
            let mut store = if full { MemoryStore::with_full_keys_and_seed(1000, &seed).unwrap() } else { MemoryStore::with_seed(1000, &seed).unwrap() };
            let (plain, mut sizes) = (PlainStore::default(), sizes.into_iter().cycle());
            let mut now = Tick::from_secs(1_600_000_000);
            let mut open: Vec<(Vec<u8>, Arc<Quota>, Receipt)> = Vec::new();
            for (pause, key, kind, cost, wait, other) in turns {
                let turn: Turn = (pause, key, kind, cost, wait, other);
                now = now.after(Duration::from_millis(pause));
                // Short keys, and keys longer than those that are kept as they are.
                let key = vec![key; usize::from(key) * 3];
                let quota = &quotas[key.len() / 3 % quotas.len()];
                let charge = Charge {
                    max_wait: Duration::from_millis(if kind < 6 { wait } else { 0 }),
                    rules: ChargeRules::new(u32::from(kind % 3)),
                    inline_quota: kind == 11,
                    ..Charge::new(&key, quota, Cost::new(cost).unwrap())
                };
                match kind {
                    0 => store = restored(sizes.next().unwrap(), &exported(&store)),
                    1 => prop_assert_eq!(execute(&store, now, Op::Reset, charge), execute(&plain, now, Op::Reset, charge)),
                    2 => prop_assert_eq!(execute(&store, now, Op::Peek, charge), execute(&plain, now, Op::Peek, charge)),
                    3..6 if !open.is_empty() => {
                        let (key, quota, receipt) = open.swap_remove(other as usize % open.len());
                        let finish = Finish { used: other / 7 % 5, outcome: Outcome::Success };
                        let endings = [Ending::new(receipt, finish)];
                        let charge = Charge::new(&key, &quota, receipt.cost);
                        let op = Op::Finish(&endings);
                        prop_assert_eq!(execute(&store, now, op, charge), execute(&plain, now, op, charge), "{:?}", turn);
                    }
                    _ => {
                        let executed = execute(&store, now, Op::Take, charge);
                        prop_assert_eq!(&executed, &execute(&plain, now, Op::Take, charge), "{:?}", turn);
                        open.extend(executed.lines[0].receipt.map(|receipt| (key.clone(), Arc::clone(quota), receipt)));
                    }
                }
            }
            prop_assert_eq!(store.occupancy().evicted, 0);
        }

        /// Any byte of any piece changed, any piece cut, left out, or put elsewhere.
        #[test]
        fn a_damaged_export_is_an_error(at in any::<prop::sample::Index>(), piece in any::<prop::sample::Index>(), how in 0u8..5, by in 1u8..=255) {
            let pieces = exported(&some_keys(300));
            let mut damaged = pieces.clone();
            let piece = piece.index(pieces.len());
            let at = at.index(pieces[piece].len());
            match how {
                0 => damaged[piece][at] ^= by,
                1 => damaged[piece].truncate(at),
                2 => _ = damaged.remove(piece),
                3 => damaged.truncate(piece),
                _ => damaged.swap(piece, (piece + 1) % pieces.len()),
            }
            let restored = MemoryStore::restore(1000, &Seed::from_bytes(SEED), &damaged);
            prop_assert!(restored.is_err());
        }

        /// Arbitrary bytes in place of a piece are read to the end or to an error, without a panic.
        #[test]
        fn entries_of_any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), full_keys in any::<bool>()) {
            let entries = Entries { bytes: &bytes, full_keys };
            prop_assert!(entries.count() <= 300);
        }
    }

    /// A key that was reset, one whose limit changed its kind, and one settled out of order, each with a charge from before that is ended
    /// after the table was restored.
    #[test]
    fn what_is_remembered_of_old_charges_is_exported() {
        let (store, plain) =
            (MemoryStore::with_seed(100, &Seed::from_bytes(SEED)).unwrap(), PlainStore::default());
        let schedule = Arc::new(Quota::per_minute(6).gcra().unwrap());
        let window = Arc::new(Quota::per_minute(6).fixed_window().unwrap());
        let (start, after) = (Tick::from_secs(1_600_000_000), |ms| Duration::from_millis(ms));
        let both = |store: &dyn Store, ms, op: Op<'_>, charge: Charge<'_>| {
            let executed = execute(store, start.after(after(ms)), op, charge);
            assert_eq!(executed, execute(&plain, start.after(after(ms)), op, charge));
            executed.lines[0].receipt
        };
        let two = Cost::new(2).unwrap();
        let charge = |key, quota| Charge::new(key, quota, two);
        let reset = both(&store, 0, Op::Take, charge(b"reset", &schedule)).unwrap();
        both(&store, 10, Op::Reset, charge(b"reset", &schedule));
        let changed = both(&store, 20, Op::Take, charge(b"changed", &window)).unwrap();
        both(&store, 30, Op::Take, charge(b"changed", &schedule));
        let first = both(&store, 40, Op::Take, charge(b"orders", &schedule)).unwrap();
        let second = both(&store, 50, Op::Take, charge(b"orders", &schedule)).unwrap();
        both(&store, 60, Op::Finish(&[Ending::new(first, Finish::UNDONE)]), charge(b"orders", &schedule));
        let next = restored(3, &exported(&store));
        for (ms, key, quota, receipt) in [
            (70, &b"reset"[..], &schedule, reset),
            (80, b"changed", &window, changed),
            (90, b"orders", &schedule, second),
        ] {
            both(&next, ms, Op::Take, Charge::new(key, &schedule, Cost::ONE));
            both(&next, ms + 5, Op::Finish(&[Ending::new(receipt, Finish::UNDONE)]), charge(key, quota));
            both(&next, ms + 6, Op::Peek, Charge::new(key, &schedule, Cost::ONE));
        }
    }

    fn some_keys(keys: u32) -> MemoryStore {
        let store = MemoryStore::with_seed(1000, &Seed::from_bytes(SEED)).unwrap();
        let quotas = conformance::quotas();
        for key in 0..keys {
            let quota = &quotas[key as usize % quotas.len()];
            execute(
                &store,
                Tick::from_secs(1_600_000_000),
                Op::Take,
                Charge::new(&key.to_le_bytes(), quota, Cost::ONE),
            );
        }
        store
    }

    #[test]
    fn another_seed_and_a_store_without_one_are_told() {
        let pieces = exported(&some_keys(3));
        let other = MemoryStore::restore(1000, &Seed::from_bytes([8; 32]), &pieces);
        assert_eq!(other.err(), Some(RestoreError::Seed));
        assert!(MemoryStore::with_capacity(1000).unwrap().export().is_none());
        let none: [Vec<u8>; 0] = [];
        let empty = MemoryStore::restore(1000, &Seed::from_bytes(SEED), none);
        assert_eq!(empty.err(), Some(RestoreError::Missing { piece: 0 }));
    }

    /// If a tenth of the room is left, the keys over their limit stay.
    #[test]
    fn with_less_room_keys_over_their_limit_stay() {
        let store = MemoryStore::with_seed(10_000, &Seed::from_bytes(SEED)).unwrap();
        let quota = Arc::new(Quota::per_hour(3).gcra().unwrap());
        let now = Tick::from_secs(1000);
        let is_debtor = |key: u32| key.is_multiple_of(20);
        for key in 0..8_000u32 {
            let cost = Cost::new(if is_debtor(key) { 3 } else { 1 }).unwrap();
            assert!(execute(&store, now, Op::Take, Charge::new(&key.to_le_bytes(), &quota, cost)).allowed);
        }
        let small = restored(1_000, &exported(&store));
        let occupancy = small.occupancy();
        assert!(occupancy.used <= occupancy.capacity && occupancy.evicted > 5_000, "{occupancy:?}");
        assert_eq!(occupancy.evicted_over_limit, 0);
        for key in (0..8_000u32).filter(|key| is_debtor(*key)) {
            assert!(
                !execute(&small, now, Op::Peek, Charge::new(&key.to_le_bytes(), &quota, Cost::ONE)).allowed
            );
        }
    }

    /// Other threads take units while the table is exported again and again. Each key is charged by one thread only, so the
    /// number of units allowed before and after an export bounds what that export must show.
    #[test]
    fn an_export_under_way_shows_all_that_was_charged_before_it() {
        let store = MemoryStore::with_seed(500, &Seed::from_bytes(SEED)).unwrap();
        let quota = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
        let now = Tick::from_secs(1000);
        let take = |store: &MemoryStore, key: u64, op: Op<'_>| {
            let executed = execute(store, now, op, Charge::new(&key.to_le_bytes(), &quota, Cost::ONE));
            1_000_000 - executed.lines[0].decision.standing.remaining
        };
        let charged: Vec<_> = (0..100).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (store, charged) = (&store, &charged);
                scope.spawn(move || {
                    for turn in 0..20_000u64 {
                        let key = turn % 50 * 2 + half;
                        let spent = take(store, key, Op::Take);
                        charged[key as usize].store(spent, Ordering::Release);
                    }
                });
            }
            for _ in 0..20 {
                let before: Vec<u64> = charged.iter().map(|spent| spent.load(Ordering::Acquire)).collect();
                let copy = restored(700, &exported(&store));
                for (key, before) in before.into_iter().enumerate() {
                    let shown = take(&copy, key as u64, Op::Peek);
                    assert!(shown >= before && shown <= take(&store, key as u64, Op::Peek), "key {key}");
                }
            }
        });
    }

    /// Bytes from the first version that exported; they must stay readable for ever.
    #[test]
    fn the_byte_form_stays() {
        let store = MemoryStore::with_seed(1, &Seed::from_bytes(SEED)).unwrap();
        let quota = Arc::new(Quota::per_minute(3).gcra().unwrap());
        let (now, charge) = (
            Tick::from_secs(100),
            Charge { rules: ChargeRules::new(5), ..Charge::new(b"ann", &quota, Cost::ONE) },
        );
        assert!(execute(&store, now, Op::Take, charge).allowed);
        let hex = |piece: &Vec<u8>| piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(exported(&store).iter().map(hex).collect::<Vec<_>>(), GOLDEN);
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let read = restored(50, &GOLDEN.map(bytes));
        assert_eq!(execute(&read, now, Op::Peek, charge), execute(&store, now, Op::Peek, charge));
    }

    const GOLDEN: [&str; 3] = [
        "0102000000000000000000007415c381111d297200e8764817000000e31613aa3bb7b111",
        "0102010100000000000000d1dfb8416863900c0500000000350000000100010300000000000000005847f80d00000003000000000000000100e8764817\
     00000000b08ef01b00000000000000000000000095af214966e0f91a",
        "0102020200000000000000010000000000000000e8764817000000a7af9b21d8e66bea",
    ];
}
