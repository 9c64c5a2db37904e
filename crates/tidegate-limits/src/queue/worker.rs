//! The worker, which starts the jobs of a queue.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::Tick;

use super::waiting_jobs::{Next, QueueState};
use crate::block_on::block_on;
use crate::clock::Sleep;
use crate::job::Job;

/// Starts the jobs of one queue. Dropping it closes the queue and aborts the waiting jobs.
#[derive(Debug)]
#[must_use = "jobs wait until their worker runs"]
pub struct Worker {
    shared: Arc<QueueState>,
    asleep: Option<Asleep>,
}

struct Asleep {
    until: Tick,
    sleep: Sleep,
}

impl fmt::Debug for Asleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.until.fmt(f)
    }
}

impl Worker {
    pub(super) const fn new(shared: Arc<QueueState>) -> Self {
        Self { shared, asleep: None }
    }

    /// Runs jobs one after another until the queue is closed and empty. A job that takes longer than the rate allows
    /// delays the jobs behind it; for overlapping jobs see [`Worker::run_with`]. A panic ends only its own job, whose
    /// handle returns the panic.
    ///
    /// # Cancel safety
    /// Dropping the future drops the running job and aborts the waiting ones.
    pub async fn run(mut self) {
        while let Some(job) = self.next().await {
            job.await;
        }
    }

    /// Starts jobs at the rate and passes each to `spawn` to run, until the queue is closed and empty.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the waiting jobs; jobs already passed to `spawn` continue.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{JobQueue, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (queue, worker) = JobQueue::new(Rate::new(50, Duration::from_secs(1))?, 100)?;
    /// tokio::spawn(worker.run_with(|job| { tokio::spawn(job); }));
    /// # assert_eq!(queue.submit_fn(|| 1)?.await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with(mut self, mut spawn: impl FnMut(Job)) {
        while let Some(job) = self.next().await {
            spawn(job);
        }
    }

    /// Runs jobs one after another on the calling thread until the queue is closed and empty.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{JobQueue, Rate};
    /// let (queue, worker) = JobQueue::new(Rate::new(500, Duration::from_secs(1))?, 64)?;
    /// let thread = std::thread::spawn(|| worker.run_blocking());
    /// assert_eq!(queue.submit_fn(|| 6 * 7)?.join()?, 42);
    /// drop(queue);
    /// thread.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_blocking(mut self) {
        while let Some(job) = block_on(self.next()) {
            block_on(job);
        }
    }

    /// Waits until the next job is due and returns it, to be run at once; `None` when the queue is closed and empty.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: a job leaves the queue only when it is returned.
    pub async fn next(&mut self) -> Option<Job> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Job>> {
        loop {
            let now = self.shared.clock.now();
            let due = match self.shared.start(now, cx.waker()) {
                Next::Start(job) => {
                    self.asleep = None;
                    return Poll::Ready(Some(job));
                }
                Next::Closed => return Poll::Ready(None),
                Next::Idle => {
                    self.asleep = None;
                    return Poll::Pending;
                }
                Next::Due(tick) => tick,
            };
            let asleep = match &mut self.asleep {
                Some(asleep) if asleep.until == due => asleep,
                other => other.insert(Asleep { until: due, sleep: self.shared.clock.sleep_until(due) }),
            };
            if asleep.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.asleep = None;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.abort();
    }
}
