//! Opens a store: from its options to a table with all states of the file.

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::{Clock, SystemClock};
use tidegate::store::{CapacityError, Recorder, RestoreError, Seed, Store as _, TrackedStore};

use crate::file::{self, FileError, Identity, StoreFile, guarded};
use crate::health::{Change, OnChange};

/// The default interval between writes: a crash gives back a fraction of a second, and a disk that takes 10 ms per
/// write is busy for a twentieth of the time.
const INTERVAL: Duration = Duration::from_millis(200);

const RETRY: Duration = Duration::from_secs(1);

/// The default capacity in keys: 27 MB.
const KEYS: usize = 1_000_000;

/// The default limit on bytes written per second: a third of what a plain SATA disk can take, which leaves room for
/// its other users.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// The options of a [`DiskStore`](crate::DiskStore). Keys, an interval or a pause out of range are refused by
/// [`DiskStore::open`](crate::DiskStore::open).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_disk::DiskOptions;
///
/// let options = DiskOptions::new("/var/lib/tidegate")
///     .keys(10_000_000)
///     .interval(Duration::from_millis(50))
///     .on_change(|change| eprintln!("the disk is {}: {}", if change.up { "back" } else { "gone" }, change.reason));
/// ```
#[must_use = "options do nothing before a store is opened with them"]
pub struct DiskOptions {
    pub(crate) folder: PathBuf,
    pub(crate) keys: usize,
    pub(crate) full_keys: bool,
    pub(crate) interval: Duration,
    pub(crate) retry: Duration,
    pub(crate) bytes_per_second: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) on_change: Option<Box<OnChange>>,
}

impl DiskOptions {
    /// Keeps the store in `folder`, in the file `tidegate.redb`. A missing folder is created if its parent exists.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            keys: KEYS,
            full_keys: false,
            interval: INTERVAL,
            retry: RETRY,
            bytes_per_second: BYTES_PER_SECOND,
            clock: Arc::new(SystemClock::new()),
            on_change: None,
        }
    }

    /// Sets the capacity in live keys, 1 to [`MemoryStore::MAX_KEYS`](tidegate::store::MemoryStore::MAX_KEYS); the
    /// default is a million. With less room than in the run before, the keys furthest from full are kept.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Sets whether keys are kept in full, like
    /// [`MemoryStore::with_full_keys`](tidegate::store::MemoryStore::with_full_keys). The file then stores keys of up
    /// to 15 bytes as they are. The choice cannot be changed once the file is made.
    pub fn full_keys(mut self, full_keys: bool) -> Self {
        self.full_keys = full_keys;
        self
    }

    /// Sets the interval between writes, 1 ms to 1 h; the default is 200 ms. A crash may grant again what was granted
    /// in the last interval and during its write. Nothing is written if no change would still matter after an
    /// interval.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the pause after a failed write, 1 ms to 1 h; the default is one second.
    pub fn retry(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the most bytes of changes written per second, at least 1; the default is 64 MiB. With more changes, the
    /// intervals grow, up to the time in which the whole table is written twice: once for the changes and once for the
    /// copy that keeps the file short.
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = bytes.max(1);
        self
    }

    /// Sets the clock, which should be the gate's; the default is the system's. States far ahead of it are set back
    /// ([`Opened::clock_was_ahead`](crate::Opened::clock_was_ahead)).
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets a callback for when the file can no longer be written, and when it can again: once each. It runs on the
    /// writer thread, so it must not wait for the disk: [`DiskStore::flush`](crate::DiskStore::flush),
    /// [`DiskStore::close`](crate::DiskStore::close) and strict steps fail in it. A panic in it is caught.
    pub fn on_change(mut self, on_change: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Some(Box::new(on_change));
        self
    }
}

impl fmt::Debug for DiskOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskOptions")
            .field("folder", &self.folder)
            .field("keys", &self.keys)
            .field("full_keys", &self.full_keys)
            .field("interval", &self.interval)
            .field("retry", &self.retry)
            .field("bytes_per_second", &self.bytes_per_second)
            .finish_non_exhaustive()
    }
}

/// Why a [`DiskStore`](crate::DiskStore) was not opened. The file is unchanged, except for the engine's own repair
/// after a crash.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be used or created.
    #[error(
        "the folder `{}` of the store cannot be used; make it, give it to the user that runs this process, or name another one",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file cannot be opened, read or written.
    #[error(
        "the store's file `{}` cannot be opened; check that the disk has room and that the user of this process may read and write it, or name another folder",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process, or another store of this process, has the file open.
    #[error(
        "the store's file `{}` is in use by another process; stop that one, or give each its own folder",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "the store's file `{}` is damaged ({what}); restore a copy of it, or move it away, and every limit starts full",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage that was found.
        what: String,
    },
    /// The file is not one of this store.
    #[error(
        "`{}` is not a file of this store ({what}); name another folder, or move the file away",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        what: String,
    },
    /// The file was written by a newer version, or by a build that hashes keys differently.
    #[error(
        "the store's file `{}` was written by another version ({what}); run that version, or move the file away, and every limit starts full",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The difference that was found.
        what: String,
    },
    /// The file keeps full keys and the options ask for fingerprints, or the other way round.
    #[error(
        "the store's file `{}` was made with full_keys: {kept}; keep it so, or move the file away, and every limit starts full",
        path.display()
    )]
    FullKeys {
        /// The file.
        path: PathBuf,
        /// Whether the file was made with full keys.
        kept: bool,
    },
    /// The interval is out of range.
    #[error("a flush interval of {interval:?} cannot be kept; use 1 ms to 1 h")]
    Interval {
        /// The interval of the options.
        interval: Duration,
    },
    /// The pause after a failed write is out of range.
    #[error("a pause of {retry:?} after a write that failed cannot be kept; use 1 ms to 1 h")]
    Retry {
        /// The pause of the options.
        retry: Duration,
    },
    /// The number of keys is out of range.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The writer thread could not be started.
    #[error("no thread could be started to write the store's file; raise the limit of threads")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The range of the interval, and of the pause after a failed write.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(3600));

/// What opening a store found; see [`DiskStore::opened`](crate::DiskStore::opened).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// The number of keys read that are not full.
    pub keys: usize,
    /// The bytes of pieces read.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// Whether the file was made.
    pub new: bool,
    /// How far the clock is behind the latest state in the file, if by more than ten seconds. Up to five minutes, time
    /// stands still until it has caught up. Beyond that, the clock that wrote the file was fast: its keys are as empty
    /// as they were.
    pub clock_was_ahead: Option<Duration>,
}

/// Smaller differences are not reported: time services set clocks back by as much.
const AHEAD: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) file: StoreFile,
    pub(crate) table: TrackedStore,
    pub(crate) recorder: Recorder,
    pub(crate) opened: Opened,
}

pub(crate) fn open(options: &DiskOptions, time: impl Fn() -> Instant) -> Result<Ready, OpenError> {
    let began = time();
    if options.interval < INTERVALS.0 || options.interval > INTERVALS.1 {
        return Err(OpenError::Interval { interval: options.interval });
    }
    if options.retry < INTERVALS.0 || options.retry > INTERVALS.1 {
        return Err(OpenError::Retry { retry: options.retry });
    }
    make_folder(&options.folder)
        .map_err(|source| OpenError::Folder { path: options.folder.clone(), source })?;
    let to_open_error = |error| open_error(&options.folder, error);
    let mut ready = match guarded(|| StoreFile::open(&options.folder)).map_err(to_open_error)? {
        Some(file) => read(file, options)?,
        None => make(options)?,
    };
    ready.file.identity.openings += 1;
    ready.file.write(|_| Ok(())).map_err(to_open_error)?;
    ready.opened.keys = ready.table.occupancy().used;
    ready.opened.took = time().saturating_duration_since(began);
    Ok(ready)
}

fn make(options: &DiskOptions) -> Result<Ready, OpenError> {
    let seed = Seed::random();
    let table = table(options.keys as u64, options.full_keys, &seed)?;
    let identity = Identity::new(options.keys as u64, options.full_keys, seed, table.probe());
    let file =
        StoreFile::make(&options.folder, identity).map_err(|error| open_error(&options.folder, error))?;
    let opened = Opened { keys: 0, bytes: 0, took: Duration::ZERO, new: true, clock_was_ahead: None };
    Ok(Ready { file, recorder: table.recorder(), table, opened })
}

/// Reads a file into a table of its size, and then into one of the requested size if that differs.
fn read(mut file: StoreFile, options: &DiskOptions) -> Result<Ready, OpenError> {
    let (path, known) = (file.path.clone(), file.identity.clone());
    if known.full_keys != options.full_keys {
        return Err(OpenError::FullKeys { path, kept: known.full_keys });
    }
    let mut table = table(known.keys, known.full_keys, &known.seed)?;
    if table.probe() != known.probe {
        let what = "it hashes keys differently".to_owned();
        return Err(OpenError::Version { path, what });
    }
    let mut recorder = table.recorder();
    let now = options.clock.now();
    let mut opened = Opened { keys: 0, bytes: 0, took: Duration::ZERO, new: false, clock_was_ahead: None };
    let to_open_error = |error| open_error(&options.folder, error);
    let pieces = || {
        file.read(|piece| {
            opened.bytes += piece.len() as u64;
            recorder.restore(piece, now).map_err(unreadable)
        })
    };
    guarded(pieces).map_err(to_open_error)?;
    let ahead = recorder.all_restored().since(now);
    opened.clock_was_ahead = Some(ahead).filter(|ahead| *ahead > AHEAD);
    if known.keys != options.keys as u64 {
        let other = self::table(options.keys as u64, known.full_keys, &known.seed)?;
        let mut all = other.recorder();
        // The seed and the kind of keys are the same as above.
        all.take_over(&table).map_err(unreadable).map_err(to_open_error)?;
        file.identity.keys = options.keys as u64;
        // One write replaces the pieces of the old size, or their slots would be read as those of the new.
        let rewritten = file.write(|journal| {
            journal.forget_before(u64::MAX)?;
            while let Some(piece) = all.changes(|| Duration::ZERO) {
                journal.add(&piece)?;
            }
            Ok(())
        });
        rewritten.map_err(to_open_error)?;
        all.kept();
        (table, recorder) = (other, all);
    }
    Ok(Ready { file, table, recorder, opened })
}

/// Writes a file with the content of a table into another folder.
pub(crate) fn copy(from: &TrackedStore, identity: &Identity, folder: &Path) -> Result<(), OpenError> {
    make_folder(folder).map_err(|source| OpenError::Folder { path: folder.to_owned(), source })?;
    let to_open_error = |error| open_error(folder, error);
    let copied = table(identity.keys, identity.full_keys, &identity.seed)?;
    let mut all = copied.recorder();
    // The seed and the kind of keys are the same.
    all.take_over(from).map_err(unreadable).map_err(to_open_error)?;
    let mut write = || {
        let mut file = StoreFile::make(folder, identity.clone())?;
        file.write(|journal| {
            while let Some(piece) = all.changes(|| Duration::ZERO) {
                journal.add(&piece)?;
            }
            Ok(())
        })?;
        file.close()
    };
    write().map_err(to_open_error)
}

fn table(keys: u64, full_keys: bool, seed: &Seed) -> Result<TrackedStore, CapacityError> {
    let make = if full_keys { TrackedStore::with_full_keys_and_seed } else { TrackedStore::with_seed };
    // As impossible for this machine's memory as `usize::MAX`.
    make(usize::try_from(keys).unwrap_or(usize::MAX), seed)
}

fn unreadable(error: RestoreError) -> FileError {
    use tidegate_core::bytes::DecodeError;
    match error {
        RestoreError::Decode(newer @ DecodeError::Version { .. }) => FileError::Newer(newer.to_string()),
        RestoreError::Decode(what) => FileError::Damaged(format!("a piece cannot be read: {what}")),
        other => FileError::Damaged(other.to_string()),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match std::fs::metadata(folder) {
        Ok(known) if known.is_dir() => file::check_folder(&known),
        Ok(_) => Err(io::Error::new(io::ErrorKind::NotADirectory, "there is a file of that name")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => private(DirBuilder::new()).create(folder),
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn private(mut builder: DirBuilder) -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn private(builder: DirBuilder) -> DirBuilder {
    builder
}

fn open_error(folder: &Path, error: FileError) -> OpenError {
    let path = StoreFile::path_in(folder);
    match error {
        FileError::System(source) => OpenError::File { path, source },
        FileError::InUse => OpenError::InUse { path },
        FileError::Damaged(what) => OpenError::Damaged { path, what },
        FileError::Foreign(what) => OpenError::Foreign { path, what },
        FileError::Newer(what) => OpenError::Version { path, what },
    }
}

/// Reopens a file that a store has lost. `true`: it was made anew and is empty.
pub(crate) fn again(folder: &Path, identity: &Identity) -> Result<(StoreFile, bool), FileError> {
    guarded(|| {
        let Some(file) = StoreFile::open(folder)? else {
            return StoreFile::make(folder, identity.clone()).map(|file| (file, true));
        };
        let known = &file.identity;
        if (known.store, known.keys, known.openings) != (identity.store, identity.keys, identity.openings) {
            let what = "another process has used the file meanwhile, or put another one in its place";
            return Err(FileError::Foreign(what.to_owned()));
        }
        Ok((file, false))
    })
}
