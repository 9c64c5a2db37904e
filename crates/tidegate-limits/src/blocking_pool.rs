//! Thread pools for work that blocks, with a bounded queue in front of the threads.
//!
//! A call into a slow library, a file system or a driver without async support blocks its thread until it returns. On
//! the threads that serve requests, a few such calls stop everything. On one pool shared by all, one slow dependency
//! takes the threads from the others. So each dependency gets a pool of its own: work beyond its capacity is refused,
//! and the rest of the service continues.

mod queue;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;

use tidegate_core::QuotaError;

use self::queue::{JobDone, Queue, QueuePlace};
use crate::block_on::block_on;
use crate::clock::{Clock, SystemClock};
use crate::deadline::Deadline;
use crate::job::JobError;
use crate::observer::{Observer, PoolDid};
use crate::priority;
use crate::sync::thread;
use crate::{clock, deadline, job};

/// A pool of threads. Clones share it. When the last clone is dropped, the threads run the waiting work and end.
///
/// Work that has begun cannot be cancelled: it continues after its caller has gone, and is bounded by the number of
/// threads. Work that waits for other work on the same pool can block all threads; give each level a pool of its own.
///
/// Costs two allocations per piece of work.
///
/// # Examples
/// ```
/// use tidegate::blocking_pool::BlockingPool;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Two threads for the mail library; 16 pieces of work may wait for them.
/// let mail = BlockingPool::new("mail", 2, 16)?;
/// let sent = mail.run(|| std::thread::current().name().map(str::to_owned)).await?;
/// assert_eq!(sent.as_deref(), Some("mail"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BlockingPool {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

/// Closes the queue when the last clone is dropped.
struct Pool {
    queue: Arc<Queue>,
}

impl Pool {
    fn start(name: &str, threads: usize, places: usize) -> Result<Self, PoolError> {
        let queue = Arc::new(Queue::new(threads, places));
        let pool = Self { queue: Arc::clone(&queue) };
        for number in 1..=threads {
            let queue = Arc::clone(&queue);
            let work = move || {
                while let Some(job) = queue.next() {
                    block_on(job);
                }
            };
            let started = thread::Builder::new().name(name.to_owned()).spawn(work);
            started.map_err(|source| PoolError::Thread { name: name.to_owned(), number, source })?;
        }
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A number is out of range.
    #[error(transparent)]
    Parameter(#[from] QuotaError),
    /// The operating system could not start another thread.
    #[error("thread {number} of the pool `{name}` could not be started")]
    Thread {
        /// The pool's name.
        name: String,
        /// The number of the thread, counted from 1.
        number: usize,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Why work on a pool has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Every thread is busy and every waiting place is taken; the work was not begun.
    #[error("every thread of the pool is busy, and none of its {places} waiting places is free")]
    Full {
        /// The number of waiting places.
        places: usize,
    },
    /// The deadline passed while the work waited; it was not begun.
    #[error("the time was up before a thread of the pool was free")]
    NotBegun,
    /// The deadline passed while the work ran. It continues, and its result is discarded.
    #[error("the time was up while the work was under way; it goes on")]
    StillRunning,
    /// The work panicked; its thread continues.
    #[error("the work panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The pool was dropped before the work was begun.
    #[error("the pool was dropped before the work was begun")]
    Dropped,
}

impl BlockingPool {
    /// The largest number of threads in one pool.
    pub const MAX_THREADS: usize = 1024;

    /// Starts `threads` threads (1 to [`BlockingPool::MAX_THREADS`]) called `name`. Up to `places` pieces of work may
    /// wait for them; with 0, work that finds no free thread is refused.
    ///
    /// # Errors
    /// [`PoolError`]; threads that were already started end.
    pub fn new(name: &str, threads: usize, places: usize) -> Result<Self, PoolError> {
        if threads == 0 || threads > Self::MAX_THREADS {
            let want = "is not a number of threads; use 1 to 1024";
            return Err(QuotaError::Parameter { name: "threads", value: threads.to_string(), want }.into());
        }
        if name.contains('\0') {
            let want = "cannot name a thread; leave out the zero byte";
            return Err(QuotaError::Parameter { name: "name", value: format!("{name:?}"), want }.into());
        }
        let pool = Pool::start(name, threads, places)?;
        Ok(Self { pool: Arc::new(pool), clock: Arc::new(SystemClock::new()), observer: None })
    }

    /// Sets the clock for deadlines; the default is the [`SystemClock`].
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Tells `observer` the outcome of work that is submitted through the returned pool and its clones
    /// ([`Observer::on_pool`]). It is told of ended work on the pool's thread; if it panics there, the result of the work
    /// is not affected.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Runs a function on a thread of the pool, and awaits its result until the deadline that the task
    /// [carries](deadline::carried); without a deadline, as long as it takes. The function carries the same deadline,
    /// and the task's [priority](priority::carried).
    ///
    /// # Errors
    /// [`RunError`] if the pool is full, the deadline passes, the work panics, or the pool is dropped.
    ///
    /// # Cancel safety
    /// If the future is dropped, work that was not begun is removed from the queue; work that was begun continues.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RunError> {
        match deadline::carried() {
            Some(deadline) => self.run_until(deadline, work).await,
            None => self.submit(priority::hand_over(work))?.await,
        }
    }

    /// Same as [`BlockingPool::run`], with an explicit deadline.
    ///
    /// # Errors
    /// [`RunError`] if the pool is full, the deadline passes, the work panics, or the pool is dropped.
    ///
    /// # Cancel safety
    /// As [`BlockingPool::run`].
    pub async fn run_until<T: Send + 'static>(
        &self,
        deadline: impl Into<Deadline>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RunError> {
        let deadline = deadline.into();
        let until = deadline.tick(&*self.clock);
        if self.clock.now() >= until {
            return Err(self.gives_up(RunError::NotBegun));
        }
        let mut running =
            Box::pin(self.submit(priority::hand_over(move || deadline::carry(deadline, work)))?);
        match clock::before(&*self.clock, until, running.as_mut()).await {
            Some(result) => result,
            None if running.place.leave() => Err(self.gives_up(RunError::NotBegun)),
            // The work may have ended since the last poll.
            None => {
                poll_fn(|cx| match running.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(result),
                    Poll::Pending => Poll::Ready(Err(self.gives_up(RunError::StillRunning))),
                })
                .await
            }
        }
    }

    /// Submits a function; it carries no deadline and no priority. Returns a future of its result. Dropping that future
    /// removes the work from the queue if it was not begun.
    ///
    /// # Errors
    /// [`RunError::Full`], without waiting.
    pub fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Running<T>, RunError> {
        let queue = &self.pool.queue;
        let running = Arc::clone(queue);
        let work = self.observed(work);
        let (job, result) = job::job(async move {
            // Dropped before the result is handed over, so a caller that has its result finds the thread free.
            let _ended = JobDone(running);
            work()
        });
        // A refused job is dropped after the lock is released, because the function may hold values with foreign `Drop`
        // code.
        let number =
            queue.join(job).map_err(|_job| self.gives_up(RunError::Full { places: queue.places() }))?;
        Ok(Running { result, place: QueuePlace::new(queue, number) })
    }

    /// Tells the observer of work without a result.
    fn gives_up(&self, why: RunError) -> RunError {
        if let Some(observer) = &self.observer {
            observer.on_pool(match why {
                RunError::Full { .. } => PoolDid::Refused,
                RunError::StillRunning => PoolDid::StillRunning,
                _ => PoolDid::NotBegun,
            });
        }
        why
    }

    /// Wraps the work so that it tells the observer how it ended, if there is an observer.
    fn observed<T, W: FnOnce() -> T>(&self, work: W) -> impl FnOnce() -> T + use<T, W> {
        let told = self.observer.clone().map(|observer| (observer, Arc::clone(&self.clock)));
        move || {
            let Some((observer, clock)) = told else { return work() };
            let begun = clock.now();
            // Caught, since a panic of the observer during an unwinding panic would abort the process.
            let done = catch_unwind(AssertUnwindSafe(work));
            let took = clock.now().since(begun);
            let ended = PoolDid::Ended { panicked: done.is_err(), took };
            // Caught too: the work is done, and its caller gets its result, whatever the observer does.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.on_pool(ended))) {
                job::discard(panic);
            }
            done.unwrap_or_else(|panic| resume_unwind(panic))
        }
    }

    /// Returns how many pieces of work wait for a thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pool.queue.waiting()
    }

    /// Returns how many pieces of work are running, including those whose callers have gone.
    #[must_use]
    pub fn running(&self) -> usize {
        self.pool.queue.running()
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool")
            .field("waiting", &self.waiting())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

/// The future of a result from the pool: see [`BlockingPool::submit`].
#[derive(Debug)]
#[must_use = "dropping it takes the work out of the queue"]
pub struct Running<T> {
    result: Arc<job::Slot<T>>,
    place: QueuePlace,
}

impl<T> Future for Running<T> {
    type Output = Result<T, RunError>;

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        self.result.poll(cx).map(|result| {
            result.map_err(|error| match error {
                JobError::Panicked { message } => RunError::Panicked { message },
                JobError::Aborted => RunError::Dropped,
            })
        })
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;
