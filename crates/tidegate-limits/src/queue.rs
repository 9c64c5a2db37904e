//! A job queue that starts jobs in order at a constant rate: a leaky bucket as a queue, with its worker.
//!
//! A limiter tells the caller how long to hold work back; this queue takes the work. Jobs wait in a bounded number of
//! places. A worker, which the caller spawns on any executor, starts them one by one, never closer together than the
//! rate allows. The pace counts from the *start* of a job, not from its submission. So a worker that was held up does
//! not release a burst afterwards, and when a job is cancelled the jobs behind it move up without a gap.
//!
//! Timers are late by up to some milliseconds. If each delay moved the whole schedule, a queue of 1000 per second
//! would reach half of that. So a worker may catch up on its lag by at most its *slack*. Idle time is not lag, and is
//! never saved up.

mod handle;
mod waiting_jobs;
mod worker;

use std::sync::Arc;
use std::time::Duration;

pub use handle::JobHandle;
use tidegate_core::{QuotaError, Rate};
use waiting_jobs::QueueState;
pub use waiting_jobs::Refused;
pub use worker::Worker;

use crate::clock::{Clock, SystemClock};
use crate::job;
pub use crate::job::{Job, JobError};

/// The default slack: the usual delay of thread and runtime timers (tokio's has a resolution of a millisecond), plus
/// room for a busy machine.
const SLACK: Duration = Duration::from_millis(10);

/// Takes jobs and passes them to its worker. Clones share one queue. When the last clone is dropped, the worker runs
/// the waiting jobs and ends.
///
/// Memory grows with the waiting jobs, at most `places`: each takes one allocation for the job and one for its result.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{JobQueue, Rate};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 500 calls per second to a service that answers no faster; at most 64 wait.
/// let (queue, worker) = JobQueue::new(Rate::new(500, Duration::from_secs(1))?, 64)?;
/// tokio::spawn(worker.run());
///
/// let answer = queue.submit(async { 6 * 7 })?;
/// assert_eq!(answer.await?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JobQueue {
    sender: Arc<Sender>,
}

/// Closes the queue when the last clone is dropped.
#[derive(Debug)]
struct Sender {
    shared: Arc<QueueState>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Builds a [`JobQueue`] and its [`Worker`].
#[derive(Debug)]
#[must_use = "a builder is not a queue yet"]
pub struct JobQueueBuilder {
    rate: Rate,
    places: usize,
    slack: Duration,
    clock: Arc<dyn Clock>,
}

impl JobQueueBuilder {
    /// Sets how much lag the worker may catch up by starting jobs closer together; 10 ms by default. Zero keeps the
    /// full distance between any two starts, and then each late timer slows the queue down a little.
    pub const fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// Sets the clock; the [`SystemClock`] by default.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Makes the queue and its worker.
    ///
    /// # Errors
    /// [`QuotaError`] if `places` is zero.
    pub fn build(self) -> Result<(JobQueue, Worker), QuotaError> {
        let Self { rate, places, slack, clock } = self;
        let shared = Arc::new(QueueState::new(rate, places, slack, clock)?);
        let worker = Worker::new(Arc::clone(&shared));
        Ok((JobQueue { sender: Arc::new(Sender { shared }) }, worker))
    }
}

impl JobQueue {
    /// Makes a queue that starts jobs at `rate` and lets up to `places` of them wait, with the worker that runs them.
    ///
    /// # Errors
    /// [`QuotaError`] if `places` is zero.
    pub fn new(rate: Rate, places: usize) -> Result<(Self, Worker), QuotaError> {
        Self::builder(rate, places).build()
    }

    /// Returns a builder, for a queue with another clock or another slack.
    pub fn builder(rate: Rate, places: usize) -> JobQueueBuilder {
        JobQueueBuilder { rate, places, slack: SLACK, clock: Arc::new(SystemClock::new()) }
    }

    /// Submits a job, however long it will wait: at most as long as a full queue takes.
    ///
    /// # Errors
    /// [`Refused`], at once, if all places are taken or the queue is closed.
    pub fn submit<F>(&self, job: F) -> Result<JobHandle<F::Output>, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.submit_within(job, Duration::MAX)
    }

    /// Submits a function. It runs on the worker's thread and delays the jobs behind it.
    ///
    /// # Errors
    /// As [`JobQueue::submit`].
    pub fn submit_fn<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JobHandle<T>, Refused> {
        self.submit(async move { job() })
    }

    /// Submits a job that has to start within `max_wait`.
    ///
    /// The wait is computed from the rate and the number of jobs ahead. If the worker runs one job after another and
    /// the jobs take longer than the rate allows, the job starts later than computed.
    ///
    /// # Errors
    /// [`Refused`], at once.
    pub fn submit_within<F>(&self, job: F, max_wait: Duration) -> Result<JobHandle<F::Output>, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let shared = &self.sender.shared;
        // Boxed before the lock, and dropped after it if refused: a job's drop is foreign code.
        let (job, result) = job::job(job);
        let place = shared.join(job, max_wait)?;
        Ok(JobHandle::new(result, place))
    }

    /// Returns how many jobs wait to start.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sender.shared.waiting()
    }

    /// Closes the queue to new jobs. The worker runs the waiting jobs and ends.
    pub fn close(&self) {
        self.sender.shared.close();
    }

    /// Closes the queue to new jobs and drops the waiting ones: their handles return [`JobError::Aborted`]. Jobs that
    /// have started continue.
    pub fn abort(&self) {
        self.sender.shared.abort();
    }
}
