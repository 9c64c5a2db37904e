//! Hands out the changes of a table, piece by piece, and tracks which of them were kept.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::{Quota, State, Tick};

use super::TrackedStore;
use crate::store::Cell;
use crate::store::memory::MemoryShared;
use crate::store::memory::cache_line::WAYS;
use crate::store::memory::changed_slots::{Marks, PER_WORD};
use crate::store::memory::changes::{ChangeWriter, SlotRecord};
use crate::store::memory::limit::{CachedClass, Limit};
use crate::store::memory::name::Name;
use crate::store::memory::table::{Table, TablePlace};

/// A piece ends after the slot with which it reaches this size, in bytes: together with what an engine adds, it then
/// fits in a page of 64 KiB, where states are small.
const ENOUGH: usize = 60 << 10;

/// The most quotas in the cache of looked-up quotas.
const QUOTAS: usize = 1024;

/// A cache of the quotas of classes. Without it, cloning the `Arc` for each slot would write to a reference count that
/// checks share.
type Quotas = HashMap<u16, (CachedClass, Arc<Quota>), RandomState>;

/// Hands out the changed slots of a [`TrackedStore`] as pieces of bytes, to be stored elsewhere and passed to
/// [`Recorder::restore`], the latest first.
///
/// A piece contains slots and the content of each; among pieces with the same slot, the latest counts. So pieces form a
/// journal. To keep it short, go through the table again and again ([`Recorder::lines`]): once a round has handed out
/// the whole table, all pieces from before the first piece of that round may be deleted.
///
/// Checks go on meanwhile. One slot is seized at a time, for as long as it takes to copy it. So each key is consistent;
/// two keys that were charged in one step may be in different pieces. Pieces do not contain the seed. They contain
/// fingerprints and, in a store of full keys, keys of up to 15 bytes as they are.
///
/// Takes memory of one bit for each slot, plus what [`Recorder::changes`] states.
#[derive(Debug)]
pub struct Recorder {
    pub(super) store: TrackedStore,
    /// The slots for which the pieces hold a key. Other slots need no entry that says that they are empty.
    pub(super) handed_out: Vec<u64>,
    /// The marks that were taken since the last call of [`Recorder::kept`].
    taken: Vec<(usize, u64)>,
    /// The index of the next word of marks, and the remaining marks of the word before it.
    word: usize,
    left: u64,
    /// The line with which [`Recorder::lines`] continues.
    line: usize,
    quotas: Quotas,
    pub(super) restored: Restored,
}

/// The progress of restoring.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) pieces: u64,
    /// The latest tick of any piece.
    pub(super) latest: Tick,
    /// Whether the states of any piece were set back.
    pub(super) set_back: bool,
    /// The slots that a later piece contained: one bit each.
    pub(super) seen: Vec<u64>,
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
    /// of four slots, and of fewer when the piece reaches `most_bytes`. See the type for the purpose.
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

    /// Adds a slot to a sheet, if its key matters. If the key does not matter but an earlier piece had one for this
    /// slot, adds the slot as empty.
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

    pub(super) fn marks(&self) -> &Marks {
        self.store.table().marks.as_ref().expect("the table of a tracked store has marks")
    }

    fn piece(&self, sheet: ChangeWriter) -> Option<Vec<u8>> {
        let table = self.store.table();
        let tick = self.store.memory.shared.time.latest();
        (!sheet.is_empty()).then(|| sheet.finish(table.full_keys.is_some(), table.lines.count(), tick))
    }
}

impl Table {
    /// Adds a slot to a sheet, if its key's limit is not full again at the second of the two `times`; the first one is
    /// now. Returns whether it did.
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

/// Returns the quota of a limit that a seized slot names.
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
