//! The file of the history, `history.redb`: blocks of counts, the changes, and the alerts.
//!
//! It stands beside the counters' file and shares nothing with it. [`redb`] manages it: each write is there completely
//! or not at all. Each write has a number, which is in the file too: whoever holds counts that a write of that number
//! adds can tell from one reading whether they are in what it read. So nothing is lost or counted twice, although
//! readers and the writer never wait for each other.
//!
//! Without a folder the same tables are in memory, with less room.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError,
};

use super::codec::{Packer, Row, Rows};
use super::tiers::{DAY, Deltas, SERVER, Tier, absorb_row, times};

/// The name of the file in its folder.
pub(crate) const NAME: &str = "history.redb";

/// Where a file goes that its engine cannot read. One of an earlier time is replaced.
pub(crate) const DAMAGED: &str = "history.redb.damaged";

/// The most bytes of the file, but for the engine's own pages, under a mebibyte. The engine doubles the file when it is
/// full, and fills pages by half at least, so what is stored stays below half of that: [`MOST_STORED`], the changes and
/// the alerts.
pub(crate) const MOST_IN_FILE: u64 = 64 << 20;

/// The most bytes of blocks, with their names. Beyond, the oldest hour goes.
pub(crate) const MOST_STORED: u64 = MOST_IN_FILE / 2 - MOST_CHANGES_BYTES as u64 - MOST_ALERTS_BYTES as u64;

/// The same without a folder: what is in memory is at most four times as much.
pub(crate) const MOST_IN_MEMORY: u64 = 4 << 20;

/// The most changes that are kept, and the most bytes of their text.
pub(crate) const MOST_CHANGES: usize = 200;
pub(crate) const MOST_CHANGES_BYTES: usize = 8 << 20;

/// The most alerts that are kept, and the most bytes of their text: two kilobytes each.
pub(crate) const MOST_ALERTS: usize = 1_000;
pub(crate) const MOST_ALERTS_BYTES: usize = 2 << 20;

/// The size of the engine's page cache, in bytes.
const CACHE: usize = 4 << 20;

/// The format version that this build writes, and the newest that it reads.
const FORM: u64 = 1;

/// By tier, beginning, and name of the policy.
const BLOCKS: TableDefinition<'_, (u8, u64, &str), &[u8]> = TableDefinition::new("blocks");
const CHANGES: TableDefinition<'_, u64, &str> = TableDefinition::new("changes");
/// A file of an earlier build lacks it until the first write.
const ALERTS: TableDefinition<'_, u64, &str> = TableDefinition::new("alerts");
const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");

/// Where the history is kept.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Memory,
    Folder(PathBuf),
}

#[derive(Debug)]
pub(crate) enum FileError {
    System(String),
    InUse,
    Damaged(String),
    Newer(String),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(what) | Self::Newer(what) => f.write_str(what),
            Self::InUse => f.write_str("another process has the file open"),
            Self::Damaged(what) => write!(f, "the file is damaged: {what}"),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl From<redb::Error> for FileError {
    fn from(error: redb::Error) -> Self {
        match error {
            // Not a file of the engine, or a part of one.
            redb::Error::Io(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Self::Damaged(error.to_string())
            }
            redb::Error::Io(error) => Self::System(error.to_string()),
            // Of a write after one that failed, or by a reader meanwhile.
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::System("an earlier write has failed".to_owned())
            }
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::InUse,
            redb::Error::UpgradeRequired(version) => Self::Newer(format!("its engine's form is {version}")),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// An open file, locked against other processes until it is dropped.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    engine: Database,
    path: Option<PathBuf>,
    inode: Option<(u64, u64)>,
}

/// A file as it was found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: HistoryFile,
    /// The number of the last write.
    pub(crate) written: u64,
    pub(crate) changes: BTreeMap<u64, Arc<str>>,
    pub(crate) alerts: BTreeMap<u64, Arc<str>>,
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
    /// The bytes of the file; without one, those stored.
    pub(crate) bytes: u64,
    pub(crate) oldest: Option<u64>,
}

/// What one write adds and removes.
#[derive(Debug)]
pub(crate) struct Work<'w> {
    pub(crate) number: u64,
    pub(crate) deltas: &'w Deltas,
    pub(crate) changes: &'w NewLines,
    pub(crate) alerts: &'w NewLines,
    /// By which age blocks are removed; `None`: by none, because the clock is in doubt.
    pub(crate) now: Option<u64>,
    pub(crate) most_stored: u64,
}

/// Opens or makes the file. One that cannot be read is put aside with a warning, and another one is begun.
pub(crate) fn open(place: &Place) -> Result<Opened, FileError> {
    let folder = match place {
        Place::Memory => return guarded(|| read(in_memory()?, None, None)),
        Place::Folder(folder) => folder,
    };
    match guarded(|| open_file(folder)) {
        Err(FileError::Damaged(what)) => {
            let (path, aside) = (folder.join(NAME), folder.join(DAMAGED));
            std::fs::rename(&path, &aside)?;
            tracing::warn!(
                path = %aside.display(), what, "the file of the history is damaged; it is put aside, and begun anew"
            );
            guarded(|| open_file(folder))
        }
        opened => opened,
    }
}

fn open_file(folder: &Path) -> Result<Opened, FileError> {
    make_folder(folder)?;
    let path = folder.join(NAME);
    if std::fs::symlink_metadata(&path).is_ok_and(|known| known.is_symlink()) {
        let what = "it is a symbolic link, which is not followed";
        return Err(FileError::System(what.to_owned()));
    }
    let file = private(OpenOptions::new().read(true).write(true).create(true).truncate(false)).open(&path)?;
    let inode = inode_of(&file);
    read(on_disk(file)?, Some(path), inode)
}

/// The whole file is read and checked now, or altered pages would only be found when they are needed.
fn on_disk(file: File) -> Result<Database, FileError> {
    let open = || -> Result<Database, DatabaseError> {
        let backend = FileBackend::new(file)?;
        Database::builder()
            .set_cache_size(CACHE)
            .set_check_integrity_on_open(true)
            .create_with_backend(backend)
    };
    open().map_err(|error| redb::Error::from(error).into())
}

fn in_memory() -> Result<Database, FileError> {
    let made = Database::builder().set_cache_size(1 << 20).create_with_backend(InMemoryBackend::new());
    made.map_err(|error| redb::Error::from(error).into())
}

/// Calls engine code that reads a possibly damaged file: a panic counts as damage.
fn guarded<T>(then: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    catch_unwind(AssertUnwindSafe(then))
        .unwrap_or_else(|_| Err(FileError::Damaged("its engine cannot read it".to_owned())))
}

fn read(engine: Database, path: Option<PathBuf>, inode: Option<(u64, u64)>) -> Result<Opened, FileError> {
    let file = HistoryFile { engine, path, inode };
    let state = file.prepare()?;
    if state.form > FORM {
        return Err(FileError::Newer(format!("its form is {}; this build knows {FORM}", state.form)));
    }
    let Contents { changes, alerts, mut extent } = file.contents()?;
    extent.bytes = file.bytes(extent.stored);
    Ok(Opened { file, written: state.written, changes, alerts, extent })
}

struct FileState {
    form: u64,
    written: u64,
}

/// What is read when a file is opened.
struct Contents {
    changes: BTreeMap<u64, Arc<str>>,
    alerts: BTreeMap<u64, Arc<str>>,
    extent: Extent,
}

impl HistoryFile {
    /// Makes the tables of a new file, and reads the state.
    fn prepare(&self) -> Result<FileState, FileError> {
        let prepared = || -> Result<FileState, redb::Error> {
            let reading = self.engine.begin_read()?;
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
            let writing = self.engine.begin_write()?;
            writing.open_table(BLOCKS)?;
            writing.open_table(CHANGES)?;
            let mut table = writing.open_table(STATE)?;
            table.insert("form", FORM)?;
            table.insert("written", 0_u64)?;
            drop(table);
            writing.commit()?;
            Ok(FileState { form: FORM, written: 0 })
        };
        Ok(prepared()?)
    }

    fn contents(&self) -> Result<Contents, FileError> {
        let contents = || -> Result<Contents, redb::Error> {
            let reading = self.engine.begin_read()?;
            let blocks = reading.open_table(BLOCKS)?;
            let oldest = oldest(&blocks, &mut Packer::default())?;
            let mut extent = Extent { oldest, ..Extent::default() };
            for block in blocks.iter()? {
                let (key, block) = block?;
                extent.stored += stored(key.value().2, block.value());
            }
            let changes = lines(&reading.open_table(CHANGES)?)?;
            let alerts = match reading.open_table(ALERTS) {
                Ok(table) => lines(&table)?,
                Err(TableError::TableDoesNotExist(_)) => BTreeMap::new(),
                Err(error) => return Err(error.into()),
            };
            Ok(Contents { changes, alerts, extent })
        };
        Ok(contents()?)
    }

    /// Returns whether the file is still there under its name.
    pub(crate) fn is_in_place(&self) -> bool {
        self.inode.is_none() || self.path.as_deref().is_none_or(|path| inode_at(path) == self.inode)
    }

    fn bytes(&self, stored: u64) -> u64 {
        let of_file = |path: &Path| std::fs::metadata(path).ok().map(|known| known.len());
        self.path.as_deref().and_then(of_file).unwrap_or(stored)
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
        let mut read = || -> Result<u64, redb::Error> {
            let reading = self.engine.begin_read()?;
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
        guarded(|| Ok(read()?))
    }

    /// Adds to blocks and changes, and removes what is old or beyond the bounds, in one transaction. Returns what the
    /// file has then, after it is on disk.
    pub(crate) fn write(
        &self,
        work: &Work<'_>,
        packer: &mut Packer,
        extent: &Extent,
    ) -> Result<Extent, FileError> {
        let mut write = || -> Result<Extent, redb::Error> {
            let mut writing = self.engine.begin_write()?;
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
            for (table, lines) in [(CHANGES, work.changes), (ALERTS, work.alerts)] {
                let mut table = writing.open_table(table)?;
                for (number, text) in &lines.new {
                    table.insert(number, &**text)?;
                }
                table.retain_in(..lines.first, |_, _| false)?;
            }
            writing.commit()?;
            Ok(Extent { stored, bytes: 0, oldest })
        };
        let mut extent = guarded(|| Ok(write()?))?;
        extent.bytes = self.bytes(extent.stored);
        Ok(extent)
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

/// Returns when the oldest span began of which the server's counts are kept.
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

fn make_folder(folder: &Path) -> io::Result<()> {
    match std::fs::metadata(folder) {
        Ok(known) if known.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::NotADirectory, "there is a file of that name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private_folder(DirBuilder::new()).create(folder)
        }
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn private_folder(mut builder: DirBuilder) -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn private_folder(builder: DirBuilder) -> DirBuilder {
    builder
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn inode_of(file: &File) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(unix)]
fn inode_at(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).ok().map(|known| (known.dev(), known.ino()))
}

#[cfg(not(unix))]
fn inode_of(_: &File) -> Option<(u64, u64)> {
    None
}

#[cfg(not(unix))]
fn inode_at(_: &Path) -> Option<(u64, u64)> {
    None
}
