//! Files beside the configuration: who may read them, how they are written, and when they change; and blocking work,
//! such as reading one, on its own thread.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tidegate::config::{MAX_BYTES, ReadError, read_file};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

/// Returns the permissions of a file that every user of this machine can read; `None` where there are none.
#[cfg(unix)]
pub(crate) fn readable_by_everybody(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = path.metadata().ok()?.permissions().mode();
    (mode & 0o004 != 0).then_some(mode & 0o7777)
}

#[cfg(not(unix))]
pub(crate) fn readable_by_everybody(_: &Path) -> Option<u32> {
    None
}

/// Writes a file that is there as a whole or not at all, also after a power cut. `name` gives the new file its name;
/// until then it begins with `prefix`. When this returns, the file is on disk. Blocks the thread.
pub(crate) fn write_whole(
    path: &Path,
    prefix: &str,
    write: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
    name: impl FnOnce(NamedTempFile) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(prefix).tempfile_in(folder)?;
    write(&mut new)?;
    new.as_file().sync_all()?;
    name(new)?;
    // Syncs the folder too, so that the name survives a power cut. Where a folder cannot be opened, the system does
    // this.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

// Detects that a file changed, however it was written.
//
// Editors rename a new file over the old one; Kubernetes swaps a symlink. A watch on the file would follow the old
// inode and see no more events. So the directory is watched, and a change counts only if the *content* differs.
// Events come in bursts, so the file is read once they pause.
//
// It is read as in a reload: a regular file of bounded length, on its own thread. An unreadable file counts as
// changed, so that the reload reports what is wrong.

/// How long events must pause before the file is read: longer than the time between an editor's write and its
/// rename.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest wait for a pause: another file in the directory may be written all the time.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest wait for reading, shorter than that of a reload, which may wait for this.
const LOOK: Duration = Duration::from_secs(5);

/// Watches one file through its directory. Stops when dropped.
#[derive(Debug)]
pub(crate) struct FileWatch {
    path: PathBuf,
    events: mpsc::Receiver<()>,
    seen: Option<u64>,
    /// Whether it was told that the file is gone.
    is_gone: bool,
    jobs: BlockingJobs,
    _watcher: RecommendedWatcher,
}

impl FileWatch {
    /// Starts watching. Changes are relative to the present content.
    ///
    /// # Errors
    /// If the directory cannot be watched.
    pub(crate) async fn new(path: &Path) -> Result<Self, notify::Error> {
        // Capacity 1: an event says only that something happened, so a second one adds nothing.
        let (tell, events) = mpsc::channel(1);
        let mut watcher = notify::recommended_watcher(move |event: Result<notify::Event, notify::Error>| {
            // Access events are ignored: reading the file causes them, so it would be read forever.
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = tell.try_send(());
            }
        })?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        watcher.watch(parent, RecursiveMode::NonRecursive)?;
        let mut watch = Self {
            path: path.to_owned(),
            events,
            seen: None,
            is_gone: false,
            jobs: BlockingJobs::new(LOOK),
            _watcher: watcher,
        };
        watch.seen = watch.read_fingerprint().await.unwrap_or_default();
        Ok(watch)
    }

    /// Waits until the content changes. A file that is missing for a moment has not changed.
    ///
    /// # Cancel safety
    /// A dropped call may lose a change. The next event detects it.
    pub(crate) async fn changed(&mut self) {
        loop {
            if self.events.recv().await.is_none() {
                // The watcher is gone, so there will be no more events.
                return std::future::pending().await;
            }
            let settle =
                async { while let Ok(Some(())) = tokio::time::timeout(PAUSE, self.events.recv()).await {} };
            let _ = tokio::time::timeout(PATIENCE, settle).await;
            let now = self.read_fingerprint().await;
            self.is_gone &= !matches!(now, Ok(Some(_)));
            match now {
                Ok(None) if !self.is_gone => {
                    self.is_gone = true;
                    tracing::warn!(
                        path = %self.path.display(),
                        "the file is gone; what was read from it stays in force until it is back, and a restart would not find it"
                    );
                }
                Ok(None) => {}
                Ok(now) if now == self.seen => {}
                Ok(now) => {
                    self.seen = now;
                    return;
                }
                // An earlier read hangs, which the reload has logged. The next read detects the change.
                Err(NoOutcome::Busy(_)) => {}
                Err(_) => {
                    self.seen = None;
                    return;
                }
            }
        }
    }

    async fn read_fingerprint(&self) -> Result<Option<u64>, NoOutcome> {
        let path = self.path.clone();
        self.jobs.run(move || fingerprint(&path)).await
    }
}

/// Hashes the content, or the error; `None` if the path leads nowhere.
fn fingerprint(path: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    match read_file(path, MAX_BYTES as u64) {
        Ok(bytes) => bytes.hash(&mut hasher),
        Err(ReadError::System(error)) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string().hash(&mut hasher),
    }
    Some(hasher.finish())
}

// Runs blocking work on its own thread, and gives up waiting after a while.
//
// A read from a network file system may block forever, and its thread cannot be stopped. The runtime would wait
// for its own blocking threads when the server stops, so they are not used. One job runs at a time. While one is
// stuck, the next is refused, so that no more threads get stuck.

/// Runs one job at a time, each on its own thread.
#[derive(Debug)]
pub(crate) struct BlockingJobs {
    patience: Duration,
    last: Mutex<Option<RunningThread>>,
}

/// A running job. Its thread closes the channel when it ends, in whichever way.
#[derive(Clone, Debug)]
struct RunningThread {
    since: Instant,
    ended: watch::Receiver<()>,
}

/// Why a job has no outcome. The text completes a sentence about the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoOutcome {
    /// The job takes longer than the patience, which this holds.
    Slow(Duration),
    /// Not started: an earlier one has been running for so long.
    Busy(Duration),
    /// The job panicked, or no thread could be started for it.
    Broken,
}

impl fmt::Display for NoOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(patience) => write!(f, "takes longer than {} s and was abandoned", patience.as_secs()),
            Self::Busy(since) => {
                write!(f, "was not tried: an earlier try has been hanging for {} s", since.as_secs())
            }
            Self::Broken => f.write_str("failed by a panic, or because no thread could be started"),
        }
    }
}

impl BlockingJobs {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, last: Mutex::new(None) }
    }

    /// Runs a job. Calls must not overlap: both might start a thread. Waits first for an earlier job, until that has
    /// run for the patience.
    ///
    /// # Errors
    /// [`NoOutcome`]. A job that is too slow goes on without anybody waiting.
    ///
    /// # Cancel safety
    /// If dropped, the job runs to its end, and the next call waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoOutcome> {
        let before = self.last.lock().clone();
        if let Some(mut before) = before {
            // The channel carries no values: it closes when the thread ends.
            if timeout_at(before.since + self.patience, before.ended.changed()).await.is_err() {
                return Err(NoOutcome::Busy(before.since.elapsed()));
            }
        }
        #[allow(clippy::disallowed_methods, reason = "how long a thread has hung is no matter of limits")]
        let since = Instant::now();
        let (tell, outcome) = oneshot::channel();
        let (ends, ended) = watch::channel(());
        let thread = std::thread::Builder::new().name("tidegate-job".to_owned());
        let started = thread.spawn(move || {
            let _ends = ends;
            // The caller may have given up.
            let _ = tell.send(job());
        });
        if started.is_err() {
            return Err(NoOutcome::Broken);
        }
        *self.last.lock() = Some(RunningThread { since, ended });
        let outcome = timeout_at(since + self.patience, outcome).await;
        let outcome = outcome.map_err(|_| NoOutcome::Slow(self.patience))?;
        // The next call need not wait for the thread.
        *self.last.lock() = None;
        outcome.map_err(|_| NoOutcome::Broken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    async fn changes(watch: &mut FileWatch) {
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("a change is noticed");
    }

    #[tokio::test]
    async fn writing_renaming_and_symlink_swaps_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tidegate.yaml");
        std::fs::write(&file, "one").unwrap();
        let mut watch = FileWatch::new(&file).await.unwrap();

        std::fs::write(&file, "two").unwrap();
        changes(&mut watch).await;

        let beside = dir.path().join(".tidegate.yaml.swp");
        std::fs::write(&beside, "three").unwrap();
        std::fs::rename(&beside, &file).unwrap();
        changes(&mut watch).await;

        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "four").unwrap();
        changes(&mut watch).await;
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_config_map_is_swapped_by_its_symlink() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        for (version, content) in [("v1", "one"), ("v2", "two")] {
            std::fs::create_dir(dir.path().join(version)).unwrap();
            std::fs::write(dir.path().join(version).join("tidegate.yaml"), content).unwrap();
        }
        let (data, file) = (dir.path().join("..data"), dir.path().join("tidegate.yaml"));
        symlink("v1", &data).unwrap();
        symlink("..data/tidegate.yaml", &file).unwrap();
        let mut watch = FileWatch::new(&file).await.unwrap();
        symlink("v2", dir.path().join("..data_tmp")).unwrap();
        std::fs::rename(dir.path().join("..data_tmp"), &data).unwrap();
        changes(&mut watch).await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
    }

    #[tokio::test]
    async fn a_job_that_hangs_is_given_up_and_no_other_is_started_until_it_ends() {
        let jobs = BlockingJobs::new(Duration::from_millis(20));
        let (go, wait) = mpsc::channel::<()>();
        let hung = jobs.run(move || wait.recv()).await;
        assert_eq!(hung.err(), Some(NoOutcome::Slow(Duration::from_millis(20))));
        assert!(matches!(jobs.run(|| 1).await, Err(NoOutcome::Busy(_))));
        drop(go);
        while jobs.run(|| 2).await != Ok(2) {
            tokio::task::yield_now().await;
        }
        let jobs = BlockingJobs::new(Duration::from_secs(60));
        let broken = jobs.run(|| -> u8 { std::panic::resume_unwind(Box::new("meant")) }).await;
        assert_eq!(broken, Err(NoOutcome::Broken));
        assert_eq!(jobs.run(|| 3).await, Ok(3));
    }

    /// A caller that goes away while the file is read must not leave a second thread behind, nor cause the next call to
    /// be refused.
    #[tokio::test]
    async fn a_call_that_is_dropped_is_waited_for_by_the_next() {
        let jobs = BlockingJobs::new(Duration::from_secs(60));
        let (go, wait) = mpsc::channel::<()>();
        let dropped = tokio::time::timeout(Duration::from_millis(1), jobs.run(move || wait.recv())).await;
        assert!(dropped.is_err());
        let mut next = std::pin::pin!(jobs.run(|| 1));
        assert!(tokio::time::timeout(Duration::from_millis(1), next.as_mut()).await.is_err());
        drop(go);
        assert_eq!(next.await, Ok(1));
    }
}
