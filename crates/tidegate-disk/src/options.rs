//! How a store on disk is made.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, SystemClock};

use crate::health::{Change, OnChange};

/// How often changes are written, unless another interval is chosen: so little that a crash gives back a fraction of a second, and seldom
/// enough that a disk which takes 10 ms for a write is busy for a twentieth of the time.
const INTERVAL: Duration = Duration::from_millis(200);

/// How long after a write that failed the next one is tried, unless another time is chosen.
const RETRY: Duration = Duration::from_secs(1);

/// How many keys there is room for, unless another number is chosen: as in memory, 27 MB.
const KEYS: usize = 1_000_000;

/// How many bytes are written each second at most, unless another number is chosen: a third of what a plain SATA disk takes, so that what
/// else is on it goes on.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// How a [`DiskStore`](crate::DiskStore) is made.
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
    pub(crate) told: Option<Box<OnChange>>,
}

impl DiskOptions {
    /// Keeps the store in a folder, in the file `tidegate.redb`. A folder that is missing is made, if the one that it lies in is there.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            keys: KEYS,
            full_keys: false,
            interval: INTERVAL,
            retry: RETRY,
            bytes_per_second: BYTES_PER_SECOND,
            clock: Arc::new(SystemClock::new()),
            told: None,
        }
    }

    /// Chooses for how many live keys there is room, 1 to [`MemoryStore::MAX_KEYS`](tidegate::store::MemoryStore::MAX_KEYS); a million unless
    /// chosen. May differ from run to run: where there is less room than there was, keys further from full stay.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Chooses whether keys are told apart by themselves and not by their fingerprints, as
    /// [`MemoryStore::with_full_keys`](tidegate::store::MemoryStore::with_full_keys) does. Keys of up to 15 bytes are then in the file as they
    /// are. What it is when the file is made holds for good.
    pub fn full_keys(mut self, full_keys: bool) -> Self {
        self.full_keys = full_keys;
        self
    }

    /// Chooses how often what has changed is written, 1 ms to 1 h; 200 ms unless chosen. A crash may grant again what was granted in the last
    /// interval, and while that was written. Where nothing has changed that would still matter after an interval, nothing is written.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Chooses how long after a write that failed the next one is tried, 1 ms to 1 h; a second unless chosen.
    pub fn retry(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    /// Chooses how many bytes of changes are written each second at most, 1 or more; 64 MiB unless chosen. Where more than that changes,
    /// writes follow each other at longer intervals: the longest it can take is what it takes to write the whole table, once for the changes
    /// and once for what keeps the file short.
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = bytes.max(1);
        self
    }

    /// Chooses the clock that says what is now when the file is read, which should be the gate's; the system's unless chosen. States from far
    /// ahead of it were written by a clock that was fast, and are set back ([`Opened::clock_was_ahead`](crate::Opened::clock_was_ahead)).
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Has somebody told when the file cannot be written any more, and when it can be again: one call each. Called on the thread that
    /// writes, which waits for it, so it must not wait for the disk: [`DiskStore::flush`](crate::DiskStore::flush),
    /// [`DiskStore::close`](crate::DiskStore::close) and strict steps fail when they are called there. A panic in it is caught, and has
    /// no effect but what the process's panic hook does.
    pub fn on_change(mut self, told: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(told));
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
