//! A memory store that records which of its slots change, and the [`Recorder`] that hands out the changes to be stored
//! elsewhere.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::bytes::DecodeError;
use tidegate_core::{Quota, State, Tick};

use super::seed::Seed;
use super::table::{Both, KeyForm, Sought, Table, TablePlace};
use super::{CapacityError, Export, MemoryShared, MemoryStore};
use crate::store::memory::cache_line::WAYS;
use crate::store::memory::cell_path::SlotContent;
use crate::store::memory::changes::{ChangeWriter, Marks, PER_WORD, ReadSheet, SlotRecord};
use crate::store::memory::export::{ExportedKey, RestoreError};
use crate::store::memory::limit::{CachedClass, Limit, Name};
use crate::store::{Cell, Executed, Execution, Later, Occupancy, Step, StepAnswer, Store};

/// A [`MemoryStore`] that records which of its slots change, for a [`Recorder`] that hands them out to be stored
/// elsewhere.
///
/// A check that changes a slot also sets a bit, unless the bit is set already. Takes 27 bytes per key of the capacity,
/// 51 where keys are kept in full. A clone shares the table.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tidegate::store::{Charge, Op, Seed, Step, Store, TrackedStore};
/// use tidegate::{Cost, Quota, Tick};
///
/// let seed = Seed::random();
/// let store = TrackedStore::with_seed(1000, &seed)?;
/// let mut recorder = store.recorder();
/// let once = Arc::new(Quota::per_hour(1).gcra()?);
/// let charges = [Charge::new(b"ann", &once, Cost::ONE)];
/// let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
/// assert!(store.blocking_execute(&step)?.allowed);
/// let piece = recorder.changes(|| Duration::ZERO).expect("a key was charged");
/// recorder.kept();
///
/// let next = TrackedStore::with_seed(1000, &seed)?;
/// next.recorder().restore(&piece, Tick::from_secs(2))?;
/// assert!(!next.blocking_execute(&step)?.allowed, "spent is spent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrackedStore {
    memory: MemoryStore,
}

impl TrackedStore {
    /// Makes an empty store with room for `keys` live keys, 1 to [`MemoryStore::MAX_KEYS`], which are hashed under `seed`.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        let memory = MemoryStore::made(keys, |keys| Table::tracked(keys, KeyForm::Fingerprints, seed))?;
        Ok(Self { memory })
    }

    /// As [`TrackedStore::with_seed`], but compares whole keys, as [`MemoryStore::with_full_keys`].
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        let memory = MemoryStore::made(keys, |keys| Table::tracked(keys, KeyForm::Keys, seed))?;
        Ok(Self { memory })
    }

    /// Exports the table as [`MemoryStore::export`] does.
    ///
    /// # Panics
    /// Never: the store was made under a seed.
    #[must_use]
    pub fn export(&self) -> Export<'_> {
        self.memory.export().expect("a tracked store has a seed that another process may know")
    }

    /// Returns a number that is the same for every store that hashes keys as this one does: under the same seed, by the
    /// same functions. It does not reveal the seed.
    #[must_use]
    pub fn probe(&self) -> u64 {
        self.table().probe()
    }

    fn table(&self) -> &Table {
        &self.memory.shared.table
    }
}

impl Store for TrackedStore {
    #[inline]
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        Execution::Done(match step.receipts {
            true => self.memory.execute_step::<true, true>(step, &[], out),
            false => self.memory.execute_step::<false, true>(step, &[], out),
        })
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        self.memory.execute_batch::<true>(steps, out);
        None
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.memory)
    }

    fn occupancy(&self) -> Occupancy {
        self.memory.occupancy()
    }
}

// Restores a store from the pieces that were handed out.

/// A piece whose tick lies further ahead of the present than this was written by a fast clock; a smaller difference
/// comes from a short step back. Five minutes: the same bound for which a running store's time stands still.
const FAR: Duration = Duration::from_secs(300);

impl Recorder {
    /// Restores a piece, into a store of the same number of keys, under the same seed, which keeps keys in the same
    /// way. Call it with the latest piece first, so that what earlier pieces say of the same slots is skipped, and
    /// before the store executes its first step.
    ///
    /// `now` is the present. If the piece is from up to five minutes later than that, the store's time stands still
    /// until that tick. If it is from even later, the clock that wrote it was fast and has since been corrected. Then
    /// states are set back ([`Quota::set_back`]): each key is as empty as it was, from
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
        // The present is remembered too: refusals move no time, and the next piece carries the latest tick. Not held: an
        // older piece is no clock that was set back, whose next tick would count as progress since that piece.
        time.reach(if set_back { now } else { sheet.tick });
        let now = if set_back { now } else { time.latest() };
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
    /// If there is less room than before, keys are dropped as by [`MemoryStore::restore`].
    ///
    /// # Errors
    /// [`RestoreError::Form`] if the other store keeps keys in another way, [`RestoreError::Seed`] if it has another
    /// seed.
    pub fn take_over(&mut self, other: &TrackedStore) -> Result<(), RestoreError> {
        let (table, from) = (self.store.table(), other.table());
        if table.key_form() != from.key_form() {
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
    /// Puts a key into an empty slot, unless it has another slot already. `false`, and nothing is changed, if the key
    /// cannot have that slot.
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

/// A piece ends after the slot with which it reaches this size, in bytes: with what an engine adds, it fits in a page
/// of 64 KiB, where states are small.
const ENOUGH: usize = 60 << 10;

const QUOTAS: usize = 1024;

/// A cache of the quotas of classes. Without it, cloning the `Arc` for each slot would write to a reference count that
/// checks share.
type Quotas = HashMap<u16, (CachedClass, Arc<Quota>), RandomState>;

/// Hands out the changed slots of a [`TrackedStore`] as pieces of bytes, to be stored elsewhere and passed to
/// [`Recorder::restore`], the latest first.
///
/// A piece contains slots and the content of each; among pieces with the same slot, the latest counts. To keep their
/// number small, go through the table again and again ([`Recorder::lines`]): once a round has handed out the whole
/// table, all pieces from before the first piece of that round may be deleted.
///
/// Checks go on meanwhile. One slot is seized at a time. So each key is consistent; two keys that were charged in one
/// step may be in different pieces. Pieces do not contain the seed. They contain fingerprints and, in a store of full
/// keys, keys of up to 15 bytes as they are.
///
/// Takes one bit for each slot, plus what [`Recorder::changes`] states.
#[derive(Debug)]
pub struct Recorder {
    store: TrackedStore,
    /// The slots for which the pieces hold a key. Other slots need no entry that says that they are empty.
    handed_out: Vec<u64>,
    /// The marks that were taken since the last call of [`Recorder::kept`].
    taken: Vec<(usize, u64)>,
    /// The index of the next word of marks, and the remaining marks of the word before it.
    word: usize,
    left: u64,
    line: usize,
    quotas: Quotas,
    restored: Restored,
}

#[derive(Debug, Default)]
struct Restored {
    pieces: u64,
    latest: Tick,
    set_back: bool,
    seen: Vec<u64>,
}

/// A part of a round through the table; see [`Recorder::lines`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Part {
    /// The piece; `None` if no key of these lines matters.
    pub piece: Option<Vec<u8>>,
    /// The number of lines that were visited.
    pub lines: usize,
    /// Whether the round has ended; the next part begins a new one.
    pub ends: bool,
}

impl TrackedStore {
    /// Returns the recorder of this store. Use only one for each store: with two, each would miss the changes that the
    /// other handed out.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        Recorder::of(self.clone())
    }
}

impl Recorder {
    fn of(store: TrackedStore) -> Self {
        let words = store.table().slots().div_ceil(PER_WORD);
        Self {
            store,
            handed_out: vec![0; words],
            taken: Vec::new(),
            word: 0,
            left: 0,
            line: 0,
            quotas: HashMap::default(),
            restored: Restored::default(),
        }
    }

    /// Returns whether slots have changed since they were last handed out, or were handed out and are not known to be
    /// kept. Reads one bit for each slot.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.left != 0 || !self.taken.is_empty() || self.marks().any()
    }

    /// Returns the next piece of changes; `None` when this pass through the table has ended; the next call then begins
    /// a new pass.
    ///
    /// `slack` is called for each slot: a key whose limit will be full again within that span is left out, because
    /// losing it loses no more than that span refills. Remembers which slots were handed out, sixteen bytes for each 64
    /// of them, until [`Recorder::kept`] or [`Recorder::lost`].
    pub fn changes(&mut self, slack: impl Fn() -> Duration) -> Option<Vec<u8>> {
        let mut sheet = ChangeWriter::new();
        let words = self.marks().words();
        while sheet.len() < ENOUGH {
            if self.left == 0 {
                if self.word == words.end {
                    break;
                }
                self.left = self.marks().take(self.word);
                if self.left != 0 {
                    self.taken.push((self.word, self.left));
                }
                self.word += 1;
                continue;
            }
            let bit = self.left.trailing_zeros() as usize;
            self.left &= self.left - 1;
            let slot = (self.word - 1) * PER_WORD + bit;
            if slot < self.store.table().slots() {
                self.show(slot, &slack, &mut sheet, true);
            }
        }
        if sheet.is_empty() {
            // The next pass begins only after a `None`: if it began right after the last piece, slots that change all
            // the time could keep the pieces from ever ending.
            self.word = 0;
        }
        self.piece(sheet)
    }

    /// Returns the keys of the next lines of the table, whether they have changed or not: of at most `most_lines` lines
    /// of four slots, and of fewer when the piece reaches `most_bytes`.
    pub fn lines(&mut self, most_lines: usize, most_bytes: usize, slack: impl Fn() -> Duration) -> Part {
        let mut sheet = ChangeWriter::new();
        let end = self.store.table().lines.count();
        let from = self.line;
        let stop = self.line.saturating_add(most_lines).min(end);
        while self.line < stop && sheet.len() < most_bytes.min(ENOUGH) {
            for slot in self.line * WAYS..(self.line + 1) * WAYS {
                self.show(slot, &slack, &mut sheet, false);
            }
            self.line += 1;
        }
        let (lines, ends) = (self.line - from, self.line == end);
        if ends {
            self.line = 0;
        }
        Part { piece: self.piece(sheet), lines, ends }
    }

    /// Notes that all pieces so far are stored.
    pub fn kept(&mut self) {
        self.taken.clear();
        self.quotas.clear();
    }

    /// Notes that the pieces since the last [`Recorder::kept`] may not have been stored: their slots are handed out
    /// again, and the round through the table starts over.
    pub fn lost(&mut self) {
        for (word, bits) in mem::take(&mut self.taken) {
            self.marks().put_back(word, bits);
            // A lost piece may have said that some of these slots are empty, which then has to be said again.
            self.handed_out[word] |= bits;
        }
        (self.word, self.left, self.line) = (0, 0, 0);
        self.quotas.clear();
    }

    /// Notes that no piece is stored any more: all slots are handed out again.
    pub fn all_again(&mut self) {
        self.taken.clear();
        self.handed_out.fill(0);
        self.marks().words().for_each(|word| self.marks().put_back(word, !0));
        (self.word, self.left, self.line) = (0, 0, 0);
    }

    /// Adds a slot to a sheet, if its key matters. A key that does not matter is added as empty if an earlier piece had
    /// one for this slot.
    fn show(&mut self, slot: usize, slack: &impl Fn() -> Duration, sheet: &mut ChangeWriter, changed: bool) {
        let MemoryShared { table, time, .. } = &*self.store.memory.shared;
        // Called while the slot is seized: its former holder wrote at no later tick, and has already updated what
        // `slack` depends on.
        let times = || {
            let now = time.latest();
            (now, now.after(slack()))
        };
        let shown = table.show(slot, &mut self.quotas, times, sheet);
        let (word, bit) = (&mut self.handed_out[slot / PER_WORD], 1 << (slot % PER_WORD));
        if shown {
            *word |= bit;
        } else if changed && *word & bit != 0 {
            sheet.push_empty(slot);
            *word &= !bit;
        }
    }

    fn marks(&self) -> &Marks {
        self.store.table().marks.as_ref().expect("the table of a tracked store has marks")
    }

    fn piece(&self, sheet: ChangeWriter) -> Option<Vec<u8>> {
        let table = self.store.table();
        let tick = self.store.memory.shared.time.latest();
        (!sheet.is_empty()).then(|| sheet.finish(table.full_keys.is_some(), table.lines.count(), tick))
    }
}

impl Table {
    /// Adds a slot if its key's limit is not full again at the second of the two `times`; the first one is now. Returns
    /// whether it did.
    fn show(
        &self,
        slot: usize,
        quotas: &mut Quotas,
        times: impl FnOnce() -> (Tick, Tick),
        sheet: &mut ChangeWriter,
    ) -> bool {
        let place = TablePlace { line: slot / WAYS, slot: slot % WAYS };
        // While the slot is seized, its name and all that belongs to it are stable, even without the lock of the line.
        let seized = self.line(place.line).seize(place.slot);
        let name = seized.name();
        if name == Name::EMPTY {
            return false;
        }
        let (now, until) = times();
        let fingerprint = self.fingerprint_of(place, name);
        let full_key = self.full_keys.as_ref().map(|full_keys| full_keys.at(place.line, place.slot));
        let Some(limit) = self.classes.get(name.class()) else {
            let push = |cell: &Cell, owner| {
                let matters = cell.full_at().is_none_or(|full| full > until);
                if matters {
                    let (quota, state, forgotten) = (&cell.quota, &cell.state, cell.forgotten.as_deref());
                    sheet.push(
                        slot,
                        &SlotRecord { fingerprint, full_key, owner, beside: true, quota, state, forgotten },
                    );
                }
                matters
            };
            return self.overflow.with(place.line, place.slot, push).unwrap_or(false);
        };
        let (form, word) = (limit.form(), seized.word);
        if form.scaled(until).is_some_and(|until| form.is_full(word, until)) {
            return false;
        }
        let (state, owner) = (State::Gcra(form.widen(word, now)), limit.owner());
        let Some(quota) = quota_of(quotas, limit) else { return false };
        drop(seized);
        let forgotten = None;
        sheet.push(
            slot,
            &SlotRecord { fingerprint, full_key, owner, beside: false, quota, state: &state, forgotten },
        );
        true
    }
}

fn quota_of<'q>(quotas: &'q mut Quotas, limit: Limit<'_>) -> Option<&'q Arc<Quota>> {
    let number = limit.class().number();
    let is_known = quotas.get(&number).is_some_and(|(kept, _)| *kept == limit.kept()) && limit.holds();
    if !is_known {
        let quota = limit.quota()?;
        if quotas.len() >= QUOTAS {
            quotas.clear();
        }
        quotas.insert(number, (limit.kept(), quota));
    }
    quotas.get(&number).map(|(_, quota)| quota)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tidegate_core::{Cost, Decision, Finish, Outcome, Quota, Receipt, Tick};

    use super::*;
    use crate::store::conformance::{Random, quotas};
    use crate::store::{Charge, Ending, Op, PlainStore, RestoreError};

    const NOW: Duration = Duration::ZERO;

    /// The pieces that were handed out and stored, as an engine would store them.
    #[derive(Default)]
    struct Journal {
        pieces: Vec<Vec<u8>>,
        round_began: usize,
    }

    impl Journal {
        fn keep(&mut self, recorder: &mut Recorder) {
            while let Some(piece) = recorder.changes(|| NOW) {
                self.pieces.push(piece);
            }
            let part = recorder.lines(10, 1000, || NOW);
            self.pieces.extend(part.piece);
            if part.ends {
                self.pieces.drain(..self.round_began);
                self.round_began = self.pieces.len();
            }
            recorder.kept();
        }

        fn read(&self, store: &TrackedStore, now: Tick) -> Result<Recorder, RestoreError> {
            let mut recorder = store.recorder();
            self.pieces.iter().rev().try_for_each(|piece| recorder.restore(piece, now))?;
            recorder.all_restored();
            Ok(recorder)
        }
    }

    fn make(full_keys: bool, seed: &Seed) -> TrackedStore {
        let make = if full_keys { TrackedStore::with_full_keys_and_seed } else { TrackedStore::with_seed };
        make(64, seed).expect("room for few keys")
    }

    /// The comparable part of an answer. The marks of receipts are left out: those of a key that was full again and was
    /// forgotten start over.
    fn comparable(executed: &Executed) -> (bool, Duration, Vec<(Decision, Option<Cost>)>) {
        let lines =
            executed.lines.iter().map(|line| (line.decision, line.receipt.map(|receipt| receipt.cost)));
        (executed.allowed, executed.wait, lines.collect())
    }

    /// A store that is now and then discarded and restored from what was handed out so far, compared with a plain map that
    /// never is.
    #[test]
    fn a_store_that_was_taken_back_answers_as_one_that_was_never_gone() {
        for (full_keys, round) in
            [false, true].into_iter().flat_map(|full| (1..=6).map(move |round| (full, round)))
        {
            let (seed, quotas, mut random) = (Seed::random(), quotas(), Random::seeded(round));
            let (mut store, plain) = (make(full_keys, &seed), PlainStore::default());
            let (mut journal, mut recorder) = (Journal::default(), store.recorder());
            let (mut now, mut made) = (Tick::from_secs(1000), Vec::new());
            for turn in 0..3000 {
                now = now.after(Duration::from_millis(random.below(400)));
                let keys = [random.below(20), 20 + random.below(20)].map(|key| [key as u8]);
                // Each key has the same limit most of the time.
                let quota = |key: u8| match random.below(20) {
                    0 => &quotas[(key as usize + 1) % quotas.len()],
                    _ => &quotas[key as usize % quotas.len()],
                };
                let limits = keys.map(|[key]| key).map(quota);
                let both: Vec<Charge<'_>> =
                    keys.iter().zip(limits).map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
                let charges = &both[..1 + random.below(2) as usize];
                let (op, charges) = match random.below(12) {
                    0 => (Op::Reset, charges),
                    1 => (Op::Peek, charges),
                    2 | 3 if !made.is_empty() => {
                        let (key, quota, receipts): ([u8; 1], Arc<Quota>, [Receipt; 2]) =
                            made.swap_remove(random.below(made.len() as u64) as usize);
                        let finish = Finish { used: random.below(3), outcome: Outcome::Success };
                        let charges = [Charge::new(&key, &quota, Cost::ONE)];
                        let [ours, theirs] = receipts.map(|receipt| [Ending::new(receipt, finish)]);
                        let answer = store.blocking_execute(&Step::new(now, Op::Finish(&ours), &charges));
                        let expected = plain.blocking_execute(&Step::new(now, Op::Finish(&theirs), &charges));
                        assert_eq!(
                            comparable(&answer.unwrap()),
                            comparable(&expected.unwrap()),
                            "round {round}, turn {turn}"
                        );
                        continue;
                    }
                    _ => (Op::Take, charges),
                };
                let step = Step::new(now, op, charges);
                let answer = store.blocking_execute(&step).unwrap();
                let expected = plain.blocking_execute(&step).unwrap();
                assert_eq!(comparable(&answer), comparable(&expected), "round {round}, turn {turn}");
                if matches!(op, Op::Take) && made.len() < 30 {
                    let lines = answer.lines.iter().zip(&expected.lines);
                    for (charge, (ours, theirs)) in charges.iter().zip(lines) {
                        let both = ours.receipt.zip(theirs.receipt).map(|(ours, theirs)| [ours, theirs]);
                        made.extend(both.map(|both| ([charge.key[0]], Arc::clone(charge.quota), both)));
                    }
                }
                match random.below(60) {
                    0..4 => journal.keep(&mut recorder),
                    4 => {
                        // Handed out but not stored: handed out again later.
                        while recorder.changes(|| NOW).is_some() {}
                        let _ = recorder.lines(2, 100, || NOW);
                        recorder.lost();
                        journal.round_began = journal.pieces.len();
                    }
                    5 => {
                        journal.keep(&mut recorder);
                        store = make(full_keys, &seed);
                        recorder = journal.read(&store, now).unwrap();
                        assert!(!recorder.has_changes(), "what was read is kept already");
                        journal.round_began = journal.pieces.len();
                    }
                    _ => {}
                }
            }
            assert!(journal.pieces.len() < 200, "rounds through the table keep the journal short");
        }
    }

    #[test]
    fn nothing_is_missed_of_what_threads_charge_meanwhile() {
        let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(1_000_000).gcra().unwrap()));
        let store = TrackedStore::with_seed(64, &seed).unwrap();
        let (mut journal, mut recorder, stop) =
            (Journal::default(), store.recorder(), AtomicBool::new(false));
        let now = Tick::from_secs(1000);
        let left = |store: &TrackedStore, key: u8| {
            let key = [key];
            let charges = [Charge::new(&key, &day, Cost::ONE)];
            let peeked = store.blocking_execute(&Step::new(now, Op::Peek, &charges)).unwrap();
            peeked.lines[0].decision.standing.remaining
        };
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (store, day, stop) = (&store, &day, &stop);
                scope.spawn(move || {
                    let mut random = Random::seeded(thread + 1);
                    while !stop.load(Ordering::Relaxed) {
                        let key = [random.below(40) as u8];
                        let charges = [Charge::new(&key, day, Cost::ONE)];
                        store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap();
                    }
                });
            }
            for _ in 0..300 {
                journal.keep(&mut recorder);
            }
            stop.store(true, Ordering::Relaxed);
        });
        journal.keep(&mut recorder);
        let next = TrackedStore::with_seed(64, &seed).unwrap();
        journal.read(&next, now).unwrap();
        for key in 0..40 {
            assert_eq!(left(&next, key), left(&store, key), "key {key}");
        }
    }

    #[test]
    fn what_is_full_again_soon_is_left_out() {
        let seed = Seed::random();
        let store = TrackedStore::with_seed(64, &seed).unwrap();
        let mut recorder = store.recorder();
        let quotas = [Quota::per_second(100).gcra(), Quota::per_hour(100).gcra()]
            .map(|quota| Arc::new(quota.unwrap()));
        let charge = |key: &[u8], quota| {
            let charges = [Charge::new(key, quota, Cost::ONE)];
            store.blocking_execute(&Step::new(Tick::from_secs(1000), Op::Take, &charges)).unwrap();
        };
        charge(b"short", &quotas[0]);
        assert_eq!(recorder.changes(|| Duration::from_millis(200)), None, "full in ten milliseconds");
        recorder.kept();
        charge(b"short", &quotas[0]);
        charge(b"long", &quotas[1]);
        let piece = recorder.changes(|| Duration::from_millis(200)).unwrap();
        assert!(piece.len() < 110, "one key: {} bytes", piece.len());
        recorder.kept();
        assert!(!recorder.has_changes());
    }

    #[test]
    fn states_of_a_clock_that_was_fast_are_as_empty_as_they_were() {
        let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
        let (fast, right) = (Tick::from_secs(40_000_000), Tick::from_secs(1_000_000));
        let charges = [Charge::new(b"ann", &day, Cost::new(10).unwrap())];
        let allowed = |store: &TrackedStore, now| {
            store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed
        };
        let store = TrackedStore::with_seed(64, &seed).unwrap();
        assert!(allowed(&store, fast));
        let piece = store.recorder().changes(|| NOW).unwrap();
        let next = TrackedStore::with_seed(64, &seed).unwrap();
        next.recorder().restore(&piece, right).unwrap();
        assert!(!allowed(&next, right), "granted once is granted");
        assert!(!allowed(&next, right.after(Duration::from_secs(86_000))));
        assert!(allowed(&next, right.after(Duration::from_secs(86_420))), "and time goes on from now");
    }

    /// A store is restored from pieces of hours, on a machine whose clock was set back by a minute. Regression: the minute
    /// before the latest piece counted as hours after an older one, and the time leapt by half of them.
    #[test]
    fn older_pieces_do_not_move_the_time() {
        let (seed, hour) = (Seed::random(), Arc::new(Quota::per_hour(1).gcra().unwrap()));
        let take = |store: &TrackedStore, key: &[u8], now| {
            let charges = [Charge::new(key, &hour, Cost::ONE)];
            let executed = store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap();
            (executed.allowed, executed.at)
        };
        let store = TrackedStore::with_seed(64, &seed).unwrap();
        let mut recorder = store.recorder();
        let (early, late) = (Tick::from_secs(1_000), Tick::from_secs(10_000));
        let pieces = [(b"ann", early), (b"bob", late)].map(|(key, now)| {
            assert!(take(&store, key, now).0);
            let piece = recorder.changes(|| NOW).unwrap();
            assert_eq!(recorder.changes(|| NOW), None);
            recorder.kept();
            piece
        });
        let (next, now) = (TrackedStore::with_seed(64, &seed).unwrap(), Tick::from_secs(9_940));
        let mut recorder = next.recorder();
        pieces.iter().rev().for_each(|piece| recorder.restore(piece, now).unwrap());
        recorder.all_restored();
        assert_eq!(take(&next, b"bob", now), (false, late));
    }

    #[test]
    fn bytes_of_another_store_and_altered_ones_are_refused() {
        let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
        let store = TrackedStore::with_seed(64, &seed).unwrap();
        let charges = [Charge::new(b"ann", &day, Cost::ONE)];
        store.blocking_execute(&Step::new(Tick::from_secs(1000), Op::Take, &charges)).unwrap();
        let mut piece = store.recorder().changes(|| NOW).unwrap();
        let now = Tick::from_secs(1000);
        for other in [TrackedStore::with_seed(640, &seed), TrackedStore::with_full_keys_and_seed(64, &seed)] {
            assert_eq!(other.unwrap().recorder().restore(&piece, now), Err(RestoreError::Form));
        }
        for bit in 0..piece.len() * 8 {
            piece[bit / 8] ^= 1 << (bit % 8);
            let next = TrackedStore::with_seed(64, &seed).unwrap();
            assert_eq!(next.recorder().restore(&piece, now), Err(RestoreError::Damaged { piece: 0 }));
            piece[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..piece.len() {
            let next = TrackedStore::with_seed(64, &seed).unwrap();
            assert!(next.recorder().restore(&piece[..length], now).is_err());
        }
    }

    #[test]
    fn a_store_of_another_size_takes_over() {
        let (seed, day) = (Seed::random(), Arc::new(Quota::per_day(10).gcra().unwrap()));
        let now = Tick::from_secs(1000);
        let (store, larger) =
            (TrackedStore::with_seed(64, &seed).unwrap(), TrackedStore::with_seed(6400, &seed).unwrap());
        let keys: Vec<[u8; 1]> = (0..40).map(|key| [key]).collect();
        for key in &keys {
            let charges = [Charge::new(key, &day, Cost::new(10).unwrap())];
            assert!(store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
        }
        let mut recorder = larger.recorder();
        recorder.take_over(&store).unwrap();
        assert!(recorder.has_changes());
        for key in &keys {
            let charges = [Charge::new(key, &day, Cost::ONE)];
            assert!(!larger.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
        }
        let other = TrackedStore::with_seed(64, &Seed::random()).unwrap();
        assert_eq!(recorder.take_over(&other), Err(RestoreError::Seed));
    }
}
