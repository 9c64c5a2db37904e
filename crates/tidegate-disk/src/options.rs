//! The options of a store on disk.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock, SystemClock};

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
