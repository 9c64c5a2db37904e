//! The file of the record, `record.redb`: refusals by their ids, which begin with the time, so the oldest are the first.
//!
//! There are two rooms. In one are the refusals of keys that are refused minute after minute, one a minute of each; in the
//! other are all others. When the file has enough, the oldest goes of the room that has more than half, so a flood of keys
//! that come once pushes out none of those that stay.
//!
//! It stands beside the history's file and shares nothing with it, nor with the counters'. Each write is there completely or
//! not at all.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{
    Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition, TableError,
};
use tidegate_server::{Recalled, RefusalRecord};

use super::sample::{A_SECOND, LeftOut, NEW_A_MINUTE};
use crate::engine_file::{self, EngineFile, FileError, guarded, table_if_there};

/// The name of the file in its folder.
pub(super) const NAME: &str = "record.redb";

/// Where a file goes that its engine cannot read. One of an earlier time is replaced.
pub(super) const DAMAGED: &str = "record.redb.damaged";

/// The most bytes of the file, but for the engine's own pages, under a mebibyte. As the history's, it doubles when it is
/// full, and its pages are filled by half at least, so what is stored stays below half of that: [`MOST_STORED`], and the
/// configurations.
pub(super) const MOST_IN_FILE: u64 = 64 << 20;

/// The most bytes of refusals. Beyond, the oldest go.
const MOST_STORED: u64 = MOST_IN_FILE / 2 - MOST_CONFIGURATIONS as u64 * MOST_PACKED as u64;

/// The configurations that are kept: the last that recorded refusals name.
pub(super) const MOST_CONFIGURATIONS: usize = 16;

/// The longest text of a configuration, in bytes, and the longest when it is packed. A longer one is not kept.
const MOST_CONFIGURATION: usize = 8 << 20;
const MOST_PACKED: usize = 256 << 10;

/// The longest text of a refusal, in bytes: 8 KiB of attributes and 32 limits are half of that at most, escaped.
const MOST_TEXT: usize = 512 << 10;

const LEVEL: i32 = 3;

/// The format version that this build writes, and the newest that it reads.
const FORM: u64 = 1;

/// A key with a refusal in one of so many minutes before is refused minute after minute.
const STEADY_WITHIN: u64 = 10;

/// A refusal that lies further ahead of the newest, in milliseconds, is of a clock that was ahead.
const AHEAD: u64 = 60_000;

/// By id: the run and the number of its configuration, the digest of the key, and the packed text.
const REFUSALS: TableDefinition<'_, u128, (u64, u64, &str, &[u8])> = TableDefinition::new("refusals");
/// The same of keys that are refused minute after minute. A file of an earlier build lacks it until the first write.
const STEADY: TableDefinition<'_, u128, (u64, u64, &str, &[u8])> = TableDefinition::new("steady");
/// By digest and id, of both.
const KEYS: TableDefinition<'_, (&str, u128), ()> = TableDefinition::new("keys");
/// By run and number, packed.
const CONFIGURATIONS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("configurations");
/// By minute since 1970: how many refusals were left out by the sample, and because the queue was full.
const LEFT_OUT: TableDefinition<'_, u64, (u64, u64)> = TableDefinition::new("left_out");
/// The same of those that were left out because enough new keys were refused. A file of an earlier build lacks it until
/// the first write.
const LEFT_OUT_NEW: TableDefinition<'_, u64, u64> = TableDefinition::new("left_out_new");
/// `form`, and `dropped`: how many refusals have gone because they were the oldest.
const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");

/// What one write adds.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) run: u64,
    /// As [`packed_configuration`] makes them.
    pub(super) configurations: Vec<(u64, Arc<[u8]>)>,
    pub(super) left_out: LeftOut,
    pub(super) records: Vec<RefusalRecord>,
}

/// The bytes of refusals, with their keys, of each room.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    steady: u64,
    others: u64,
}

impl Stored {
    const fn all(self) -> u64 {
        self.steady.saturating_add(self.others)
    }
}

/// An open file, locked against other processes until it is dropped.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: EngineFile,
    most_stored: u64,
    stored: Mutex<Stored>,
    newest_run: u64,
}

impl RecordFile {
    /// Opens or makes the file. One that cannot be read is put aside with a warning, and another one is begun.
    pub(super) fn open(folder: &Path) -> Result<Self, FileError> {
        Self::bounded(folder, MOST_STORED)
    }

    pub(super) fn bounded(folder: &Path, most_stored: u64) -> Result<Self, FileError> {
        engine_file::open(folder, NAME, DAMAGED, "record of refusals", |file| {
            let Contents { stored, newest_run, .. } = found(&file)?;
            Ok(Self { file, most_stored, stored: Mutex::new(stored), newest_run })
        })
    }

    /// Returns whether the file is still there under its name.
    pub(super) fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// Returns the highest number of a run that the file had when it was opened; 0: none.
    pub(super) fn newest_run(&self) -> u64 {
        self.newest_run
    }

    /// Adds refusals, and removes the oldest beyond the bound, in one transaction, which is on disk afterwards.
    pub(super) fn write(&self, batch: &Batch) -> Result<(), FileError> {
        let stored = *self.stored.lock();
        let stored = guarded(|| self.add(batch, stored))?;
        *self.stored.lock() = stored;
        Ok(())
    }

    fn add(&self, batch: &Batch, before: Stored) -> Result<Stored, redb::Error> {
        let mut stored = before;
        let mut writing = self.file.engine.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        let mut rooms = Rooms {
            steady: writing.open_table(STEADY)?,
            others: writing.open_table(REFUSALS)?,
            keys: writing.open_table(KEYS)?,
        };
        for record in &batch.records {
            rooms.add(batch.run, record, &mut stored)?;
        }
        let newest = batch.records.iter().map(|record| millis_of(record.id)).max();
        let mut dropped = 0;
        while stored.all() > self.most_stored {
            if !rooms.drop_one(self.most_stored, newest.unwrap_or(u64::MAX), &mut stored)? {
                break;
            }
            dropped += 1;
        }
        let oldest = rooms.others.first()?.map(|(id, _)| minute_of(id.value()));
        drop(rooms);
        let mut configurations = writing.open_table(CONFIGURATIONS)?;
        for (number, packed) in &batch.configurations {
            let known = configurations.get((batch.run, *number))?.is_some();
            if !known {
                configurations.insert((batch.run, *number), &**packed)?;
            }
        }
        // Later runs have higher numbers.
        while configurations.len()? > MOST_CONFIGURATIONS as u64 {
            configurations.pop_first()?;
        }
        drop(configurations);
        let mut left_out = writing.open_table(LEFT_OUT)?;
        let mut left_out_new = writing.open_table(LEFT_OUT_NEW)?;
        if let Some(minute) = newest.map(|newest| newest / 60_000) {
            let LeftOut { sampled, new, full } = batch.left_out;
            if sampled > 0 || full > 0 {
                let (before, full_before) = left_out.get(minute)?.map_or((0, 0), |before| before.value());
                left_out.insert(minute, (before + sampled, full_before + full))?;
            }
            if new > 0 {
                let before = left_out_new.get(minute)?.map_or(0, |before| before.value());
                left_out_new.insert(minute, before + new)?;
            }
        }
        if let Some(oldest) = oldest {
            left_out.retain_in(..oldest, |_, _| false)?;
            left_out_new.retain_in(..oldest, |_, _| false)?;
        }
        drop((left_out, left_out_new));
        if dropped > 0 {
            let mut state = writing.open_table(STATE)?;
            let before = state.get("dropped")?.map_or(0, |number| number.value());
            state.insert("dropped", before + dropped)?;
        }
        writing.commit()?;
        Ok(stored)
    }

    /// Looks for a refusal. If it is not there, says which bound left it out, and which one of the same key is nearest.
    pub(super) fn read(&self, id: u128, key: Option<&str>) -> Result<Recalled, FileError> {
        guarded(|| self.find(id, key))
    }

    fn find(&self, id: u128, key: Option<&str>) -> Result<Recalled, redb::Error> {
        let reading = self.file.engine.begin_read()?;
        let others = reading.open_table(REFUSALS)?;
        let steady = table_if_there(&reading, STEADY)?;
        let found = match others.get(id)? {
            Some(found) => Some(found),
            None => match &steady {
                Some(steady) => steady.get(id)?,
                None => None,
            },
        };
        if let Some(found) = found {
            let (run, number, _, text) = found.value();
            let Some(text) = unpacked(text, MOST_TEXT) else {
                let why = "its record cannot be read".to_owned();
                return Ok(Recalled::Missing { why, nearest: None });
            };
            let configurations = reading.open_table(CONFIGURATIONS)?;
            let policies = configurations.get((run, number))?;
            let policies = policies.and_then(|packed| unpacked_configuration(packed.value()));
            return Ok(Recalled::Found { text, policies });
        }
        let nearest = match key {
            None => None,
            Some(key) => {
                let keys = reading.open_table(KEYS)?;
                let before = keys.range((key, 0_u128)..(key, id))?.next_back().transpose()?;
                let after = keys.range((key, id)..=(key, u128::MAX))?.next().transpose()?;
                let ids = [before, after].into_iter().flatten().map(|(place, _)| place.value().1);
                ids.min_by_key(|other| millis_of(*other).abs_diff(millis_of(id)))
            }
        };
        let oldest = Oldest {
            steady: match &steady {
                Some(steady) => steady.first()?.map(|(id, _)| millis_of(id.value())),
                None => None,
            },
            others: others.first()?.map(|(id, _)| millis_of(id.value())),
        };
        let dropped = reading.open_table(STATE)?.get("dropped")?.map_or(0, |number| number.value());
        // Counts of a second are written with the refusals of that or the next.
        let mut left_out = LeftOut::default();
        let minute = minute_of(id);
        for counts in reading.open_table(LEFT_OUT)?.range(minute..=minute + 1)? {
            let (sampled, full) = counts?.1.value();
            left_out.sampled += sampled;
            left_out.full += full;
        }
        if let Some(table) = table_if_there(&reading, LEFT_OUT_NEW)? {
            for counts in table.range(minute..=minute + 1)? {
                left_out.new += counts?.1.value();
            }
        }
        Ok(Recalled::Missing { why: why(millis_of(id), oldest, dropped, left_out), nearest })
    }
}

/// The tables of refusals, while something is added.
struct Rooms<'w> {
    steady: Refusals<'w>,
    others: Refusals<'w>,
    keys: Keys<'w>,
}

type Refusals<'w> = Table<'w, u128, (u64, u64, &'static str, &'static [u8])>;
type Keys<'w> = Table<'w, (&'static str, u128), ()>;

impl Rooms<'_> {
    /// Adds a refusal, unless it is there or too long.
    fn add(&mut self, run: u64, record: &RefusalRecord, stored: &mut Stored) -> Result<(), redb::Error> {
        let (id, key) = (record.id, record.key.as_str());
        // One that was tried before may be there already.
        if self.steady.get(id)?.is_some() || self.others.get(id)?.is_some() {
            return Ok(());
        }
        let Some(packed) = packed(&record.text, MOST_TEXT) else { return Ok(()) };
        let weight = weight(key, &packed);
        let value = (run, record.configuration, key, packed.as_slice());
        if self.is_steady(id, key)? {
            self.steady.insert(id, value)?;
            stored.steady += weight;
        } else {
            self.others.insert(id, value)?;
            stored.others += weight;
        }
        if !key.is_empty() {
            self.keys.insert((key, id), ())?;
        }
        Ok(())
    }

    /// Returns whether a refusal is the first that is recorded in its minute of a key with one in a minute before.
    fn is_steady(&self, id: u128, key: &str) -> Result<bool, redb::Error> {
        if key.is_empty() {
            return Ok(false);
        }
        let minute = minute_of(id);
        let has_any = |from: u64, to: u64| -> Result<bool, redb::Error> {
            let mut ids = self.keys.range((key, first_of(from))..(key, first_of(to)))?;
            Ok(ids.next().transpose()?.is_some())
        };
        Ok(has_any(minute.saturating_sub(STEADY_WITHIN), minute)? && !has_any(minute, minute + 1)?)
    }

    /// Removes the oldest refusal of the room that has more than half of the most, or one that a clock has left which was
    /// ahead. `newest`: the time of the newest refusal, in milliseconds since 1970. Returns whether there was one.
    fn drop_one(&mut self, most: u64, newest: u64, stored: &mut Stored) -> Result<bool, redb::Error> {
        let (room, bytes) = if stored.others > most / 2 {
            (&mut self.others, &mut stored.others)
        } else {
            (&mut self.steady, &mut stored.steady)
        };
        let last = room.last()?.map(|(id, _)| millis_of(id.value()));
        let is_ahead = last.is_some_and(|last| last > newest.saturating_add(AHEAD));
        let dropped = if is_ahead { room.pop_last()? } else { room.pop_first()? };
        let Some((id, refusal)) = dropped else { return Ok(false) };
        let (_, _, key, packed) = refusal.value();
        self.keys.remove((key, id.value()))?;
        *bytes = bytes.saturating_sub(weight(key, packed));
        Ok(true)
    }
}

/// What a file has.
struct Contents {
    form: u64,
    stored: Stored,
    newest_run: u64,
}

/// Makes the tables of a new file, and returns the bytes of the refusals.
fn found(file: &EngineFile) -> Result<Contents, FileError> {
    let contents = contents(file)?;
    if contents.form > FORM {
        return Err(FileError::Newer(format!("its form is {}; this build knows {FORM}", contents.form)));
    }
    Ok(contents)
}

fn contents(file: &EngineFile) -> Result<Contents, redb::Error> {
    let reading = file.engine.begin_read()?;
    match reading.open_table(STATE) {
        Ok(state) => {
            let form = state.get("form")?.map_or(0, |number| number.value());
            let mut contents = Contents { form, stored: Stored::default(), newest_run: 0 };
            if form <= FORM {
                contents.stored.others = bytes_of(&reading.open_table(REFUSALS)?)?;
                if let Some(steady) = table_if_there(&reading, STEADY)? {
                    contents.stored.steady = bytes_of(&steady)?;
                }
                let configurations = reading.open_table(CONFIGURATIONS)?;
                contents.newest_run = configurations.last()?.map_or(0, |(place, _)| place.value().0);
            }
            return Ok(contents);
        }
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    drop(reading);
    let writing = file.engine.begin_write()?;
    writing.open_table(REFUSALS)?;
    writing.open_table(KEYS)?;
    writing.open_table(CONFIGURATIONS)?;
    writing.open_table(LEFT_OUT)?;
    writing.open_table(STATE)?.insert("form", FORM)?;
    writing.commit()?;
    Ok(Contents { form: FORM, stored: Stored::default(), newest_run: 0 })
}

/// Returns the bytes of all refusals of a table.
fn bytes_of(
    refusals: &impl ReadableTable<u128, (u64, u64, &'static str, &'static [u8])>,
) -> Result<u64, redb::Error> {
    let mut bytes = 0;
    for refusal in refusals.iter()? {
        let (_, refusal) = refusal?;
        let (_, _, key, packed) = refusal.value();
        bytes += weight(key, packed);
    }
    Ok(bytes)
}

/// The bytes that a refusal counts for: twice the key, which is in two tables, the ids and numbers, and the lengths.
fn weight(key: &str, packed: &[u8]) -> u64 {
    (2 * key.len() + packed.len() + 64) as u64
}

/// Packs a text; `None` if it is too long.
fn packed(text: &str, most: usize) -> Option<Vec<u8>> {
    if text.len() > most {
        return None;
    }
    zstd::bulk::compress(text.as_bytes(), LEVEL).ok()
}

/// Packs the text of a configuration; `None` if it is too long to be kept.
pub(super) fn packed_configuration(text: &str) -> Option<Arc<[u8]>> {
    packed(text, MOST_CONFIGURATION).filter(|packed| packed.len() <= MOST_PACKED).map(Into::into)
}

pub(super) fn unpacked_configuration(packed: &[u8]) -> Option<String> {
    unpacked(packed, MOST_CONFIGURATION)
}

fn unpacked(packed: &[u8], most: usize) -> Option<String> {
    String::from_utf8(zstd::bulk::decompress(packed, most).ok()?).ok()
}

/// The latest time of an id, in milliseconds since 1970.
const MOST_MILLIS: u64 = (1 << 48) - 1;

/// Returns the time of an id, in milliseconds since 1970.
fn millis_of(id: u128) -> u64 {
    // 48 bits.
    (id >> 80) as u64
}

fn minute_of(id: u128) -> u64 {
    millis_of(id) / 60_000
}

/// Returns the lowest id of a minute.
fn first_of(minute: u64) -> u128 {
    u128::from(minute.saturating_mul(60_000).min(MOST_MILLIS)) << 80
}

/// When the oldest refusals of each room were, in milliseconds since 1970; `None`: it has none.
#[derive(Clone, Copy, Debug)]
struct Oldest {
    steady: Option<u64>,
    others: Option<u64>,
}

/// Says which bound left a refusal out. `at` is in milliseconds since 1970.
fn why(at: u64, oldest: Oldest, dropped: u64, left_out: LeftOut) -> String {
    let since = |at: u64| {
        let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
    };
    let Some(first) = oldest.others.or(oldest.steady) else {
        return "no refusal is recorded yet".to_owned();
    };
    if at < first && dropped == 0 {
        return format!("the record began later, at {}", since(first));
    }
    if at < first {
        let steady = oldest.steady.filter(|steady| *steady < first);
        let again = "of keys that are refused again and again";
        let steady = steady.map(|steady| format!(", but for one a minute {again}, since {}", since(steady)));
        return format!(
            "it is older than the oldest that is recorded, of {}{}: the file has at most {} MiB, and the oldest go first",
            since(first),
            steady.unwrap_or_default(),
            MOST_IN_FILE >> 20
        );
    }
    let LeftOut { sampled, new, full } = left_out;
    let about = "refusals were left out about that minute";
    let mut reasons = Vec::new();
    if sampled > 0 {
        reasons.push(format!(
            "{sampled} {about}: of each key one a minute is recorded, and all of them up to {A_SECOND} a second"
        ));
    }
    if new > 0 {
        reasons.push(format!(
            "{new} {about}, since their keys were refused for the first time: beyond {A_SECOND} a second, \
             {NEW_A_MINUTE} such keys a minute are recorded"
        ));
    }
    if full > 0 {
        reasons.push(format!("{full} {about}, because the queue for the disk was full"));
    }
    if reasons.is_empty() {
        // While the disk is away, what is left out is counted under the minute of what is written after it.
        return "no refusal was left out about that minute that is known of: the request passed, another server refused it, \
                or the disk was away"
            .to_owned();
    }
    reasons.join("; ")
}
