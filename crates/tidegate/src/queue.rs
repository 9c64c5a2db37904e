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

pub use handle::{JobError, JobHandle};

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

/// How far a worker may catch up unless told otherwise: what thread and runtime timers are commonly late by (tokio's
/// counts in milliseconds), with room for a busy machine.
const SLACK: Duration = Duration::from_millis(10);

/// Where jobs are handed in. A clone hands in to the same queue; when the last is dropped, the worker runs what waits
/// and ends.
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

/// Why a job was not taken; it was dropped without having run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Every place is taken. One is free again after `retry_after` at the latest, if the worker keeps up.
    #[error("all {places} places of the queue are taken")]
    Full {
        /// How many jobs can wait.
        places: usize,
        /// When the next job is due to start.
        retry_after: Duration,
    },
    /// The job would start after `wait`, later than its caller accepts.
    #[error("the job would start in {} ms, later than accepted", wait.as_nanos().div_ceil(1_000_000))]
    Late {
        /// How long it would wait.
        wait: Duration,
    },
    /// The queue was closed, or its worker is gone.
    #[error("the queue is closed")]
    Closed,
}

/// A [`JobQueue`] in the making.
#[derive(Debug)]
#[must_use = "a builder is no queue yet"]
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
        let room = u64::try_from(places).unwrap_or(u64::MAX).min(Rate::MAX_COUNT);
        let (pace, room) = (Gcra::new(rate, 1)?, Gcra::new(rate, room)?);
        let line = Line {
            jobs: BTreeMap::new(),
            arrivals: 0,
            paced: pace.fresh(clock.now()),
            closed: false,
            worker: None,
        };
        let shared = Arc::new(Shared { line: Mutex::new(line), pace, room, places, slack, clock });
        let worker = Worker { shared: Arc::clone(&shared), asleep: None };
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

    /// Starts a queue with a clock or a slack of its own.
    pub fn builder(rate: Rate, places: usize) -> JobQueueBuilder {
        JobQueueBuilder { rate, places, slack: SLACK, clock: Arc::new(SystemClock::new()) }
    }

    /// Hands in a job, however long it will wait; its place bounds that.
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
    /// The wait is what the rate makes of the jobs ahead. A worker that runs one job after another starts later still when
    /// they take longer than the rate allows.
    ///
    /// # Errors
    /// [`Refused`], at once.
    pub fn submit_within<F>(&self, job: F, max_wait: Duration) -> Result<JobHandle<F::Output>, Refused>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let shared = &self.sender.shared;
        let now = shared.clock.now();
        // Boxed before the lock, and dropped after it if refused: a job's drop is foreign code.
        let (job, result) = handle::job(job);
        let (id, worker) = {
            let mut line = shared.line.lock();
            shared.admit(&line, now, max_wait)?;
            line.arrivals += 1;
            let id = line.arrivals;
            // A worker that has jobs sleeps until the first may start, and another one changes nothing about that.
            let worker = if line.jobs.is_empty() { line.worker.take() } else { None };
            line.jobs.insert(id, Waiting { job, since: now });
            (id, worker)
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        Ok(JobHandle::new(result, Place { shared: Arc::clone(shared), id }))
    }

    /// Returns how many jobs wait to be started.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sender.shared.line.lock().jobs.len()
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

/// A job that is due: a future to run now. Dropping it aborts it.
#[must_use = "a job does nothing unless run"]
pub struct Job {
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Job {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.work.as_mut().poll(cx)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

/// Starts the jobs of one queue. Dropping it closes the queue and aborts what waits.
#[derive(Debug)]
#[must_use = "jobs wait until their worker runs"]
pub struct Worker {
    shared: Arc<Shared>,
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
    /// Runs jobs one after another until the queue is closed and empty. A job that takes longer than the rate allows delays those
    /// behind it; see [`Worker::run_with`] for jobs that overlap. A job that panics ends alone: its handle says so.
    ///
    /// # Cancel safety
    /// Dropping it drops the running job and aborts those that wait.
    pub async fn run(mut self) {
        while let Some(job) = self.next().await {
            job.await;
        }
    }

    /// Starts jobs at the rate and hands each to `spawn` to run, until the queue is closed and empty.
    ///
    /// # Cancel safety
    /// Dropping it aborts the jobs that wait; those that were handed over go on.
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

    /// Waits for the next job to be due and hands it over to be run at once; `None` when the queue is closed and empty.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: a job leaves the queue only when it is returned.
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

struct Shared {
    /// Protects who waits and the pace. Jobs are never run, dropped or woken under it.
    line: Mutex<Line>,
    /// One job at a time.
    pace: Gcra,
    /// As many jobs as there are places: how long a full queue takes.
    room: Gcra,
    places: usize,
    slack: Duration,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("pace", &self.pace)
            .field("places", &self.places)
            .field("slack", &self.slack)
            .finish_non_exhaustive()
    }
}

struct Line {
    /// By arrival. A map, not a deque: a cancelled job leaves from the middle.
    jobs: BTreeMap<u64, Waiting>,
    arrivals: u64,
    /// When the next job may start.
    paced: GcraState,
    closed: bool,
    worker: Option<Waker>,
}

struct Waiting {
    job: Job,
    since: Tick,
}

enum Next {
    Start(Job),
    Due(Tick),
    Idle,
    Closed,
}

impl Shared {
    /// Decides whether one more job may wait.
    fn admit(&self, line: &Line, now: Tick, max_wait: Duration) -> Result<(), Refused> {
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

    /// Returns how long a job waits when `ahead` others start before it, at the rate.
    fn wait_behind(&self, ahead: usize, paced: &GcraState, now: Tick) -> Duration {
        let drained = |state| self.room.standing(state, now).reset_after;
        let Some(ahead) = Cost::new(ahead as u64) else { return drained(paced) };
        match self.room.decide(paced, Ask::within(now, ahead, Duration::MAX)) {
            Transition::Allowed { next, .. } => drained(&next),
            // Further off than ticks can tell.
            Transition::Denied { .. } => Duration::MAX,
        }
    }

    /// Takes the first job if it is due, or says when it is.
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
        // The start is booked where it was due, at most the slack ago and never before the job was there: that far a late
        // worker catches up.
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
        // Closed and emptied at one stroke: woken in between, the worker would start a job, or sleep until one is due that
        // is gone by then.
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

/// A job's place in the line, for its handle.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Place {
    /// Gives the place up, if the job has not started.
    fn leave(&self) {
        let (worker, job) = {
            let mut line = self.shared.line.lock();
            let job = line.jobs.remove(&self.id);
            // A worker that sleeps until this job is due has nothing left to wait for once the queue is closed.
            let is_over = line.closed && line.jobs.is_empty();
            (if is_over { line.worker.take() } else { None }, job)
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        drop(job);
    }
}
