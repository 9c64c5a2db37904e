//! Thread pools for work that blocks, with a bounded queue in front of the threads.
//!
//! A call into a slow library or a driver without async support blocks its thread; on one pool shared by all, one slow
//! dependency takes the threads from the others. So each dependency gets a pool of its own: work beyond its capacity is
//! refused, and the rest of the service continues.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::{fmt, io};

use tidegate_core::QuotaError;

use crate::block_on::block_on;
use crate::clock::{self, Clock, SystemClock};
use crate::deadline::{self, Deadline};
use crate::job::{self, Job, JobError};
use crate::observer::{Observer, PoolDid};
use crate::priority;
use crate::sync::{Condvar, Mutex, thread};

/// A pool of threads. Clones share it. When the last clone is dropped, the threads run the waiting work and end.
///
/// Work that has begun cannot be cancelled: it continues after its caller has gone, and is bounded by the number of
/// threads. Work that waits for other work on the same pool can block all threads; give each level a pool of its own.
///
/// Costs two allocations per piece of work.
///
/// # Examples
/// ```
/// use tidegate::bulkhead::blocking_pool::BlockingPool;
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

const MAX_THREADS: usize = 1024;

impl BlockingPool {
    /// Starts `threads` threads (1 to 1,024) called `name`. Up to `places` pieces of work may
    /// wait for them; with 0, work that finds no free thread is refused.
    ///
    /// # Errors
    /// [`PoolError`]; threads that were already started end.
    pub fn new(name: &str, threads: usize, places: usize) -> Result<Self, PoolError> {
        if threads == 0 || threads > MAX_THREADS {
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

    /// Tells `observer` what becomes of work that is submitted through the returned pool and its clones
    /// ([`Observer::on_pool`]). It is told of ended work on the pool's thread; its panic there does not affect the
    /// result.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Runs a function on a thread of the pool, and awaits its result until the deadline that the task
    /// [carries](deadline::carried); without a deadline, as long as it takes. The function carries the same deadline,
    /// and the task's [priority](priority::carried).
    ///
    /// # Errors
    /// [`RunError`].
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
    /// As [`BlockingPool::run`].
    ///
    /// # Cancel safety
    /// As [`BlockingPool::run`].
    pub async fn run_until<T: Send + 'static>(
        &self,
        deadline: impl Into<Deadline>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RunError> {
        let deadline = deadline.into();
        let until = deadline.at(&*self.clock);
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

    /// Submits a function; it carries no deadline and no priority. Returns a future of its result. Dropping it removes
    /// the work from the queue if it was not begun.
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

    /// Wraps the work so that it tells the observer how it ended.
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

#[derive(Debug)]
struct Queue {
    /// Jobs are never run or dropped while it is locked.
    inner: Mutex<QueuedJobs>,
    work: Condvar,
    threads: usize,
    places: usize,
}

#[derive(Debug)]
struct QueuedJobs {
    /// The waiting jobs by arrival number. A map, not a deque, because jobs whose callers give up leave from the
    /// middle.
    jobs: BTreeMap<u64, Job>,
    arrivals: u64,
    running: usize,
    closed: bool,
}

impl Queue {
    fn new(threads: usize, places: usize) -> Self {
        let inner = QueuedJobs { jobs: BTreeMap::new(), arrivals: 0, running: 0, closed: false };
        Self { inner: Mutex::new(inner), work: Condvar::new(), threads, places }
    }

    /// Appends a job and returns its arrival number. Gives the job back if all threads are busy and all places are
    /// taken.
    fn join(&self, job: Job) -> Result<u64, Job> {
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
    fn next(&self) -> Option<Job> {
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

    fn close(&self) {
        self.inner.lock().closed = true;
        self.work.notify_all();
    }

    const fn places(&self) -> usize {
        self.places
    }

    fn waiting(&self) -> usize {
        self.inner.lock().jobs.len()
    }

    fn running(&self) -> usize {
        self.inner.lock().running
    }

    fn leave(&self, number: u64) -> bool {
        let job = self.inner.lock().jobs.remove(&number);
        job.is_some()
    }
}

/// Marks a job from [`Queue::next`] as done when dropped.
struct JobDone(Arc<Queue>);

impl Drop for JobDone {
    fn drop(&mut self) {
        self.0.inner.lock().running -= 1;
    }
}

/// A place in a queue; dropping it leaves the queue. Has no effect once the job was begun.
#[derive(Debug)]
struct QueuePlace {
    queue: Weak<Queue>,
    number: u64,
}

impl QueuePlace {
    fn new(queue: &Arc<Queue>, number: u64) -> Self {
        Self { queue: Arc::downgrade(queue), number }
    }

    fn leave(&self) -> bool {
        self.queue.upgrade().is_some_and(|queue| queue.leave(self.number))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
    use std::time::Duration;

    use parking_lot::Mutex;
    use tidegate_core::{Criticality, Priority, Tick};

    use super::*;
    use crate::clock::ManualClock;

    /// A piece of work that signals that it has begun, and runs until it is released.
    fn held() -> (impl FnOnce() -> u32 + Send + 'static, Receiver<()>, SyncSender<()>) {
        let ((begun, has_begun), (let_go, wait)) = (channel(), sync_channel::<()>(1));
        let work = move || {
            begun.send(()).expect("the test waits for it");
            let _ = wait.recv();
            7
        };
        (work, has_begun, let_go)
    }

    /// A pool whose only thread is busy.
    fn busy(places: usize) -> (BlockingPool, Running<u32>, SyncSender<()>) {
        let pool = BlockingPool::new("test", 1, places).expect("a pool");
        let (work, has_begun, let_go) = held();
        let running = pool.submit(work).expect("a free thread");
        has_begun.recv().expect("it begins");
        (pool, running, let_go)
    }

    #[test]
    fn what_finds_no_place_is_refused_at_once() {
        let (pool, running, let_go) = busy(1);
        let waits = pool.submit(|| 1).unwrap();
        assert_eq!(pool.submit(|| 2).unwrap_err(), RunError::Full { places: 1 });
        assert_eq!((pool.waiting(), pool.running()), (1, 1));
        let_go.send(()).unwrap();
        assert_eq!((block_on(running), block_on(waits)), (Ok(7), Ok(1)));
    }

    #[test]
    fn whoever_gives_up_leaves_the_line_to_others() {
        let (pool, running, let_go) = busy(1);
        drop(pool.submit(|| unreachable!("nobody waits for it")).unwrap());
        let second = pool.submit(|| 2).unwrap();
        let_go.send(()).unwrap();
        assert_eq!((block_on(running), block_on(second)), (Ok(7), Ok(2)));
    }

    #[test]
    fn a_caller_whose_time_is_up_is_freed() {
        let clock = ManualClock::default();
        let (pool, running, let_go) = busy(1);
        let pool = pool.with_clock(clock.clone());
        let never = || unreachable!("its time was up");
        assert_eq!(block_on(pool.run_until(Tick::EPOCH, never)), Err::<(), _>(RunError::NotBegun));

        let waits = thread::spawn({
            let pool = pool.clone();
            move || block_on(pool.run_until(Tick::from_secs(1), never))
        });
        while pool.waiting() == 0 {
            thread::yield_now();
        }
        clock.advance(Duration::from_secs(1));
        assert_eq!(waits.join().unwrap(), Err::<(), _>(RunError::NotBegun));
        assert_eq!(pool.waiting(), 0);
        drop(running);
        let_go.send(()).unwrap();
    }

    /// The thread stays busy as long as the work takes, but no caller waits for it.
    #[test]
    fn work_that_was_begun_goes_on_without_its_caller() {
        let clock = ManualClock::default();
        let pool = BlockingPool::new("test", 1, 0).unwrap().with_clock(clock.clone());
        let (work, has_begun, let_go) = held();
        let caller = thread::spawn({
            let pool = pool.clone();
            move || block_on(pool.run_until(Tick::from_secs(1), work))
        });
        has_begun.recv().unwrap();
        clock.advance(Duration::from_secs(1));
        assert_eq!(caller.join().unwrap(), Err(RunError::StillRunning));
        assert_eq!(pool.running(), 1);
        let full = pool.submit(|| ()).unwrap_err();
        assert_eq!(full, RunError::Full { places: 0 });
        assert_eq!(
            full.to_string(),
            "every thread of the pool is busy, and none of its 0 waiting places is free"
        );
        let_go.send(()).unwrap();
        while pool.running() > 0 {
            thread::yield_now();
        }
        assert_eq!(block_on(pool.run(|| 3)), Ok(3));
    }

    /// A clock whose sleeps end once the caller has been told that the work has ended, and not before.
    #[derive(Debug)]
    struct EndsWithTheWork {
        clock: ManualClock,
        let_go: SyncSender<()>,
        woken: Arc<AtomicBool>,
    }

    impl Clock for EndsWithTheWork {
        fn now(&self) -> Tick {
            self.clock.now()
        }

        fn sleep_until(&self, tick: Tick) -> clock::Sleep {
            self.let_go.send(()).expect("the work waits");
            while !self.woken.load(Ordering::Acquire) {
                thread::yield_now();
            }
            self.clock.set(tick);
            Box::pin(std::future::ready(()))
        }
    }

    struct Woken(Arc<AtomicBool>);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// The work ended between the last poll and the deadline: the caller was told that it was still running, and lost the
    /// result.
    #[test]
    fn work_that_ended_as_its_time_was_up_has_its_result() {
        let (work, has_begun, let_go) = held();
        let woken = Arc::new(AtomicBool::new(false));
        let clock = EndsWithTheWork { clock: ManualClock::default(), let_go, woken: Arc::clone(&woken) };
        let pool = BlockingPool::new("test", 1, 0).unwrap().with_clock(clock);
        let mut running = std::pin::pin!(pool.run_until(Tick::from_secs(1), work));
        let waker = Arc::new(Woken(woken)).into();
        let mut cx = std::task::Context::from_waker(&waker);
        assert_eq!(running.as_mut().poll(&mut cx), Poll::Ready(Ok(7)));
        assert_eq!(has_begun.try_recv(), Ok(()));
    }

    #[derive(Debug)]
    struct Panics;

    impl Observer for Panics {
        fn on_pool(&self, _: PoolDid) {
            panic!("the observer does");
        }
    }

    /// The observer used to run between the work and its caller, who then got the observer's panic for a result.
    #[test]
    fn a_result_outlives_an_observer_that_panics() {
        let pool = BlockingPool::new("test", 1, 8).expect("a pool").with_observer(Panics);
        assert_eq!(block_on(pool.run(|| 7)), Ok(7));
        let told = block_on(pool.run(|| panic!("the driver does")));
        assert_eq!(told, Err::<(), _>(RunError::Panicked { message: "the driver does".into() }));
        assert_eq!(block_on(pool.run(|| 8)), Ok(8));
    }

    #[test]
    fn a_panic_is_told_and_its_thread_goes_on() {
        let pool = BlockingPool::new("test", 1, 4).unwrap();
        let told = block_on(pool.run(|| panic!("the driver does")));
        assert_eq!(told, Err::<(), _>(RunError::Panicked { message: "the driver does".into() }));
        assert_eq!(block_on(pool.run(|| 3)), Ok(3));
    }

    #[test]
    fn the_work_carries_the_callers_deadline() {
        let pool = BlockingPool::new("test", 1, 4).unwrap();
        assert_eq!(block_on(pool.run(deadline::carried)), Ok(None));
        let until = Deadline::from(Tick::MAX);
        assert_eq!(deadline::carry(until, || block_on(pool.run(deadline::carried))), Ok(Some(until)));
    }

    #[test]
    fn the_work_carries_the_callers_priority() {
        let pool = BlockingPool::new("test", 1, 4).unwrap();
        let report = Priority::of(Criticality::Sheddable);
        priority::carry(report, || {
            assert_eq!(block_on(pool.run(priority::carried)), Ok(Some(report)));
            assert_eq!(block_on(pool.run_until(Tick::MAX, priority::carried)), Ok(Some(report)));
            assert_eq!(block_on(pool.submit(priority::carried).unwrap()), Ok(None));
        });
        assert_eq!(block_on(pool.run(priority::carried)), Ok(None), "the next one's own");
    }

    #[test]
    fn what_waits_is_run_after_the_last_handle_has_gone() {
        let (pool, running, let_go) = busy(4);
        let waits = pool.submit(|| 4).unwrap();
        drop(pool);
        let_go.send(()).unwrap();
        assert_eq!((block_on(running), block_on(waits)), (Ok(7), Ok(4)));
    }

    #[test]
    fn bad_numbers_are_refused_by_name() {
        for threads in [0, 1025] {
            let said = BlockingPool::new("test", threads, 1).unwrap_err().to_string();
            assert_eq!(said, format!("threads {threads} is not a number of threads; use 1 to 1024"));
        }
    }

    #[test]
    fn a_name_that_no_thread_can_have_is_refused() {
        let said = BlockingPool::new("a\0b", 1, 1).unwrap_err().to_string();
        assert_eq!(said, "name \"a\\0b\" cannot name a thread; leave out the zero byte");
    }

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("dropping it does");
            }
        }
    }

    /// A result without a receiver is dropped on the pool's thread. If that panicked, the thread died and was counted as
    /// busy for ever: a pool of one thread never ran anything again.
    #[test]
    fn a_result_that_panics_when_it_is_dropped_leaves_the_thread_to_others() {
        let pool = BlockingPool::new("test", 1, 4).unwrap();
        for _ in 0..3 {
            let (work, has_begun, let_go) = held();
            let abandoned = pool
                .submit(move || {
                    work();
                    PanicsWhenDropped
                })
                .unwrap();
            has_begun.recv().unwrap();
            drop(abandoned);
            let_go.send(()).unwrap();
        }
        assert_eq!(block_on(pool.run(|| 3)), Ok(3));
        let told = block_on(pool.run(|| std::panic::panic_any(PanicsWhenDropped)));
        assert_eq!(told, Err::<(), _>(RunError::Panicked { message: "no message".into() }));
        assert_eq!(block_on(pool.run(|| 4)), Ok(4));
    }

    /// The thread used to count as busy until a moment after the result had been handed over.
    #[test]
    fn whoever_has_a_result_finds_the_thread_free() {
        let pool = BlockingPool::new("test", 1, 0).unwrap();
        for number in 0..2000 {
            assert_eq!(block_on(pool.run(move || number)), Ok(number));
        }
    }

    #[test]
    fn panics_in_a_row_cost_no_thread() {
        let pool = BlockingPool::new("test", 2, 8).unwrap();
        let runs: Vec<_> = (0..8).map(|_| pool.submit(|| panic!("the driver does")).unwrap()).collect();
        for run in runs {
            assert!(matches!(block_on(run), Err::<(), _>(RunError::Panicked { .. })));
        }
        assert_eq!((pool.waiting(), pool.running()), (0, 0));
    }

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<PoolDid>>);

    impl Observer for Heard {
        fn on_pool(&self, did: PoolDid) {
            self.0.lock().push(did);
        }
    }

    #[test]
    fn an_observer_hears_what_becomes_of_work() {
        let (clock, heard) = (ManualClock::default(), Arc::new(Heard::default()));
        let said = || std::mem::take(&mut *heard.0.lock());
        let pool = BlockingPool::new("test", 1, 0).unwrap();
        let pool = pool.with_clock(clock.clone()).with_observer(heard.clone());
        assert_eq!(block_on(pool.run_until(Tick::EPOCH, || 1)), Err(RunError::NotBegun));
        let (work, has_begun, let_go) = held();
        let mut slow = Box::pin(pool.run_until(Tick::from_secs(1), work));
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(slow.as_mut().poll(cx).is_pending());
        has_begun.recv().unwrap();
        assert!(matches!(pool.submit(|| 2), Err(RunError::Full { places: 0 })));
        clock.advance(Duration::from_secs(1));
        assert_eq!(block_on(slow), Err(RunError::StillRunning));
        assert_eq!(said(), [PoolDid::NotBegun, PoolDid::Refused, PoolDid::StillRunning]);
        let_go.send(()).unwrap();
        let panics = loop {
            match pool.submit(|| -> u32 { panic!("on purpose") }) {
                Ok(running) => break running,
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(block_on(panics), Err(RunError::Panicked { message: "on purpose".to_owned() }));
        let ended = |panicked, secs| PoolDid::Ended { panicked, took: Duration::from_secs(secs) };
        let ends: Vec<_> = said().into_iter().filter(|did| *did != PoolDid::Refused).collect();
        assert_eq!(ends, [ended(false, 1), ended(true, 0)]);
    }
}
