//! The queue of work that waits for a thread of a pool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::job::Job;
use crate::sync::{Condvar, Mutex};

/// The queue before the threads of a pool, and the number of busy threads.
pub(super) struct Queue {
    /// Jobs are never run or dropped while it is locked.
    inner: Mutex<QueuedJobs>,
    /// Idle threads wait on it for work.
    work: Condvar,
    threads: usize,
    places: usize,
}

struct QueuedJobs {
    /// The waiting jobs by arrival number. A map, not a deque, because jobs whose callers give up leave from the
    /// middle.
    jobs: BTreeMap<u64, Job>,
    arrivals: u64,
    running: usize,
    closed: bool,
}

impl Queue {
    pub(super) fn new(threads: usize, places: usize) -> Self {
        let inner = QueuedJobs { jobs: BTreeMap::new(), arrivals: 0, running: 0, closed: false };
        Self { inner: Mutex::new(inner), work: Condvar::new(), threads, places }
    }

    /// Appends a job and returns its arrival number. Gives the job back if all threads are busy and all places are
    /// taken.
    pub(super) fn join(&self, job: Job) -> Result<u64, Job> {
        let mut inner = self.inner.lock();
        // Jobs for which a thread is free, but has not woken up yet, count as running.
        if inner.jobs.len() + inner.running >= self.threads.saturating_add(self.places) {
            return Err(job);
        }
        inner.arrivals += 1;
        let number = inner.arrivals;
        inner.jobs.insert(number, job);
        drop(inner);
        self.work.notify_one();
        Ok(number)
    }

    /// Waits for the next job; `None` once the queue is closed and empty. Each job must end with a [`JobDone`].
    pub(super) fn next(&self) -> Option<Job> {
        let mut inner = self.inner.lock();
        loop {
            if let Some((_, job)) = inner.jobs.pop_first() {
                inner.running += 1;
                return Some(job);
            }
            if inner.closed {
                return None;
            }
            self.work.wait(&mut inner);
        }
    }

    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.work.notify_all();
    }

    pub(super) const fn places(&self) -> usize {
        self.places
    }

    pub(super) fn waiting(&self) -> usize {
        self.inner.lock().jobs.len()
    }

    pub(super) fn running(&self) -> usize {
        self.inner.lock().running
    }

    /// Removes a job from the queue, and returns whether it was still there.
    fn leave(&self, number: u64) -> bool {
        let job = self.inner.lock().jobs.remove(&number);
        job.is_some()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("threads", &self.threads)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

/// Marks a job from [`Queue::next`] as done when dropped.
pub(super) struct JobDone(pub(super) Arc<Queue>);

impl Drop for JobDone {
    fn drop(&mut self) {
        self.0.inner.lock().running -= 1;
    }
}

/// A place in a queue; dropping it leaves the queue. Has no effect once the job was begun.
#[derive(Debug)]
pub(super) struct QueuePlace {
    queue: Weak<Queue>,
    number: u64,
}

impl QueuePlace {
    pub(super) fn new(queue: &Arc<Queue>, number: u64) -> Self {
        Self { queue: Arc::downgrade(queue), number }
    }

    /// Leaves the queue, and returns whether the job was still in it.
    pub(super) fn leave(&self) -> bool {
        self.queue.upgrade().is_some_and(|queue| queue.leave(self.number))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.leave();
    }
}
