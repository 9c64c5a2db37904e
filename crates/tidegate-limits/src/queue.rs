//! A job queue that starts jobs in order at a constant rate: a leaky bucket as a queue, with its worker.
//!
//! The pace counts from the *start* of a job, not from its submission. So a worker that was held up does not release a
//! burst afterwards, and when a job is cancelled the jobs behind it move up without a gap.
//!
//! Timers are late by up to some milliseconds. If each delay moved the whole schedule, a queue of 1000 per second would
//! reach half of that. So a worker may catch up on its lag by at most its *slack*. Idle time is not lag, and is never
//! saved up.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::rate::{Gcra, GcraState};
use tidegate_core::time::nanos;
use tidegate_core::{Algorithm, Ask, Cost, QuotaError, Rate, Tick, Transition};

use crate::block_on::block_on;
use crate::clock::{Clock, Sleep, SystemClock};
use crate::duration_text::in_words;
use crate::job::{self, Slot};
pub use crate::job::{Job, JobError};

/// The default slack: the usual delay of thread and runtime timers (tokio's has a resolution of a millisecond), plus
/// room for a busy machine.
const SLACK: Duration = Duration::from_millis(10);

/// Takes jobs and passes them to its worker. Clones share one queue. When the last clone is dropped, the worker runs
/// the waiting jobs and ends.
///
/// Each waiting job takes two allocations; at most `places` wait.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::limiter::Rate;
/// use tidegate::limiter::queue::JobQueue;
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

#[derive(Debug)]
struct Sender {
    shared: Arc<QueueState>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl JobQueue {
    /// Makes a queue that starts jobs at `rate` and lets up to `places` of them wait, with the worker that runs them. Its slack is
    /// 10 ms, its clock the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] if `places` is zero.
    pub fn new(rate: Rate, places: usize) -> Result<(Self, Worker), QuotaError> {
        Self::with_clock(rate, places, SLACK, SystemClock::new())
    }

    /// As [`JobQueue::new`], with a clock, and with a slack: how much lag the worker may catch up by starting jobs closer together.
    /// Zero keeps the full distance between any two starts, and then each late timer slows the queue down a little.
    ///
    /// # Errors
    /// As [`JobQueue::new`].
    pub fn with_clock(
        rate: Rate,
        places: usize,
        slack: Duration,
        clock: impl Clock + 'static,
    ) -> Result<(Self, Worker), QuotaError> {
        let shared = Arc::new(QueueState::new(rate, places, slack, Arc::new(clock))?);
        let worker = Worker::new(Arc::clone(&shared));
        Ok((Self { sender: Arc::new(Sender { shared }) }, worker))
    }

    /// Submits a job, however long it will wait: at most as long as a full queue takes. Put a function into an `async`
    /// block; it delays the jobs behind it.
    ///
    /// # Errors
    /// [`Refused`], at once, if all places are taken or the queue is closed.
    pub fn submit<F>(&self, job: F) -> Result<JobHandle<F::Output>, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.submit_within(job, Duration::MAX)
    }

    /// Submits a job that has to start within `max_wait`.
    ///
    /// The wait is computed from the rate and the number of jobs ahead. If the worker runs one job after another and
    /// they take longer than the rate allows, the job starts later than computed.
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

/// A future of a job's result.
///
/// # Cancel safety
/// Dropping it removes the job from the queue if it has not started; the jobs behind it move up. A job that has
/// started continues, and its result is dropped. To let a job run without waiting for it, use [`JobHandle::detach`].
#[derive(Debug)]
#[must_use = "dropping the handle cancels the job; detach it to let it run"]
pub struct JobHandle<T> {
    result: Arc<Slot<T>>,
    place: Option<JobPlace>,
}

impl<T> JobHandle<T> {
    const fn new(result: Arc<Slot<T>>, place: JobPlace) -> Self {
        Self { result, place: Some(place) }
    }

    /// Lets the job run without a handle; its result is dropped.
    pub fn detach(mut self) {
        self.place = None;
    }

    /// Blocks the calling thread until the job has ended. Not for async code, nor for the thread that runs the worker.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn join(self) -> Result<T, JobError> {
        block_on(self)
    }
}

impl<T> Future for JobHandle<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.result.poll(cx);
        if polled.is_ready() {
            self.place = None;
        }
        polled
    }
}

impl<T> Drop for JobHandle<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.leave();
        }
    }
}

/// Why a job was not taken. The job was dropped without having run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Every place is taken. A place becomes free after `retry_after` at the latest, if the worker keeps up.
    #[error("all {places} places of the queue are taken")]
    Full {
        /// How many jobs can wait.
        places: usize,
        /// The time until the next job is due to start.
        retry_after: Duration,
    },
    /// The job would start after `wait`, later than its caller accepts.
    #[error("the job would start in {}, later than accepted", in_words(*wait))]
    Late {
        /// How long it would wait.
        wait: Duration,
    },
    /// The queue was closed, or its worker was dropped.
    #[error("the queue is closed")]
    Closed,
}

#[derive(Debug)]
struct QueueState {
    /// Protects the waiting jobs and the tick of the next start. No job is run, dropped or woken under it.
    line: Mutex<WaitingJobs>,
    /// The rate with a burst of one job: determines when the next job may start.
    pace: Gcra,
    /// The rate with a burst of as many jobs as there are places: determines how long the jobs ahead take.
    room: Gcra,
    places: usize,
    slack: Duration,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct WaitingJobs {
    /// A map rather than a deque, because a cancelled job is removed from the middle.
    jobs: BTreeMap<u64, WaitingJob>,
    arrivals: u64,
    paced: GcraState,
    closed: bool,
    worker: Option<Waker>,
}

#[derive(Debug)]
struct WaitingJob {
    job: Job,
    since: Tick,
}

enum Next {
    Start(Job),
    Due(Tick),
    Idle,
    Closed,
}

impl QueueState {
    fn new(rate: Rate, places: usize, slack: Duration, clock: Arc<dyn Clock>) -> Result<Self, QuotaError> {
        if places == 0 {
            let want = "leaves no room for a job; use 1 or more";
            return Err(QuotaError::Parameter { name: "places", value: places.to_string(), want });
        }
        let room = u64::try_from(places).unwrap_or(u64::MAX).min(Rate::MAX_COUNT);
        let (pace, room) = (Gcra::new(rate, 1)?, Gcra::new(rate, room)?);
        let line = WaitingJobs {
            jobs: BTreeMap::new(),
            arrivals: 0,
            paced: pace.fresh(clock.now()),
            closed: false,
            worker: None,
        };
        Ok(Self { line: Mutex::new(line), pace, room, places, slack, clock })
    }

    fn join(self: &Arc<Self>, job: Job, max_wait: Duration) -> Result<JobPlace, Refused> {
        let now = self.clock.now();
        let (id, worker) = {
            let mut line = self.line.lock();
            self.admit(&line, now, max_wait)?;
            line.arrivals += 1;
            let id = line.arrivals;
            // A worker with waiting jobs sleeps until the first may start, and another job does not change that.
            let worker = if line.jobs.is_empty() { line.worker.take() } else { None };
            line.jobs.insert(id, WaitingJob { job, since: now });
            (id, worker)
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        Ok(JobPlace { shared: Arc::clone(self), id })
    }

    fn waiting(&self) -> usize {
        self.line.lock().jobs.len()
    }

    fn admit(&self, line: &WaitingJobs, now: Tick, max_wait: Duration) -> Result<(), Refused> {
        if line.closed {
            return Err(Refused::Closed);
        }
        if line.jobs.len() >= self.places {
            let retry_after = self.pace.standing(&line.paced, now).reset_after;
            return Err(Refused::Full { places: self.places, retry_after });
        }
        let wait = self.wait_behind(line.jobs.len(), &line.paced, now);
        if wait > max_wait { Err(Refused::Late { wait }) } else { Ok(()) }
    }

    fn wait_behind(&self, ahead: usize, paced: &GcraState, now: Tick) -> Duration {
        let drained = |state| self.room.standing(state, now).reset_after;
        let Some(ahead) = Cost::new(ahead as u64) else { return drained(paced) };
        match self.room.decide(paced, Ask::within(now, ahead, Duration::MAX)) {
            Transition::Allowed { next, .. } => drained(&next),
            // The start lies further in the future than ticks can represent.
            Transition::Denied { .. } => Duration::MAX,
        }
    }

    fn start(&self, now: Tick, waker: &Waker) -> Next {
        let mut line = self.line.lock();
        let Some(since) = line.jobs.first_key_value().map(|(_, first)| first.since) else {
            if line.closed {
                return Next::Closed;
            }
            line.worker = Some(waker.clone());
            return Next::Idle;
        };
        if let Transition::Denied { retry } = self.pace.decide(&line.paced, Ask::allow(now, Cost::ONE)) {
            line.worker = Some(waker.clone());
            return Next::Due(now.after(retry.after().unwrap_or(Duration::MAX)));
        }
        // The start is booked at the tick when it was due, but no earlier than the slack ago or the job's submission.
        // So a late worker catches up by at most the slack.
        let behind = now.as_nanos().saturating_sub(nanos(self.slack));
        let booked = since.max(Tick::from_nanos(behind));
        if let Transition::Allowed { next, .. } =
            self.pace.decide(&line.paced, Ask::within(booked, Cost::ONE, Duration::MAX))
        {
            line.paced = next;
        }
        let (_, first) = line.jobs.pop_first().expect("it was looked at above, under this lock");
        Next::Start(first.job)
    }

    fn close(&self) {
        let worker = {
            let mut line = self.line.lock();
            line.closed = true;
            line.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    fn abort(&self) {
        // Closed and emptied under one lock: a worker woken in between would start a job, or sleep until the tick of
        // a removed job.
        let (worker, jobs) = {
            let mut line = self.line.lock();
            line.closed = true;
            (line.worker.take(), std::mem::take(&mut line.jobs))
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        // Dropped after the lock: a job's drop is foreign code.
        drop(jobs);
    }
}

#[derive(Debug)]
struct JobPlace {
    shared: Arc<QueueState>,
    id: u64,
}

impl JobPlace {
    fn leave(&self) {
        let (worker, job) = {
            let mut line = self.shared.line.lock();
            let job = line.jobs.remove(&self.id);
            // If the queue is closed and this was the last job, the worker that sleeps until it is due has to be
            // woken.
            let is_over = line.closed && line.jobs.is_empty();
            (if is_over { line.worker.take() } else { None }, job)
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        drop(job);
    }
}

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
    const fn new(shared: Arc<QueueState>) -> Self {
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
    /// # use tidegate::limiter::Rate;
    /// # use tidegate::limiter::queue::JobQueue;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (queue, worker) = JobQueue::new(Rate::new(50, Duration::from_secs(1))?, 100)?;
    /// tokio::spawn(worker.run_with(|job| { tokio::spawn(job); }));
    /// # assert_eq!(queue.submit(async { 1 })?.await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with(mut self, mut spawn: impl FnMut(Job)) {
        while let Some(job) = self.next().await {
            spawn(job);
        }
    }

    /// Runs jobs one after another on the calling thread until the queue is closed and empty.
    pub fn run_blocking(self) {
        block_on(self.run());
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
