//! The waiting jobs, and the pace at which they start.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::rate::{Gcra, GcraState};
use tidegate_core::time::nanos;
use tidegate_core::{Algorithm, Ask, Cost, QuotaError, Rate, Tick, Transition};

use crate::clock::Clock;
use crate::duration_text::in_words;
use crate::job::Job;

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

/// A queue: its waiting jobs, their pace, and the clock.
pub(super) struct QueueState {
    /// Protects the waiting jobs and the tick of the next start. No job is run, dropped or woken under it.
    line: Mutex<WaitingJobs>,
    /// The rate with a burst of one job: determines when the next job may start.
    pace: Gcra,
    /// The rate with a burst of as many jobs as there are places: determines how long the jobs ahead take.
    room: Gcra,
    places: usize,
    slack: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState")
            .field("pace", &self.pace)
            .field("places", &self.places)
            .field("slack", &self.slack)
            .finish_non_exhaustive()
    }
}

struct WaitingJobs {
    /// The jobs by their arrival number. A map rather than a deque, because a cancelled job is removed from the
    /// middle.
    jobs: BTreeMap<u64, Waiting>,
    arrivals: u64,
    /// Determines when the next job may start.
    paced: GcraState,
    closed: bool,
    worker: Option<Waker>,
}

struct Waiting {
    job: Job,
    since: Tick,
}

/// The worker's next action.
pub(super) enum Next {
    Start(Job),
    Due(Tick),
    Idle,
    Closed,
}

impl QueueState {
    pub(super) fn new(
        rate: Rate,
        places: usize,
        slack: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, QuotaError> {
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

    /// Adds a job, if there is a place and the job would start within `max_wait`.
    pub(super) fn join(self: &Arc<Self>, job: Job, max_wait: Duration) -> Result<JobPlace, Refused> {
        let now = self.clock.now();
        let (id, worker) = {
            let mut line = self.line.lock();
            self.admit(&line, now, max_wait)?;
            line.arrivals += 1;
            let id = line.arrivals;
            // A worker with waiting jobs sleeps until the first may start, and another job does not change that.
            let worker = if line.jobs.is_empty() { line.worker.take() } else { None };
            line.jobs.insert(id, Waiting { job, since: now });
            (id, worker)
        };
        if let Some(worker) = worker {
            worker.wake();
        }
        Ok(JobPlace { shared: Arc::clone(self), id })
    }

    /// Returns how many jobs wait to start.
    pub(super) fn waiting(&self) -> usize {
        self.line.lock().jobs.len()
    }

    /// Decides whether one more job may wait.
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

    /// Returns how long a job waits at the rate if `ahead` others start before it.
    fn wait_behind(&self, ahead: usize, paced: &GcraState, now: Tick) -> Duration {
        let drained = |state| self.room.standing(state, now).reset_after;
        let Some(ahead) = Cost::new(ahead as u64) else { return drained(paced) };
        match self.room.decide(paced, Ask::within(now, ahead, Duration::MAX)) {
            Transition::Allowed { next, .. } => drained(&next),
            // The start lies further in the future than ticks can represent.
            Transition::Denied { .. } => Duration::MAX,
        }
    }

    /// Takes the first job if it is due, or returns when it will be.
    pub(super) fn start(&self, now: Tick, waker: &Waker) -> Next {
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

    pub(super) fn close(&self) {
        let worker = {
            let mut line = self.line.lock();
            line.closed = true;
            line.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    pub(super) fn abort(&self) {
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

/// A job's place in the queue, for its handle.
#[derive(Debug)]
pub(super) struct JobPlace {
    shared: Arc<QueueState>,
    id: u64,
}

impl JobPlace {
    /// Removes the job, if it has not started.
    pub(super) fn leave(&self) {
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
