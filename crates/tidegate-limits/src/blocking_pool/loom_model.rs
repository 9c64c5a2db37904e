//! Loom models of a pool with one thread: callers that submit, give up, run out of time or go away, interleaved with the
//! thread that takes the work, with a bounded number of preemptions where there are many interleavings.
//!
//! Loom switches threads at the queue, at the slot of a result, where work counts itself and where a thread parks. The clock
//! is set by hand. A caller that is never answered stays parked, which loom reports as a
//! deadlock; so does a thread of the pool that never ends.

use std::sync::Arc as Plain;
use std::task::{Context, Waker};

use loom::sync::atomic::AtomicU32 as Count;
use tidegate_core::Tick;

use super::*;
use crate::clock::ManualClock;
use crate::sync::short_or_long;

use crate::sync::{Ordering, explore};

/// A pool with one thread.
fn pool(places: usize, clock: &ManualClock) -> BlockingPool {
    let pool = Pool::start("model", 1, places).unwrap();
    BlockingPool { pool: Arc::new(pool), clock: Arc::new(clock.clone()), observer: None }
}

/// Work that counts how often it was run, and returns a number.
fn counted(runs: &Plain<Count>, number: u32) -> impl FnOnce() -> u32 + Send + 'static {
    let runs = Plain::clone(runs);
    move || {
        runs.fetch_add(1, Ordering::SeqCst);
        number
    }
}

fn runs_of(runs: &Count) -> u32 {
    runs.load(Ordering::SeqCst)
}

/// Runs one more piece of work on the pool. The pool has one thread, which takes work in order, so whatever was
/// taken before has ended.
fn drain(pool: &BlockingPool) {
    assert_eq!(block_on(pool.submit(|| 9).unwrap()), Ok(9));
    assert_eq!((pool.waiting(), pool.running()), (0, 0));
}

/// A caller's time is up while the thread takes its work. It gets the result of work that was run, learns that work was
/// not begun, or leaves work to itself that was begun; the work is run at most once.
#[test]
fn the_time_is_up_while_the_thread_takes_the_work() {
    explore(short_or_long(Some(2), Some(3)), || {
        let (clock, runs) = (ManualClock::default(), Plain::new(Count::new(0)));
        let pool = pool(1, &clock);
        let (other, work) = (pool.clone(), counted(&runs, 7));
        let caller = thread::spawn(move || block_on(other.run_until(Tick::from_secs(1), work)));
        // Loom sees no clock: it switches threads here, before the time is up.
        let _ = pool.waiting();
        clock.set(Tick::from_secs(1));
        let answer = caller.join().unwrap();
        drain(&pool);
        let expected = match answer {
            Ok(7) | Err(RunError::StillRunning) => 1,
            Err(RunError::NotBegun) => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!(runs_of(&runs), expected, "{answer:?}");
        assert_eq!(clock.sleepers(), 0);
    });
}

/// Three callers come at once, and there is room for two. Whoever is taken in is run once and answered, whoever is
/// refused is never run. A third is taken in only once one was run, and no room is left unused.
#[test]
fn a_full_line_refuses_and_the_rest_is_run_once() {
    explore(short_or_long(Some(1), Some(2)), || {
        let (pool, taken) = (pool(1, &ManualClock::default()), Plain::new(Count::new(0)));
        let runs = Plain::new(Count::new(0));
        let callers = [1, 2].map(|number| {
            let (pool, taken, runs) = (pool.clone(), Plain::clone(&taken), Plain::clone(&runs));
            thread::spawn(move || submits(&pool, &taken, &runs, number))
        });
        submits(&pool, &taken, &runs, 3);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(runs_of(&runs), runs_of(&taken));
        assert!(runs_of(&taken) >= 2, "one of two was refused, and there was room for it");
        drain(&pool);
    });
}

/// Submits work, and awaits it if it was taken in.
fn submits(pool: &BlockingPool, taken: &Count, runs: &Plain<Count>, number: u32) {
    match pool.submit(counted(runs, number)) {
        Ok(running) => {
            let taken = taken.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(taken <= 2 + runs_of(runs), "{taken} were taken in, and none was run");
            assert_eq!(block_on(running), Ok(number));
        }
        Err(error) => assert_eq!(error, RunError::Full { places: 1 }),
    }
}

/// The only thread has taken work, and there is no place: another caller is refused until the first has its result, and
/// not after that.
#[test]
fn a_caller_with_its_result_finds_the_thread_free() {
    explore(None, || {
        let pool = pool(0, &ManualClock::default());
        let first = pool.submit(|| 1).unwrap();
        assert_eq!(block_on(first), Ok(1));
        drain(&pool);
    });
}

/// The last clone of the pool is dropped while work waits: it is run all the same, its callers are answered, and the
/// thread ends.
#[test]
fn work_that_waits_outlives_the_pool() {
    explore(short_or_long(Some(2), Some(3)), || {
        let pool = pool(2, &ManualClock::default());
        let runs = Plain::new(Count::new(0));
        let (one, two) = (pool.submit(counted(&runs, 1)).unwrap(), pool.submit(counted(&runs, 2)).unwrap());
        let dropped = thread::spawn(move || drop(pool));
        assert_eq!((block_on(two), block_on(one)), (Ok(2), Ok(1)));
        assert_eq!(runs_of(&runs), 2);
        dropped.join().unwrap();
    });
}

/// A caller gives up while the thread takes its work. The work behind it is run, and its own not at all or once.
#[test]
fn a_caller_that_gives_up_holds_up_nobody() {
    explore(short_or_long(Some(2), Some(3)), || {
        let pool = pool(2, &ManualClock::default());
        let runs = Plain::new(Count::new(0));
        let (other, work) = (pool.clone(), counted(&runs, 1));
        let gives_up = thread::spawn(move || {
            let mut running = Box::pin(other.submit(work).unwrap());
            running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        });
        assert_eq!(block_on(pool.submit(|| 2).unwrap()), Ok(2));
        let answered = gives_up.join().unwrap();
        drain(&pool);
        let runs = runs_of(&runs);
        assert!(runs == 1 || !answered && runs == 0, "run {runs} times, answered: {answered}");
    });
}

/// Work that panics is answered like any other, and the thread goes on.
#[test]
fn a_panic_is_an_answer_and_the_thread_goes_on() {
    explore(short_or_long(Some(2), Some(3)), || {
        let pool = pool(1, &ManualClock::default());
        let other = pool.clone();
        let panics = thread::spawn(move || {
            let work = || resume_unwind(Box::new("on purpose"));
            other.submit(work).map(block_on::<Running<()>>)
        });
        assert_eq!(block_on(pool.submit(|| 2).unwrap()), Ok(2));
        let panicked = RunError::Panicked { message: "on purpose".to_owned() };
        assert_eq!(panics.join().unwrap().unwrap(), Err(panicked));
        drain(&pool);
    });
}
