//! Limiters shared by threads: exact totals, several quotas, live changes, observers.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::ManualClock;
use tidegate::limiter::Replace;
use tidegate::observer::{Event, Observer};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota, QuotaError, Tick};

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// Calls `allow` from four threads, many more times than can pass, while the first thread also moves the clock. Returns
/// how often it passed.
fn hammer(clock: &ManualClock, turns: u64, turn: Duration, allow: impl Fn() -> bool + Sync) -> u64 {
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (passed, allow) = (&passed, &allow);
            scope.spawn(move || {
                for _ in 0..turns {
                    for _ in 0..200 {
                        passed.fetch_add(u64::from(allow()), Ordering::Relaxed);
                    }
                    if thread == 0 {
                        clock.advance(turn);
                    }
                }
            });
        }
    });
    // No other thread is left: the units of the last move of the clock are taken too.
    while allow() {
        passed.fetch_add(1, Ordering::Relaxed);
    }
    passed.into_inner()
}

#[test]
fn threads_together_get_exactly_what_one_would() {
    let clock = ManualClock::default();
    let limiter = Limiter::new(Quota::per_second(100).burst(1000)).unwrap().with_clock(clock.clone());
    let passed = hammer(&clock, 100, Duration::from_millis(50), || limiter.allow().is_allowed());
    // Within the burst nothing overflows: five seconds add 500 to the initial 1000.
    assert_eq!(passed, 1500);
}

#[test]
fn threads_together_get_exactly_what_one_would_of_a_key() {
    let clock = ManualClock::default();
    let limiter =
        KeyedLimiter::new(Quota::per_second(100).burst(1000), 64).unwrap().with_clock(clock.clone());
    let passed = hammer(&clock, 100, Duration::from_millis(50), || limiter.allow("ann").is_allowed());
    assert_eq!(passed, 1500);
}

#[test]
fn several_quotas_are_charged_all_or_none_and_the_binding_one_is_named() {
    let clock = ManualClock::default();
    let limiter =
        Limiter::all([Quota::per_second(10), Quota::per_hour(25)]).unwrap().with_clock(clock.clone());
    assert_eq!(limiter.allow_n(cost(10)).unwrap().binding(), 0);
    let refused = limiter.allow();
    assert_eq!((refused.is_allowed(), refused.binding()), (false, 0));
    assert_eq!(refused.retry().after(), Some(Duration::from_millis(100)));

    clock.advance(Duration::from_secs(1));
    let passed = limiter.allow_n(cost(10)).unwrap();
    assert_eq!((passed.binding(), passed.remaining()), (0, 0));
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.standing().remaining, 5, "of the hour");
    let refused = limiter.allow_n(cost(6)).unwrap();
    assert_eq!((refused.is_allowed(), refused.binding()), (false, 1));
    assert!(limiter.allow_n(cost(5)).unwrap().is_allowed(), "the refusal has spent nothing of the second");
    assert_eq!(limiter.allow_n(cost(20)).unwrap().retry().after(), None, "more than a burst of one is never");
}

#[test]
fn a_reservation_over_several_quotas_waits_for_the_slowest() {
    let limiter = Limiter::all([Quota::per_second(10).burst(1), Quota::per_minute(60).burst(1)]).unwrap();
    let limiter = limiter.with_clock(ManualClock::default());
    assert!(limiter.allow().is_allowed());
    let reservation = limiter.reserve(Cost::ONE, Duration::MAX).unwrap();
    assert_eq!(reservation.wait(), Duration::from_secs(1));
    assert_eq!(reservation.act(), Tick::from_secs(1));
    assert_eq!(reservation.answer().binding(), 1);
    reservation.cancel();
    assert_eq!(limiter.reserve(Cost::ONE, Duration::MAX).unwrap().wait(), Duration::from_secs(1));
}

#[test]
fn numbers_that_are_no_limit_are_refused_and_leave_the_old_ones() {
    assert!(matches!(Limiter::new(Quota::per_second(0)), Err(QuotaError::Count { count: 0 })));
    let none: [Quota; 0] = [];
    let error = Limiter::all(none).unwrap_err();
    assert_eq!(error.to_string(), "number of quotas 0 is not a limit; name 1 or more");
    let limiter = Limiter::new(Quota::per_second(7).gcra().unwrap()).unwrap();
    assert!(limiter.change(Quota::per_second(5).burst(0), Replace::AsIs).is_err());
    assert_eq!(limiter.standing().limit, 7);
}

#[test]
fn a_change_reaches_all_clones_and_gives_nobody_a_fresh_burst() {
    let clock = ManualClock::default();
    let limiter = Limiter::new(Quota::per_second(10)).unwrap().with_clock(clock.clone());
    let clone = limiter.clone();
    assert!(clone.allow_n(cost(10)).unwrap().is_allowed());
    limiter.change(Quota::per_second(5), Replace::AsIs).unwrap();
    assert_eq!(clone.standing().remaining, 0);
    clock.advance(Duration::from_secs(1));
    assert_eq!(clone.standing().remaining, 5);
    limiter.change(Quota::per_second(50), Replace::Reset).unwrap();
    assert_eq!(clone.standing().remaining, 50);
    limiter.change_all([Quota::per_second(50), Quota::per_hour(3)], Replace::AsIs).unwrap();
    assert_eq!(clone.allow_n(cost(4)).unwrap().binding(), 1);
    assert_eq!(clone.quotas().len(), 2);
}

#[test]
fn a_change_reaches_every_key_on_its_next_use() {
    let limiter = KeyedLimiter::new(Quota::per_second(10), 100).unwrap().with_clock(ManualClock::default());
    assert!(limiter.allow_n("ann", cost(8)).unwrap().is_allowed());
    limiter.change(Quota::per_second(5), Replace::AsIs).unwrap();
    assert!(!limiter.allow("ann").is_allowed());
    assert_eq!(limiter.standing("bob").remaining, 5);
    limiter.reset("ann");
    assert_eq!(limiter.standing("ann").remaining, 5);
}

#[test]
fn a_key_may_have_a_limit_of_its_own() {
    let vip = Arc::new(Quota::per_second(100).gcra().unwrap());
    let limiter = KeyedLimiter::new(Quota::per_second(2), 100)
        .unwrap()
        .with_clock(ManualClock::default())
        .with_quotas(move |key| (key == b"vip").then(|| Arc::clone(&vip)));
    let held = limiter.reserve("vip", cost(50), Duration::ZERO).unwrap();
    assert_eq!(limiter.allow_n("ann", cost(50)).unwrap().retry().after(), None);
    held.settle(30);
    assert_eq!(limiter.standing("vip").remaining, 70);
}

#[test]
fn a_peek_neither_spends_nor_takes_room() {
    let limiter = KeyedLimiter::new(Quota::per_second(1), 100).unwrap().with_clock(ManualClock::default());
    assert!(limiter.peek("ann").is_allowed());
    assert_eq!(limiter.peek("ann").remaining(), 1);
    assert_eq!(limiter.occupancy().used, 0);
    assert!(limiter.allow("ann").used_up());
    assert_eq!(limiter.occupancy().used, 1);
}

#[derive(Debug, Default)]
struct Record {
    decided: Mutex<Vec<Event>>,
    cancelled: Mutex<Vec<Event>>,
}

impl Observer for Record {
    fn on_decision(&self, event: &Event) {
        self.decided.lock().push(*event);
    }

    fn on_cancel(&self, event: &Event) {
        self.cancelled.lock().push(*event);
    }
}

#[test]
fn an_observer_sees_decisions_and_cancellations_but_no_keys() {
    let record = Arc::new(Record::default());
    let limiter = KeyedLimiter::new(Quota::per_second(1), 100)
        .unwrap()
        .with_clock(ManualClock::default())
        .with_observer(Arc::clone(&record));
    assert!(limiter.allow("ann").is_allowed());
    assert!(!limiter.allow("ann").is_allowed());
    let _ = limiter.peek("ann");
    limiter.reserve("bob", Cost::ONE, Duration::ZERO).unwrap().cancel();
    let decided = record.decided.lock().clone();
    let allowed: Vec<bool> = decided.iter().map(|event| event.decision.is_allowed()).collect();
    assert_eq!(allowed, [true, false, true]);
    assert_eq!(decided[0].key, decided[1].key);
    assert_ne!(decided[0].key, decided[2].key);
    assert_eq!(decided[0].key, Some(limiter.digest("ann")));
    assert_eq!(*record.cancelled.lock(), [decided[2]]);
}

/// An observer that uses the limiter it observes: it would hang if it were called under the lock.
#[derive(Debug, Default)]
struct Meddler(Mutex<Option<Limiter>>, AtomicU64);

impl Observer for Meddler {
    fn on_decision(&self, _: &Event) {
        let limiter = self.0.lock().take();
        if let Some(limiter) = limiter {
            self.1.store(limiter.standing().remaining, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_observer_may_use_the_limiter_it_observes() {
    let meddler = Arc::new(Meddler::default());
    let limiter = Limiter::new(Quota::per_hour(9)).unwrap().with_observer(Arc::clone(&meddler));
    *meddler.0.lock() = Some(limiter.clone());
    assert!(limiter.allow().is_allowed());
    assert_eq!(meddler.1.load(Ordering::Relaxed), 8);
}
