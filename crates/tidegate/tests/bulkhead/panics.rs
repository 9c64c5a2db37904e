//! Clocks and wakers are foreign code and may panic: that loses no place and forgets no waiter.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tidegate::bulkhead::{Enter, QueueOrder};
use tidegate::clock::{Clock, ManualClock};
use tidegate::concurrency::HillClimb;
use tidegate::concurrency::codel::Codel;
use tidegate::concurrency::throttle::Sre;
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome, Tick};

use super::{Waiter, ready};

/// A clock that stands still, and panics after a number of reads.
#[derive(Clone, Debug)]
struct Fuse(Arc<AtomicI64>);

impl Fuse {
    fn lasting(reads: i64) -> Self {
        Self(Arc::new(AtomicI64::new(reads)))
    }

    fn last(&self, reads: i64) {
        self.0.store(reads, Ordering::SeqCst);
    }
}

impl Clock for Fuse {
    fn now(&self) -> Tick {
        assert!(self.0.fetch_sub(1, Ordering::SeqCst) > 0, "the clock is broken");
        Tick::EPOCH
    }
}

fn kinds(clock: &Fuse) -> [Bulkhead; 3] {
    [Bulkhead::new(3).unwrap(), Bulkhead::adaptive(HillClimb::default()), Bulkhead::self_tuning()]
        .map(|bulkhead| bulkhead.with_clock(clock.clone()))
}

/// Regression: a clock that panicked between taking a place and making its permit lost the place for ever.
#[test]
fn a_clock_that_panics_while_somebody_enters_or_leaves_loses_no_place() {
    for reads in 0..9 {
        let clock = Fuse::lasting(i64::MAX);
        for bulkhead in kinds(&clock) {
            let places = bulkhead.standing().remaining;
            clock.last(reads);
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let (one, two) = (bulkhead.try_enter().unwrap(), bulkhead.enter().now().unwrap());
                one.leave(Outcome::Success);
                two.leave(Outcome::Success);
            }));
            clock.last(i64::MAX);
            assert!(bulkhead.standing().remaining >= places, "{reads} reads: {bulkhead:?}");
        }
    }
}

#[test]
fn a_clock_that_panics_while_a_place_is_passed_on_forgets_nobody() {
    for reads in 0..8 {
        let clock = Fuse::lasting(i64::MAX);
        let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
        let inside = bulkhead.try_enter().unwrap();
        let [mut first, mut second] = [Waiter::new(bulkhead.enter()), Waiter::new(bulkhead.enter())];
        assert!(first.poll().is_pending() && second.poll().is_pending());
        clock.last(reads);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(inside)));
        assert!(first.was_woken(), "{reads} reads");
        let _ = catch_unwind(AssertUnwindSafe(|| drop(first)));
        assert!(second.was_woken(), "{reads} reads");
        clock.last(i64::MAX);
        drop(ready(second.poll()).unwrap());
        assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (1, 0));
    }
}

#[test]
fn a_clock_that_panics_while_a_waiter_fetches_its_place_does_not_lose_it() {
    let clock = Fuse::lasting(i64::MAX);
    for bulkhead in kinds(&clock) {
        clock.last(i64::MAX);
        let all = bulkhead.enter_n(bulkhead.standing().limit).now().unwrap();
        let mut waiter = Waiter::new(bulkhead.enter());
        assert!(waiter.poll().is_pending());
        drop(all);
        clock.last(0);
        // A fixed bulkhead does not read the clock, and the waiter enters.
        let entered = catch_unwind(AssertUnwindSafe(|| drop(ready(waiter.poll()))));
        assert!(entered.is_err() || !format!("{bulkhead:?}").contains("debt: 1"));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(waiter)));
        clock.last(i64::MAX);
        let standing = bulkhead.standing();
        assert_eq!((standing.remaining, bulkhead.waiting()), (standing.limit, 0));
    }
}

/// A waker that panics when it is called.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("the waker is broken");
    }
}

/// Polls an entry once with a waker that panics when it is called; the entry has to wait.
fn waits_with_broken_waker(entry: Enter) -> std::pin::Pin<Box<Enter>> {
    let mut entry = Box::pin(entry);
    let waker = Waker::from(Arc::new(Broken));
    assert!(entry.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    entry
}

/// Regression: a newcomer that had displaced a waiter stayed in the queue for ever if that waiter's waker panicked, and
/// the next place went to it.
#[test]
fn a_waker_that_panics_while_somebody_joins_the_line_leaves_nobody_behind_in_it() {
    let bulkhead = Bulkhead::new(1).unwrap().with_room(1);
    let inside = bulkhead.try_enter().unwrap();
    let displaced = waits_with_broken_waker(bulkhead.enter().priority(Criticality::Sheddable));
    let mut newcomer = Waiter::new(bulkhead.enter());
    assert!(catch_unwind(AssertUnwindSafe(|| newcomer.poll().map(drop))).is_err());
    drop(newcomer);
    assert_eq!(bulkhead.waiting(), 0);
    drop((displaced, inside));
    assert_eq!(bulkhead.standing().remaining, 1);
}

/// Regression: a caller that enters past a queue may serve a waiter first, by the time that has passed. If the waker of
/// that waiter panicked, the caller's own place was lost.
#[test]
fn a_waker_that_panics_while_somebody_enters_loses_no_place() {
    for awaited in [false, true] {
        let clock = ManualClock::default();
        let order = QueueOrder::Adaptive(Codel::default());
        let bulkhead = Bulkhead::new(3).unwrap().with_order(order).with_clock(clock.clone());
        let inside = bulkhead.try_enter().unwrap();
        let mut first = Waiter::new(bulkhead.enter_n(3));
        assert!(first.poll().is_pending());
        clock.advance(Duration::from_millis(90));
        let second = waits_with_broken_waker(bulkhead.enter());
        // The queue has not been empty for an interval, so the newest waiter is next, and a place is free for it.
        clock.advance(Duration::from_millis(60));
        let entered = catch_unwind(AssertUnwindSafe(|| {
            let permit =
                if awaited { ready(Waiter::new(bulkhead.enter()).poll()) } else { bulkhead.enter().now() };
            drop(permit.unwrap());
        }));
        assert!(entered.is_err(), "the waker panics");
        drop((first, second, inside));
        assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (3, 0), "awaited: {awaited}");
    }
}

/// A permit whose return wakes a waiter with a broken waker is counted by a throttle all the same.
#[test]
fn a_waker_that_panics_hides_no_outcome_from_a_throttle() {
    let throttle = Sre::default().k(4.0).unwrap().least_requests(20);
    let bulkhead = Bulkhead::new(1).unwrap().with_throttle(throttle).with_clock(ManualClock::default());
    for _ in 0..20 {
        let inside = bulkhead.try_enter().unwrap();
        let waiting = waits_with_broken_waker(bulkhead.enter());
        let _ = catch_unwind(AssertUnwindSafe(|| inside.leave(Outcome::Success)));
        drop(waiting);
    }
    assert_eq!(bulkhead.refused_share(), 0, "half of all callers were served");
}
