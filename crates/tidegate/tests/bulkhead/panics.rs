//! Clocks are foreign code and may panic: that loses no place and forgets no waiter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate::concurrency::HillClimb;
use tidegate::{Bulkhead, Clock, Outcome, Tick};

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
        let all = bulkhead.try_enter_n(bulkhead.standing().limit).unwrap();
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
