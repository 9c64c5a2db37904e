//! The file of the record, `record.redb`: refusals by their ids, which begin with the time, so the oldest are the first.
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

use super::sample::{A_SECOND, LeftOut};
use crate::engine_file::{self, EngineFile, FileError, guarded};

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

/// By id: the run and the number of its configuration, the digest of the key, and the packed text.
const REFUSALS: TableDefinition<'_, u128, (u64, u64, &str, &[u8])> = TableDefinition::new("refusals");
/// By digest and id.
const KEYS: TableDefinition<'_, (&str, u128), ()> = TableDefinition::new("keys");
/// By run and number, packed.
const CONFIGURATIONS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("configurations");
/// By minute since 1970: how many refusals were left out by the sample, and because the queue was full.
const LEFT_OUT: TableDefinition<'_, u64, (u64, u64)> = TableDefinition::new("left_out");
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

/// An open file, locked against other processes until it is dropped.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: EngineFile,
    most_stored: u64,
    /// The bytes of refusals, with their keys.
    stored: Mutex<u64>,
}

impl RecordFile {
    /// Opens or makes the file. One that cannot be read is put aside with a warning, and another one is begun.
    pub(super) fn open(folder: &Path) -> Result<Self, FileError> {
        Self::bounded(folder, MOST_STORED)
    }

    pub(super) fn bounded(folder: &Path, most_stored: u64) -> Result<Self, FileError> {
        engine_file::open(folder, NAME, DAMAGED, "record of refusals", |file| {
            let stored = found(&file)?;
            Ok(Self { file, most_stored, stored: Mutex::new(stored) })
        })
    }

    /// Returns whether the file is still there under its name.
    pub(super) fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// Adds refusals, and removes the oldest beyond the bound, in one transaction, which is on disk afterwards.
    pub(super) fn write(&self, batch: &Batch) -> Result<(), FileError> {
        let stored = *self.stored.lock();
        let stored = guarded(|| self.add(batch, stored))?;
        *self.stored.lock() = stored;
        Ok(())
    }

    fn add(&self, batch: &Batch, before: u64) -> Result<u64, redb::Error> {
        let mut stored = before;
        let mut writing = self.file.engine.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        let mut refusals = writing.open_table(REFUSALS)?;
        let mut keys = writing.open_table(KEYS)?;
        for record in &batch.records {
            let Some(packed) = packed(&record.text, MOST_TEXT) else { continue };
            let key = record.key.as_str();
            let value = (batch.run, record.configuration, key, packed.as_slice());
            // One that was tried before may be there already.
            if refusals.insert(record.id, value)?.is_none() {
                stored += weight(key, &packed);
            }
            if !key.is_empty() {
                keys.insert((key, record.id), ())?;
            }
        }
        let mut dropped = 0;
        while stored > self.most_stored {
            let Some(weight) = drop_oldest(&mut refusals, &mut keys)? else { break };
            stored = stored.saturating_sub(weight);
            dropped += 1;
        }
        let oldest = refusals.first()?.map(|(id, _)| minute_of(id.value()));
        let newest = batch.records.last().map(|record| minute_of(record.id));
        drop((refusals, keys));
        let mut configurations = writing.open_table(CONFIGURATIONS)?;
        for (number, packed) in &batch.configurations {
            let known = configurations.get((batch.run, *number))?.is_some();
            if !known {
                configurations.insert((batch.run, *number), &**packed)?;
            }
        }
        // Runs are numbered by their beginning.
        while configurations.len()? > MOST_CONFIGURATIONS as u64 {
            configurations.pop_first()?;
        }
        drop(configurations);
        let mut left_out = writing.open_table(LEFT_OUT)?;
        if let Some(minute) = newest.filter(|_| batch.left_out != LeftOut::default()) {
            let (sampled, full) = left_out.get(minute)?.map_or((0, 0), |before| before.value());
            let LeftOut { sampled: more_sampled, full: more_full } = batch.left_out;
            left_out.insert(minute, (sampled + more_sampled, full + more_full))?;
        }
        if let Some(oldest) = oldest {
            left_out.retain_in(..oldest, |_, _| false)?;
        }
        drop(left_out);
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
        let refusals = reading.open_table(REFUSALS)?;
        if let Some(found) = refusals.get(id)? {
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
        let oldest = refusals.first()?.map(|(id, _)| millis_of(id.value()));
        let dropped = reading.open_table(STATE)?.get("dropped")?.map_or(0, |number| number.value());
        // Counts of a second are written with the refusals of that or the next.
        let mut left_out = LeftOut::default();
        let minute = minute_of(id);
        for counts in reading.open_table(LEFT_OUT)?.range(minute..=minute + 1)? {
            let (sampled, full) = counts?.1.value();
            left_out.sampled += sampled;
            left_out.full += full;
        }
        Ok(Recalled::Missing { why: why(millis_of(id), oldest, dropped, left_out), nearest })
    }
}

type Refusals<'w> = Table<'w, u128, (u64, u64, &'static str, &'static [u8])>;
type Keys<'w> = Table<'w, (&'static str, u128), ()>;

/// Removes the oldest refusal, and returns the bytes that it counted for; `None` if there is none.
fn drop_oldest(refusals: &mut Refusals<'_>, keys: &mut Keys<'_>) -> Result<Option<u64>, redb::Error> {
    let Some((id, refusal)) = refusals.pop_first()? else { return Ok(None) };
    let (_, _, key, packed) = refusal.value();
    keys.remove((key, id.value()))?;
    Ok(Some(weight(key, packed)))
}

/// Makes the tables of a new file, and returns the bytes of the refusals.
fn found(file: &EngineFile) -> Result<u64, FileError> {
    let found = || -> Result<(u64, u64), redb::Error> {
        let reading = file.engine.begin_read()?;
        match reading.open_table(STATE) {
            Ok(state) => {
                let form = state.get("form")?.map_or(0, |number| number.value());
                let mut stored = 0;
                if form <= FORM {
                    for refusal in reading.open_table(REFUSALS)?.iter()? {
                        let (_, refusal) = refusal?;
                        let (_, _, key, packed) = refusal.value();
                        stored += weight(key, packed);
                    }
                }
                return Ok((form, stored));
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
        Ok((FORM, 0))
    };
    let (form, stored) = found()?;
    if form > FORM {
        return Err(FileError::Newer(format!("its form is {form}; this build knows {FORM}")));
    }
    Ok(stored)
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

/// Returns the time of an id, in milliseconds since 1970.
fn millis_of(id: u128) -> u64 {
    // 48 bits.
    (id >> 80) as u64
}

fn minute_of(id: u128) -> u64 {
    millis_of(id) / 60_000
}

/// Says which bound left a refusal out. Times are in milliseconds since 1970.
fn why(at: u64, oldest: Option<u64>, dropped: u64, left_out: LeftOut) -> String {
    let since = |at: u64| {
        let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
    };
    let most = MOST_IN_FILE >> 20;
    match oldest {
        None => "no refusal is recorded yet".to_owned(),
        Some(oldest) if at < oldest && dropped > 0 => format!(
            "it is older than the oldest that is recorded, of {}: the file has at most {most} MiB, and the oldest go first",
            since(oldest)
        ),
        Some(oldest) if at < oldest => format!("the record began later, at {}", since(oldest)),
        Some(_) => {
            let LeftOut { sampled, full } = left_out;
            let by_sample = format!(
                "{sampled} refusals were left out about that minute: of each key one a minute is recorded, and all of them up \
                 to {A_SECOND} a second"
            );
            let by_queue = format!(
                "{full} refusals were left out about that minute, because the queue for the disk was full"
            );
            match (sampled, full) {
                (0, 0) => {
                    // While the disk is away, what is left out is counted under the minute of what is written after it.
                    "no refusal was left out about that minute that is known of: the request passed, another server refused it, \
                     or the disk was away"
                        .to_owned()
                }
                (_, 0) => by_sample,
                (0, _) => by_queue,
                (_, _) => format!("{by_sample}; {by_queue}"),
            }
        }
    }
}
