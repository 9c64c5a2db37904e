//! The file of the history, `history.redb`: blocks of counts, the changes, the alerts, what became of canaries, and notes.
//!
//! It stands beside the counters' file and shares nothing with it. [`redb`] manages it: each write is there completely
//! or not at all. Each write has a number, which is in the file too: whoever holds counts that a write of that number
//! adds can tell from one reading whether they are in what it read. So nothing is lost or counted twice, although
//! readers and the writer never wait for each other.
//!
//! Without a folder the same tables are in memory, with less room.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use redb::{Durability, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError};

use super::codec::{Packer, Row, Rows};
use super::tiers::{DAY, Deltas, SERVER, Tier, absorb_row, times};
use crate::engine_file::{self, EngineFile, FileError, guarded, table_if_there};

/// The name of the file in its folder.
pub(crate) const NAME: &str = "history.redb";

/// Where a file goes that its engine cannot read. One of an earlier time is replaced.
pub(crate) const DAMAGED: &str = "history.redb.damaged";

/// The most bytes of the file, but for the engine's own pages, under a mebibyte. The engine doubles the file when it is
/// full, and fills pages by half at least, so what is stored stays below half of that: [`MOST_STORED`], the lines and the
/// notes.
pub(crate) const MOST_IN_FILE: u64 = 64 << 20;

/// The most bytes of blocks, with their names. Beyond, the oldest hour goes.
pub(crate) const MOST_STORED: u64 = MOST_IN_FILE / 2
    - (MOST_CHANGES_BYTES + MOST_ALERTS_BYTES + MOST_CANARIES_BYTES + MOST_NOTES_BYTES) as u64;

/// The same without a folder: what is in memory is at most four times as much.
pub(crate) const MOST_IN_MEMORY: u64 = 4 << 20;

/// The most changes that are kept, and the most bytes of their text.
pub(crate) const MOST_CHANGES: usize = 200;
pub(crate) const MOST_CHANGES_BYTES: usize = 8 << 20;

/// The most alerts that are kept, and the most bytes of their text: two kilobytes each.
pub(crate) const MOST_ALERTS: usize = 1_000;
pub(crate) const MOST_ALERTS_BYTES: usize = 2 << 20;

/// The most canaries of which it is kept what became of them, and the most bytes of their text: four kilobytes each.
pub(crate) const MOST_CANARIES: usize = 256;
pub(crate) const MOST_CANARIES_BYTES: usize = 1 << 20;

/// The most bytes of all notes.
const MOST_NOTES_BYTES: usize = NoteOf::Alerts.most_bytes() + NoteOf::Keys.most_bytes();

/// A note: one text, which is replaced as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum NoteOf {
    /// Silences, and which alerts were sent.
    Alerts,
    /// The busiest keys of the last hours.
    Keys,
}

impl NoteOf {
    pub(crate) const ALL: [Self; 2] = [Self::Alerts, Self::Keys];

    /// The most bytes of its text; a longer one is not kept.
    pub(crate) const fn most_bytes(self) -> usize {
        match self {
            // A hundred silences, with names and reasons of a kilobyte, escaped.
            Self::Alerts => 1 << 20,
            // Some 25,000 keys.
            Self::Keys => 2 << 20,
        }
    }

    /// Its name in the file.
    const fn name(self) -> &'static str {
        match self {
            Self::Alerts => "alerts",
            Self::Keys => "keys",
        }
    }
}

/// By [`NoteOf`].
pub(crate) type Notes = [Option<Arc<str>>; NoteOf::ALL.len()];

/// The format version that this build writes, and the newest that it reads.
const FORM: u64 = 1;

/// By tier, beginning, and name of the policy.
const BLOCKS: TableDefinition<'_, (u8, u64, &str), &[u8]> = TableDefinition::new("blocks");
const CHANGES: TableDefinition<'_, u64, &str> = TableDefinition::new("changes");
/// A file of an earlier build lacks these until the first write.
const ALERTS: TableDefinition<'_, u64, &str> = TableDefinition::new("alerts");
const CANARIES: TableDefinition<'_, u64, &str> = TableDefinition::new("canaries");
/// By [`NoteOf::name`]. A file of an earlier build lacks it, or some of them, until the first write.
const NOTES: TableDefinition<'_, &str, &str> = TableDefinition::new("notes");
const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");

/// Where the history is kept.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    Memory,
    Folder(PathBuf),
}

/// An open file, locked against other processes until it is dropped.
#[derive(Debug)]
pub(crate) struct HistoryFile(EngineFile);

/// A file as it was found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: HistoryFile,
    /// The number of the last write.
    pub(crate) written: u64,
    pub(crate) changes: BTreeMap<u64, Arc<str>>,
    pub(crate) alerts: BTreeMap<u64, Arc<str>>,
    pub(crate) canaries: BTreeMap<u64, Arc<str>>,
    pub(crate) notes: Notes,
    pub(crate) extent: Extent,
}

/// Lines to be written, by their numbers, and the first number that is kept.
#[derive(Debug, Default)]
pub(crate) struct NewLines {
    pub(crate) new: Vec<(u64, Arc<str>)>,
    pub(crate) first: u64,
}

/// How much the file has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    /// The bytes of blocks and their names.
    pub(crate) stored: u64,
    pub(crate) oldest: Option<u64>,
}

/// What one write adds and removes.
#[derive(Debug)]
pub(crate) struct Work<'w> {
    pub(crate) number: u64,
    pub(crate) deltas: &'w Deltas,
    pub(crate) changes: &'w NewLines,
    pub(crate) alerts: &'w NewLines,
    pub(crate) canaries: &'w NewLines,
    /// `None`: it stays as it is.
    pub(crate) notes: &'w Notes,
    /// By which age blocks are removed; `None`: by none, because the clock is in doubt.
    pub(crate) now: Option<u64>,
    pub(crate) most_stored: u64,
}

/// Opens or makes the file. One that cannot be read is put aside with a warning, and another one is begun.
pub(crate) fn open(location: &Location) -> Result<Opened, FileError> {
    match location {
        Location::Memory => guarded(|| read(engine_file::in_memory()?)),
        Location::Folder(folder) => engine_file::open(folder, NAME, DAMAGED, "history", read),
    }
}

fn read(file: EngineFile) -> Result<Opened, FileError> {
    let file = HistoryFile(file);
    let state = file.prepare()?;
    if state.form > FORM {
        return Err(FileError::Newer(format!("its form is {}; this build knows {FORM}", state.form)));
    }
    let Contents { changes, alerts, canaries, notes, extent } = file.contents()?;
    Ok(Opened { file, written: state.written, changes, alerts, canaries, notes, extent })
}

struct FileState {
    form: u64,
    written: u64,
}

/// What is read when a file is opened.
struct Contents {
    changes: BTreeMap<u64, Arc<str>>,
    alerts: BTreeMap<u64, Arc<str>>,
    canaries: BTreeMap<u64, Arc<str>>,
    notes: Notes,
    extent: Extent,
}

impl HistoryFile {
    /// Makes the tables of a new file, and reads the state.
    fn prepare(&self) -> Result<FileState, redb::Error> {
        let reading = self.0.engine.begin_read()?;
        match reading.open_table(STATE) {
            Ok(table) => {
                let number = |name: &str| -> Result<u64, redb::Error> {
                    Ok(table.get(name)?.map_or(0, |number| number.value()))
                };
                return Ok(FileState { form: number("form")?, written: number("written")? });
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.into()),
        }
        drop(reading);
        let writing = self.0.engine.begin_write()?;
        writing.open_table(BLOCKS)?;
        writing.open_table(CHANGES)?;
        let mut table = writing.open_table(STATE)?;
        table.insert("form", FORM)?;
        table.insert("written", 0_u64)?;
        drop(table);
        writing.commit()?;
        Ok(FileState { form: FORM, written: 0 })
    }

    fn contents(&self) -> Result<Contents, redb::Error> {
        let reading = self.0.engine.begin_read()?;
        let blocks = reading.open_table(BLOCKS)?;
        let mut extent = Extent { oldest: oldest(&blocks, &mut Packer::default())?, ..Extent::default() };
        for block in blocks.iter()? {
            let (key, block) = block?;
            extent.stored += stored(key.value().2, block.value());
        }
        let table =
            |table: TableDefinition<'static, u64, &'static str>| match table_if_there(&reading, table)? {
                Some(table) => lines(&table),
                None => Ok(BTreeMap::new()),
            };
        let changes = lines(&reading.open_table(CHANGES)?)?;
        let (alerts, canaries) = (table(ALERTS)?, table(CANARIES)?);
        let mut notes = Notes::default();
        if let Some(table) = table_if_there(&reading, NOTES)? {
            for note in NoteOf::ALL {
                notes[note as usize] = table.get(note.name())?.map(|text| Arc::from(text.value()));
            }
        }
        Ok(Contents { changes, alerts, canaries, notes, extent })
    }

    /// Returns whether the file is still there under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        self.0.is_in_place()
    }

    /// Reads the rows of a policy in some short ranges of times, each from its first on and before its second. Returns the
    /// number of the last write that is among them. A block that cannot be read is left out.
    pub(crate) fn read(
        &self,
        tier: Tier,
        name: &str,
        ranges: &[(u64, u64)],
        rows: &mut BTreeMap<u64, Row>,
    ) -> Result<u64, FileError> {
        let mut packer = Packer::default();
        let mut blocks: HashMap<u64, Rows> = HashMap::new();
        let read = || -> Result<u64, redb::Error> {
            let reading = self.0.engine.begin_read()?;
            let written = reading.open_table(STATE)?.get("written")?.map_or(0, |number| number.value());
            let table = reading.open_table(BLOCKS)?;
            let first = first_of(&table, tier)?;
            for &(from, to) in ranges {
                // Blocks before the first are not asked for.
                let Some(first) = first else { break };
                let mut start = tier.start(from.max(first));
                while start < to {
                    let block = match blocks.entry(start) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => {
                            let block = table.get((tier.number(), start, name))?;
                            let block = block.and_then(|block| packer.unpack(block.value()));
                            new.insert(block.unwrap_or_default())
                        }
                    };
                    rows.extend(times(tier, start, block).filter(|(at, _)| (from..to).contains(at)));
                    let Some(next) = start.checked_add(tier.block()) else { break };
                    start = next;
                }
            }
            Ok(written)
        };
        guarded(read)
    }

    /// Adds to blocks and changes, and removes what is old or beyond the bounds, in one transaction. Returns what the
    /// file has then, after it is on disk.
    pub(crate) fn write(
        &self,
        work: &Work<'_>,
        packer: &mut Packer,
        extent: &Extent,
    ) -> Result<Extent, FileError> {
        let write = || -> Result<Extent, redb::Error> {
            let mut writing = self.0.engine.begin_write()?;
            writing.set_durability(Durability::Immediate)?;
            writing.open_table(STATE)?.insert("written", work.number)?;
            let mut table = writing.open_table(BLOCKS)?;
            let mut stored = add_blocks(&mut table, work.deltas, packer, extent.stored)?;
            if let Some(now) = work.now {
                stored = forget_old(&mut table, now, stored)?;
            }
            while stored > work.most_stored {
                let Some((tier, start)) = oldest_block(&table)? else { break };
                stored = forget(&mut table, tier, start, start.saturating_add(1), stored)?;
            }
            let oldest = oldest(&table, packer)?;
            drop(table);
            let all = [(CHANGES, work.changes), (ALERTS, work.alerts), (CANARIES, work.canaries)];
            for (table, lines) in all {
                let mut table = writing.open_table(table)?;
                for (number, text) in &lines.new {
                    table.insert(number, &**text)?;
                }
                table.retain_in(..lines.first, |_, _| false)?;
            }
            for (note, text) in NoteOf::ALL.into_iter().zip(work.notes) {
                if let Some(text) = text {
                    writing.open_table(NOTES)?.insert(note.name(), &**text)?;
                }
            }
            writing.commit()?;
            Ok(Extent { stored, oldest })
        };
        guarded(write)
    }
}

/// Reads a table of lines.
fn lines(table: &impl ReadableTable<u64, &'static str>) -> Result<BTreeMap<u64, Arc<str>>, redb::Error> {
    let mut lines = BTreeMap::new();
    for line in table.iter()? {
        let (number, text) = line?;
        lines.insert(number.value(), Arc::from(text.value()));
    }
    Ok(lines)
}

type Blocks<'w> = Table<'w, (u8, u64, &'static str), &'static [u8]>;

fn add_blocks(
    table: &mut Blocks<'_>,
    deltas: &Deltas,
    packer: &mut Packer,
    stored_before: u64,
) -> Result<u64, redb::Error> {
    let mut sum = stored_before;
    for (tier, start, policies) in deltas.blocks() {
        for (name, rows) in policies {
            let key = (tier.number(), start, &**name);
            let known = table.get(key)?.and_then(|block| packer.unpack(block.value()));
            let mut all = known.unwrap_or_default();
            for (span, row) in rows {
                absorb_row(name, &mut all, *span, row);
            }
            let packed = packer.pack(&all);
            sum += stored(name, &packed);
            if let Some(before) = table.insert(key, packed.as_slice())? {
                sum = sum.saturating_sub(stored(name, before.value()));
            }
        }
    }
    Ok(sum)
}

fn forget_old(table: &mut Blocks<'_>, now: u64, stored: u64) -> Result<u64, redb::Error> {
    let mut stored = stored;
    for tier in Tier::ALL {
        let until = tier.start(now.saturating_sub(tier.kept_for()));
        stored = forget(table, tier, 0, until, stored)?;
        // Left by a clock that was ahead.
        let ahead = now.saturating_add(2 * DAY);
        stored = forget(table, tier, ahead, u64::MAX, stored)?;
    }
    Ok(stored)
}

/// Removes the blocks of a tier that begin from `from` on and before `until`.
fn forget(
    table: &mut Blocks<'_>,
    tier: Tier,
    from: u64,
    until: u64,
    before: u64,
) -> Result<u64, redb::Error> {
    if from >= until {
        return Ok(before);
    }
    let (mut left, number) = (before, tier.number());
    table.retain_in((number, from, "")..(number, until, ""), |key: (u8, u64, &str), block: &[u8]| {
        left = left.saturating_sub(stored(key.2, block));
        false
    })?;
    Ok(left)
}

/// The bytes that a block counts for.
fn stored(name: &str, block: &[u8]) -> u64 {
    // The key's numbers, and the lengths.
    (name.len() + block.len() + 16) as u64
}

/// Returns the beginning of a tier's first block.
fn first_of(
    table: &impl ReadableTable<(u8, u64, &'static str), &'static [u8]>,
    tier: Tier,
) -> Result<Option<u64>, redb::Error> {
    let number = tier.number();
    let first = table.range((number, 0_u64, "")..(number + 1, 0_u64, ""))?.next().transpose()?;
    Ok(first.map(|(key, _)| key.value().1))
}

/// Returns the block that ended first.
fn oldest_block(
    table: &impl ReadableTable<(u8, u64, &'static str), &'static [u8]>,
) -> Result<Option<(Tier, u64)>, redb::Error> {
    let mut oldest: Option<(Tier, u64)> = None;
    for tier in Tier::ALL {
        if let Some(start) = first_of(table, tier)?
            && oldest.is_none_or(|(other, before)| tier.end(start) < other.end(before))
        {
            oldest = Some((tier, start));
        }
    }
    Ok(oldest)
}

/// Returns when the oldest span began that has counts of the server.
fn oldest(
    table: &impl ReadableTable<(u8, u64, &'static str), &'static [u8]>,
    packer: &mut Packer,
) -> Result<Option<u64>, redb::Error> {
    let mut oldest: Option<u64> = None;
    for tier in Tier::ALL {
        let Some(start) = first_of(table, tier)? else { continue };
        let server = table.get((tier.number(), start, SERVER))?;
        let rows = server.and_then(|block| packer.unpack(block.value())).unwrap_or_default();
        let first = times(tier, start, &rows).next().map_or(start, |(at, _)| at);
        oldest = Some(oldest.map_or(first, |before| before.min(first)));
    }
    Ok(oldest)
}
