//! Threads for work that blocks, with a bounded line before them.
//!
//! A call into a slow library, a file system or a driver without async holds its thread until it comes back. On the threads that serve requests a
//! few of these stop everything; on a pool that all share, one slow dependency takes the threads from all others. So each dependency gets a
//! pool of its own: what is too much for it is refused, and the rest of the service goes on.

mod line;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::thread;

use tidegate_core::QuotaError;

use self::line::{Ended, Line, Place};
use crate::block_on::block_on;
use crate::clock::{self, Clock, SystemClock};
use crate::deadline::{self, Deadline};
use crate::job::{self, JobError};
use crate::observer::{Observer, PoolDid};
use crate::priority;

/// A pool of threads. Clones share it; when the last is dropped, the threads run what waits, and end.
///
/// Work that has begun cannot be taken from its thread: it goes on when its caller has gone. What bounds it is the number of threads. Work
/// that waits for other work on the same pool can hold all threads while it does; give each level a pool of its own.
///
/// Two allocations for each piece of work.
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

/// Closes the line when the last clone goes.
struct Pool {
    line: Arc<Line>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.line.close();
    }
}

/// Why a pool cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A number is out of range.
    #[error(transparent)]
    Parameter(#[from] QuotaError),
    /// The system gives no more threads.
    #[error("thread {number} of the pool `{name}` could not be started")]
    Thread {
        /// The pool's name.
        name: String,
        /// Which one, counted from 1.
        number: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Why work on a pool has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Every thread is busy and every place to wait is taken; it was not begun.
    #[error("all {places} places before the pool's threads are taken")]
    Full {
        /// How many may wait.
        places: usize,
    },
    /// The time was up while it waited; it was not begun.
    #[error("the time was up before a thread of the pool was free")]
    NotBegun,
    /// The time was up while it was at work. It goes on, and nobody gets its result.
    #[error("the time was up while the work was under way; it goes on")]
    StillRunning,
    /// It panicked; its thread goes on.
    #[error("the work panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// Whatever was to run it went away before it was begun.
    #[error("the pool was dropped before the work was begun")]
    Dropped,
}

impl BlockingPool {
    /// The most threads of one pool.
    pub const MAX_THREADS: usize = 1024;

    /// Starts `threads` threads called `name`, 1 to [`BlockingPool::MAX_THREADS`], before which `places` pieces of work may wait; 0 refuses what
    /// finds no free thread.
    ///
    /// # Errors
    /// [`PoolError`]; threads that were started end then.
    pub fn new(name: &str, threads: usize, places: usize) -> Result<Self, PoolError> {
        if threads == 0 || threads > Self::MAX_THREADS {
            let want = "is not a number of threads; use 1 to 1024";
            return Err(QuotaError::Parameter { name: "threads", value: threads.to_string(), want }.into());
        }
        if name.contains('\0') {
            let want = "cannot name a thread; leave out the zero byte";
            return Err(QuotaError::Parameter { name: "name", value: format!("{name:?}"), want }.into());
        }
        let line = Arc::new(Line::new(threads, places));
        let pool = Pool { line: Arc::clone(&line) };
        for number in 1..=threads {
            let line = Arc::clone(&line);
            let work = move || {
                while let Some(job) = line.next() {
                    block_on(job);
                }
            };
            let started = thread::Builder::new().name(name.to_owned()).spawn(work);
            started.map_err(|source| PoolError::Thread { name: name.to_owned(), number, source })?;
        }
        Ok(Self { pool: Arc::new(pool), clock: Arc::new(SystemClock::new()), observer: None })
    }

    /// Sets the clock that deadlines go by; the [`SystemClock`] unless set.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Tells `observer` what becomes of work that is handed in by the returned pool and clones of it ([`Observer::on_pool`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Runs a function on a thread of the pool, and awaits its result until the deadline that the task [carries](deadline::carried); without
    /// one, as long as it takes. The function carries the same deadline, and the task's [priority](priority::carried).
    ///
    /// # Errors
    /// [`RunError`].
    ///
    /// # Cancel safety
    /// Dropped, it takes the work out of the line if it was not begun; what was begun goes on.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RunError> {
        match deadline::carried() {
            Some(deadline) => self.run_until(deadline, work).await,
            None => self.submit(priority::hand_over(work))?.await,
        }
    }

    /// As [`BlockingPool::run`], until a deadline.
    ///
    /// # Errors
    /// [`RunError`].
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
            // It may have ended since it was last looked at.
            None => {
                poll_fn(|cx| match running.as_mut().poll(cx) {
                    Poll::Ready(result) => Poll::Ready(result),
                    Poll::Pending => Poll::Ready(Err(self.gives_up(RunError::StillRunning))),
                })
                .await
            }
        }
    }

    /// Hands in a function, which carries no deadline and no priority. What is returned is a future of its result; dropped, it takes the work
    /// out of the line if it was not begun.
    ///
    /// # Errors
    /// [`RunError::Full`], at once.
    pub fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Running<T>, RunError> {
        let line = &self.pool.line;
        let running = Arc::clone(line);
        let work = self.observed(work);
        let (job, result) = job::job(async move {
            // Ends before the result is handed over: whoever has it finds the thread free.
            let _ended = Ended(running);
            work()
        });
        // Dropped after the lock where it is refused: what the function holds is foreign code.
        let number =
            line.join(job).map_err(|_job| self.gives_up(RunError::Full { places: line.places() }))?;
        Ok(Running { result, place: Place::new(line, number) })
    }

    /// Tells of work that has no result.
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

    /// Makes work that tells how it ended, where somebody listens.
    fn observed<T, W: FnOnce() -> T>(&self, work: W) -> impl FnOnce() -> T + use<T, W> {
        let told = self.observer.clone().map(|observer| (observer, Arc::clone(&self.clock)));
        move || {
            let Some((observer, clock)) = told else { return work() };
            let begun = clock.now();
            // Caught, since an observer that panics while a panic goes by would end the process.
            let done = catch_unwind(AssertUnwindSafe(work));
            let took = clock.now().since(begun);
            observer.on_pool(PoolDid::Ended { panicked: done.is_err(), took });
            done.unwrap_or_else(|panic| resume_unwind(panic))
        }
    }

    /// Returns how many pieces of work wait for a thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pool.line.waiting()
    }

    /// Returns how many pieces of work are under way, those whose callers have gone included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.pool.line.running()
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

/// A future of the result of work on a pool: see [`BlockingPool::submit`].
#[derive(Debug)]
#[must_use = "dropping it takes the work out of the line"]
pub struct Running<T> {
    result: Arc<job::Slot<T>>,
    place: Place,
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

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
