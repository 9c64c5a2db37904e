//! Runs blocking work on its own thread, and gives up waiting after a while.
//!
//! A read from a network file system may block forever, and its thread cannot be stopped. The runtime would wait
//! for its own blocking threads when the server stops, so they are not used. One job runs at a time. While one is
//! stuck, the next is refused, so that no more threads get stuck.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

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
