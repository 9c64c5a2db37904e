//! Races that once had a bug, each reproduced by a clock that lets another caller in at exactly that moment.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Precision, Replace};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota, Tick};

const DAY: Duration = Duration::from_secs(86_400);

type Turn = Box<dyn FnOnce() + Send>;

/// A manual clock that runs a function once before it answers a read.
#[derive(Clone, Default)]
struct Hooked {
    tick: Arc<AtomicU64>,
    turn: Arc<Mutex<Option<Turn>>>,
}

impl Hooked {
    fn meanwhile(&self, turn: impl FnOnce() + Send + 'static) {
        *self.turn.lock().unwrap() = Some(Box::new(turn));
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooked").field(&self.tick).finish()
    }
}

impl Clock for Hooked {
    fn now(&self) -> Tick {
        let turn = self.turn.lock().unwrap().take();
        if let Some(turn) = turn {
            turn();
        }
        Tick::from_nanos(self.tick.load(Ordering::Relaxed))
    }
}

/// Regression: a check read the quota's numbers and then the word, or lost the exchange and tried again with the same
/// numbers. A change in between gave the word another origin, and the check wrote the process's uptime as a time from
/// now on: a limit changed after thirty days refused everybody for thirty more. A word for "never used" was the same
/// after the change, so the exchange did not notice it either.
#[test]
fn a_change_in_the_middle_of_a_check_does_not_close_the_limit_for_its_uptime() {
    for mode in [Precision::Shared, Precision::Exact, Precision::Leased] {
        for (used, how) in
            [(0, Replace::AsIs), (4, Replace::AsIs), (4, Replace::Proportional), (9, Replace::Reset)]
        {
            let clock = Hooked::default();
            clock.tick.store(1_700_000_000_000_000_000, Ordering::Relaxed);
            let limiter =
                Limiter::new(Quota::per_second(10)).unwrap().with_clock(clock.clone()).with_precision(mode);
            clock.tick.fetch_add(30 * DAY.as_nanos() as u64, Ordering::Relaxed);
            for _ in 0..used {
                assert!(limiter.allow().is_allowed());
            }
            let other = limiter.clone();
            clock.meanwhile(move || other.change(Quota::per_second(7).burst(20), how).unwrap());
            assert!(limiter.allow().is_allowed(), "{mode:?} {used} {how:?}");
            let standing = limiter.standing();
            assert!(standing.reset_after < Duration::from_secs(3), "{mode:?} {used} {how:?}: {standing:?}");
            assert!(standing.remaining >= 20 - 10 - 1, "{mode:?} {used} {how:?}: {standing:?}");
            assert!(standing.remaining < 20, "{mode:?} {used} {how:?}: {standing:?}");
        }
    }
}

/// A thread drew units ahead and stopped asking. While it slept, the limit filled up with time, including the leased
/// units. Regression: then the lease was given back as well, so each idle thread made a burst up to 63 units larger
/// than the limit.
#[test]
fn units_that_time_has_already_given_back_are_not_given_back_by_a_lease() {
    let clock = ManualClock::default();
    let limiter = Limiter::new(Quota::per_second(1000))
        .unwrap()
        .with_clock(clock.clone())
        .with_precision(Precision::Leased);
    let (ready, drawn) = channel();
    let (end, ended) = channel::<()>();
    thread::scope(|scope| {
        let idle = limiter.clone();
        let idler = scope.spawn(move || {
            assert!(idle.allow().is_allowed());
            ready.send(()).unwrap();
            let _ = ended.recv();
        });
        drawn.recv().unwrap();
        clock.advance(Duration::from_secs(10));
        let before = take_all(&limiter);
        drop(end);
        idler.join().unwrap();
        assert_eq!(before + take_all(&limiter), 1000, "a full limit and not a unit more at one moment");
    });
}

fn take_all(limiter: &Limiter) -> u64 {
    (0..10_000).take_while(|_| limiter.allow().is_allowed()).count() as u64
}

/// Regression: a step back of the clock was ignored for checks but not for waits, so a waiter waited for units that any
/// check would have been given.
#[test]
fn a_wait_after_a_step_back_gets_what_the_latest_tick_allows() {
    for keyed in [false, true] {
        let clock = ManualClock::at(Tick::from_secs(1000));
        let quota = Quota::per_second(1).burst(2);
        let limiter = Limiter::new(quota).unwrap().with_clock(clock.clone());
        let keys = KeyedLimiter::new(quota, 10).unwrap().with_clock(clock.clone());
        assert!(limiter.allow().is_allowed() && keys.allow("ann").is_allowed());
        clock.set(Tick::from_secs(990));
        let wait = if keyed { keys.wait("ann", Cost::ONE) } else { limiter.wait(Cost::ONE) };
        let mut wait = std::pin::pin!(wait.within(Duration::ZERO));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = wait.as_mut().poll(&mut context);
        assert!(matches!(polled, std::task::Poll::Ready(Ok(_))), "keyed {keyed}: {polled:?}");
    }
}
