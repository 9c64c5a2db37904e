//! Hands out what has changed, piece by piece, and knows what of it was kept.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::{Quota, State, Tick};

use super::TrackedStore;
use crate::store::Cell;
use crate::store::memory::Shared as MemoryShared;
use crate::store::memory::changes::{Sheet, Shown};
use crate::store::memory::limit::{KeptClass, Limit};
use crate::store::memory::line::WAYS;
use crate::store::memory::marks::{Marks, PER_WORD};
use crate::store::memory::name::Name;
use crate::store::memory::table::{Place, Table};

/// A piece ends with the slot in which it reaches this size, in bytes: with what an engine adds it then fits in a page of 64 KiB, where
/// states are small.
const ENOUGH: usize = 60 << 10;

/// Quotas that are looked up once and not for each slot, at most so many at a time.
const QUOTAS: usize = 1024;

/// The quotas of classes, so that the count of whoever shares one is not written to for each slot, under the eyes of the checks.
type Quotas = HashMap<u16, (KeptClass, Arc<Quota>), RandomState>;

/// Hands out the slots of a [`TrackedStore`] that have changed, as pieces of bytes, to be kept somewhere else and given to
/// [`Recorder::restore`], the latest first.
///
/// A piece names slots and says what each holds; of pieces that name the same slot, the latest counts. So pieces form a journal. It is kept
/// short by going through the table again and again ([`Recorder::lines`]): once the whole of it was handed out so, all pieces from before the
/// first of that round may be thrown away.
///
/// Checks go on meanwhile. One slot is seized at a time, for as long as it takes to copy it. So each key is whole; two keys that were charged
/// in one step may be in different pieces. Pieces hold no seed. They hold fingerprints and, in a store of full keys, the short ones of
/// these as they are.
///
/// One bit a slot of memory, and what [`Recorder::changes`] says.
#[derive(Debug)]
pub struct Recorder {
    pub(super) store: TrackedStore,
    /// The slots of which the pieces say something. Of any other it need not be said that it holds nothing.
    pub(super) told: Vec<u64>,
    /// The marks that were taken since the last time that everything was kept.
    taken: Vec<(usize, u64)>,
    /// The word of marks that is looked at next, and the marks of the one before that are left.
    word: usize,
    left: u64,
    /// The line that [`Recorder::lines`] goes on with.
    line: usize,
    quotas: Quotas,
    pub(super) restored: Restored,
}

/// What was taken back so far.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) pieces: u64,
    /// The latest tick that a piece was from.
    pub(super) latest: Tick,
    /// Whether states of a piece were set back.
    pub(super) set_back: bool,
    /// The slots that a later piece has spoken of: one bit each.
    pub(super) seen: Vec<u64>,
}

/// A part of a round through the table; see [`Recorder::lines`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Part {
    /// The piece; `None` where no key of these lines matters.
    pub piece: Option<Vec<u8>>,
    /// How many lines were looked at.
    pub lines: usize,
    /// Whether the round has ended; the next part begins another one.
    pub ends: bool,
}

impl TrackedStore {
    /// Returns what hands out the slots that change. A store has one: of two, each would miss what the other was told.
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
            told: vec![0; words],
            taken: Vec::new(),
            word: 0,
            left: 0,
            line: 0,
            quotas: HashMap::default(),
            restored: Restored::default(),
        }
    }

    /// Says whether slots have changed since they were last handed out, or were and are not kept. Reads one bit a slot.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.left != 0 || !self.taken.is_empty() || self.marks().any()
    }

    /// Returns the next piece of what has changed; `None` when this pass through the table has come to its end, and the next call begins
    /// another one.
    ///
    /// `slack` is asked for each slot: a key that will be full again within that span of time is left out, because nothing more is lost with
    /// it than that span returns. Remembers which slots were handed out, sixteen bytes for each 64 of them, until [`Recorder::kept`] or
    /// [`Recorder::lost`].
    pub fn changes(&mut self, slack: impl Fn() -> Duration) -> Option<Vec<u8>> {
        let mut sheet = Sheet::new();
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
            // Only now: the last piece of a pass is not followed by the first one of another, which slots that change all the while would
            // keep from ever ending.
            self.word = 0;
        }
        self.piece(sheet)
    }

    /// Returns the keys of the next lines of the table, whether they have changed or not: of at most `most_lines` lines of four slots, and of
    /// fewer where they come to `most_bytes`. See the type for what this is for.
    pub fn lines(&mut self, most_lines: usize, most_bytes: usize, slack: impl Fn() -> Duration) -> Part {
        let mut sheet = Sheet::new();
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

    /// Takes note that all pieces so far are kept.
    pub fn kept(&mut self) {
        self.taken.clear();
        self.quotas.clear();
    }

    /// Takes note that of the pieces since the last [`Recorder::kept`] none may have been kept: what they said is handed out again, and a
    /// round through the table begins anew.
    pub fn lost(&mut self) {
        for (word, bits) in mem::take(&mut self.taken) {
            self.marks().put_back(word, bits);
            // Perhaps it was said that some of them hold nothing, which has to be said again.
            self.told[word] |= bits;
        }
        (self.word, self.left, self.line) = (0, 0, 0);
        self.quotas.clear();
    }

    /// Takes note that nothing is kept any more: all slots are handed out again.
    pub fn all_again(&mut self) {
        self.taken.clear();
        self.told.fill(0);
        self.marks().words().for_each(|word| self.marks().put_back(word, !0));
        (self.word, self.left, self.line) = (0, 0, 0);
    }

    /// Adds a slot to a sheet, if its key matters. If it does not, that is added where something else was said before.
    fn show(&mut self, slot: usize, slack: &impl Fn() -> Duration, sheet: &mut Sheet, changed: bool) {
        let MemoryShared { table, time, .. } = &*self.store.memory.shared;
        // Asked with the slot in hand: whoever had it before wrote by no later tick, and has told what `slack` goes by.
        let times = || {
            let now = time.latest();
            (now, now.after(slack()))
        };
        let shown = table.show(slot, &mut self.quotas, times, sheet);
        let (word, bit) = (&mut self.told[slot / PER_WORD], 1 << (slot % PER_WORD));
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

    fn piece(&self, sheet: Sheet) -> Option<Vec<u8>> {
        let table = self.store.table();
        let tick = self.store.memory.shared.time.latest();
        (!sheet.is_empty()).then(|| sheet.finish(table.full_keys.is_some(), table.lines.count(), tick))
    }
}

impl Table {
    /// Adds a slot to a sheet, if its key is not full again by the second of two ticks; the first one is now. Says whether it did.
    fn show(
        &self,
        slot: usize,
        quotas: &mut Quotas,
        times: impl FnOnce() -> (Tick, Tick),
        sheet: &mut Sheet,
    ) -> bool {
        let place = Place { line: slot / WAYS, slot: slot % WAYS };
        // In hand, its name and all that belongs to it stay as they are, without the lock of the line.
        let seized = self.line(place.line).seize(place.slot);
        let name = seized.name();
        if name == Name::EMPTY {
            return false;
        }
        let (now, until) = times();
        let print = self.print_of(place, name);
        let full_key = self.full_keys.as_ref().map(|full_keys| full_keys.at(place.line, place.slot));
        let Some(limit) = self.classes.get(name.class()) else {
            let push = |cell: &Cell, owner| {
                let matters = cell.full_at().is_none_or(|full| full > until);
                if matters {
                    let (quota, state, forgotten) = (&cell.quota, &cell.state, cell.forgotten.as_deref());
                    sheet
                        .push(slot, &Shown { print, full_key, owner, beside: true, quota, state, forgotten });
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
        sheet.push(slot, &Shown { print, full_key, owner, beside: false, quota, state: &state, forgotten });
        true
    }
}

/// Returns the quota of a limit that a slot in hand names.
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
