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
