//! Jobs run in order at a constant rate: a leaky bucket as a queue, with its worker.
//!
//! Where a limiter tells the caller how long to hold work back, the queue takes the work. Jobs wait in a bounded number of
//! places; a worker, which the caller spawns on whatever runs their futures, starts them one by one, never closer together than
//! the rate says. The pace is set when a job *starts*, not when it is submitted: a worker that was held up does not let a
//! burst through afterwards, and the place of a job that was cancelled goes to those behind it, without a gap.
//!
//! Timers are late by up to some milliseconds. If each lateness moved the whole schedule, a queue of 1000 per second would
//! come to half of that; so a worker may catch up on what it lags behind by at most its *slack*. Idle time is not lag: it is
//! never saved up.

mod handle;
mod line;
mod worker;

use std::sync::Arc;
use std::time::Duration;

pub use handle::JobHandle;
pub use line::Refused;
use line::Shared;
use tidegate_core::{QuotaError, Rate};
pub use worker::Worker;

use crate::clock::{Clock, SystemClock};
use crate::job;
pub use crate::job::{Job, JobError};

/// How far a worker may catch up unless told otherwise: what thread and runtime timers are commonly late by (tokio's
/// counts in milliseconds), with room for a busy machine.
const SLACK: Duration = Duration::from_millis(10);

/// Takes jobs and hands them to its worker. Clones share one queue; when the last is dropped, the worker runs the jobs that wait and
/// ends.
///
/// Grows with the jobs that wait, at most `places` of them: one allocation for the job, one for its result.
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

/// Closes the queue when the last clone goes.
#[derive(Debug)]
struct Sender {
    shared: Arc<Shared>,
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
    /// Sets how much lag the worker may catch up by starting jobs closer together; 10 ms unless set. Zero keeps the distance
    /// between any two starts, and then each late timer slows the queue down a little.
    pub const fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// Sets the clock; the [`SystemClock`] unless set.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Makes the queue and its worker.
    ///
    /// # Errors
    /// [`QuotaError`] when there are no places.
    pub fn build(self) -> Result<(JobQueue, Worker), QuotaError> {
        let Self { rate, places, slack, clock } = self;
        let shared = Arc::new(Shared::new(rate, places, slack, clock)?);
        let worker = Worker::new(Arc::clone(&shared));
        Ok((JobQueue { sender: Arc::new(Sender { shared }) }, worker))
    }
}

impl JobQueue {
    /// Makes a queue that starts jobs at `rate` and lets up to `places` of them wait, with the worker that runs them.
    ///
    /// # Errors
    /// [`QuotaError`] when there are no places.
    pub fn new(rate: Rate, places: usize) -> Result<(Self, Worker), QuotaError> {
        Self::builder(rate, places).build()
    }

    /// Returns a builder, for a queue with another clock or another slack.
    pub fn builder(rate: Rate, places: usize) -> JobQueueBuilder {
        JobQueueBuilder { rate, places, slack: SLACK, clock: Arc::new(SystemClock::new()) }
    }

    /// Hands in a job, however long it will wait: at most for as long as a full queue takes.
    ///
    /// # Errors
    /// [`Refused`], at once, when all places are taken or the queue is closed.
    pub fn submit<F>(&self, job: F) -> Result<JobHandle<F::Output>, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.submit_within(job, Duration::MAX)
    }

    /// Hands in a function; it runs on the worker's thread and holds up the jobs behind it.
    ///
    /// # Errors
    /// As [`JobQueue::submit`].
    pub fn submit_fn<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JobHandle<T>, Refused> {
        self.submit(async move { job() })
    }

    /// Hands in a job that is to start within `max_wait`.
    ///
    /// The wait is computed from the rate and the number of jobs ahead. Where the worker runs one job after another and they take longer
    /// than the rate allows, the job starts later than computed.
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

    /// Returns how many jobs wait to be started.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sender.shared.waiting()
    }

    /// Takes no more jobs; the worker runs those that wait, and ends.
    pub fn close(&self) {
        self.sender.shared.close();
    }

    /// Takes no more jobs and drops those that wait: their handles say [`JobError::Aborted`]. Jobs that have started
    /// go on.
    pub fn abort(&self) {
        self.sender.shared.abort();
    }
}
