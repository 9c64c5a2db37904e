//! The bulkhead as callers see it: deadlines, turns, and every order in which permits and waiters can end.

mod adaptive;
mod any_order;
mod causes;
mod observed;
mod orders;
mod panics;
mod queues;
mod tenants;
mod throttled;
mod wide;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tidegate::bulkhead::{Enter, Permit};
use tidegate::clock::{Clock, ManualClock};
use tidegate::deadline::carry;
use tidegate::limiter::{Retry, TakeError};
use tidegate::{Bulkhead, Cost, Outcome, Tick};

/// Records whether its waker was called.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A waiter that is polled by hand.
struct Waiter {
    entry: Pin<Box<Enter>>,
    flag: Arc<Flag>,
}

impl Waiter {
    fn new(entry: Enter) -> Self {
        Self { entry: Box::pin(entry), flag: Arc::default() }
    }

    fn poll(&mut self) -> Poll<Result<Permit, TakeError>> {
        let waker = Waker::from(Arc::clone(&self.flag));
        self.entry.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn was_woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }
}

fn ready(poll: Poll<Result<Permit, TakeError>>) -> Result<Permit, TakeError> {
    match poll {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("still waits"),
    }
}

fn places(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// A wait ends at the first of the deadline that the task carries and the entry's own bound.
#[test]
fn nobody_waits_beyond_the_deadline_of_the_task() {
    type Bounded = fn(Enter) -> Enter;
    const SECOND: Duration = Duration::from_secs(1);
    let at = Tick::from_secs;
    let bounds: [(Bounded, u64); 4] = [
        (|entry| entry, 2),
        (|entry| entry.within(SECOND), 1),
        (|entry| entry.within(5 * SECOND), 2),
        (|entry| entry.until(Tick::from_secs(9)), 2),
    ];
    for (number, (bound, ends)) in bounds.into_iter().enumerate() {
        for tried in [false, true] {
            let clock = ManualClock::default();
            let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
            let inside = bulkhead.try_enter().unwrap();
            let mut entry = bound(bulkhead.enter());
            if tried {
                assert!(carry(at(2), || entry.try_now()).is_none());
            }
            let mut waiter = Waiter::new(entry);
            let first = if tried { waiter.poll() } else { carry(at(2), || waiter.poll()) };
            assert!(first.is_pending(), "{number}");
            clock.advance(Duration::from_secs(ends) - Duration::from_nanos(1));
            assert!(waiter.poll().is_pending(), "{number}: it waits for {ends} s");
            clock.advance(Duration::from_nanos(1));
            assert_eq!(ready(waiter.poll()).unwrap_err().retry(), Retry::Unknown, "{number}");
            let mut late = Waiter::new(bulkhead.enter());
            let refused = carry(Tick::EPOCH, || ready(late.poll())).unwrap_err();
            assert_eq!((refused.retry(), bulkhead.waiting()), (Retry::Never, 0), "its time was up before");
            drop(inside);
            assert!(carry(Tick::EPOCH, || ready(Waiter::new(bulkhead.enter()).poll())).is_ok(), "no wait");
        }
    }
}

#[test]
fn nobody_enters_past_those_who_wait() {
    let bulkhead = Bulkhead::new(3).unwrap();
    let inside = bulkhead.enter_n(places(2)).now().unwrap();
    let mut large = Waiter::new(bulkhead.enter_n(places(3)));
    let mut small = Waiter::new(bulkhead.enter());
    assert!(large.poll().is_pending() && small.poll().is_pending());
    assert_eq!(bulkhead.standing().remaining, 1);
    let refused = bulkhead.try_enter().unwrap_err();
    assert_eq!(refused.retry(), Retry::Unknown, "a place is free, and the first in line wants three");
    inside.leave(Outcome::Success);
    assert!(large.was_woken() && !small.was_woken());
    let large = ready(large.poll()).unwrap();
    assert_eq!((large.places(), bulkhead.standing().remaining), (3, 0));
    drop(large);
    assert!(ready(small.poll()).is_ok());
}

#[test]
fn more_places_than_there_are_is_never_also_behind_a_line() {
    let bulkhead = Bulkhead::new(2).unwrap();
    let _inside = bulkhead.enter_n(places(2)).now().unwrap();
    let mut waiter = Waiter::new(bulkhead.enter());
    assert!(waiter.poll().is_pending());
    assert_eq!(bulkhead.enter_n(places(3)).now().unwrap_err().retry(), Retry::Never);
    assert_eq!(ready(Waiter::new(bulkhead.enter_n(places(3))).poll()).unwrap_err().retry(), Retry::Never);
}

#[test]
fn a_lowered_number_refuses_who_can_never_enter_and_lets_the_next_one_go_on() {
    let bulkhead = Bulkhead::new(3).unwrap();
    let inside = bulkhead.enter_n(places(3)).now().unwrap();
    let (mut large, mut small) = (Waiter::new(bulkhead.enter_n(places(3))), Waiter::new(bulkhead.enter()));
    assert!(large.poll().is_pending() && small.poll().is_pending());
    bulkhead.change(2).unwrap();
    assert!(large.was_woken());
    assert_eq!(ready(large.poll()).unwrap_err().retry(), Retry::Never);
    assert_eq!((bulkhead.standing().remaining, bulkhead.standing().debt), (0, 1));
    assert!(small.poll().is_pending(), "three are inside still");
    drop(inside);
    assert!(ready(small.poll()).is_ok());
    assert!(bulkhead.change(0).is_err() && bulkhead.standing().limit == 2);
}

#[test]
fn a_lowered_number_refuses_at_once_whoever_can_never_enter() {
    let bulkhead = Bulkhead::new(10).unwrap();
    let inside = bulkhead.enter_n(places(10)).now().unwrap();
    let mut line = [5, 8, 1, 6].map(|wanted| Waiter::new(bulkhead.enter_n(places(wanted))));
    assert!(line.iter_mut().all(|waiter| waiter.poll().is_pending()));
    bulkhead.change(5).unwrap();
    assert_eq!(line.each_ref().map(Waiter::was_woken), [false, true, false, true], "also behind the first");
    let [first, eight, one, six] = &mut line;
    for large in [eight, six] {
        assert_eq!(ready(large.poll()).unwrap_err().retry(), Retry::Never);
    }
    assert_eq!(bulkhead.waiting(), 2);
    drop(inside);
    drop(ready(first.poll()).unwrap());
    assert!(ready(one.poll()).is_ok());
}

#[test]
fn a_deadline_ends_the_wait_and_the_next_one_moves_up() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let inside = bulkhead.try_enter().unwrap();
    let mut first = Waiter::new(bulkhead.enter().within(Duration::from_secs(5)));
    let mut second = Waiter::new(bulkhead.enter().until(Tick::from_secs(200)));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    clock.advance(Duration::from_secs(5));
    assert!(first.was_woken(), "by its timer");
    assert_eq!(ready(first.poll()).unwrap_err().retry(), Retry::Unknown);
    assert_eq!(bulkhead.waiting(), 1);
    drop(inside);
    assert!(ready(second.poll()).is_ok());
}

#[test]
fn a_place_that_came_by_the_deadline_is_taken_at_it() {
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let inside = bulkhead.try_enter().unwrap();
    let mut waiter = Waiter::new(bulkhead.enter().within(Duration::from_secs(5)));
    assert!(waiter.poll().is_pending());
    drop(inside);
    clock.advance(Duration::from_secs(9));
    assert!(ready(waiter.poll()).is_ok());
}

#[test]
fn no_time_is_now_or_not_at_all_and_a_past_deadline_is_never() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let late = ready(Waiter::new(bulkhead.enter().until(Tick::from_secs(99))).poll());
    assert_eq!(late.unwrap_err().retry(), Retry::Never);
    let inside = ready(Waiter::new(bulkhead.enter().within(Duration::ZERO)).poll()).unwrap();
    let refused = ready(Waiter::new(bulkhead.enter().within(Duration::ZERO)).poll()).unwrap_err();
    assert_eq!((refused.retry(), bulkhead.waiting(), clock.sleepers()), (Retry::Unknown, 0, 0));
    assert_eq!(refused.to_string(), "refused: all places are taken; it is unknown when a retry can pass");
    drop(inside);
    assert!(clock.now() == Tick::from_secs(100) && bulkhead.standing().remaining == 1);
}

#[cfg(feature = "tokio")]
#[test]
fn a_clock_without_a_timer_leaves_nobody_in_the_line() {
    // Tokio's timer panics in a runtime that was built without it.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside_runtime = runtime.enter();
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(tidegate::clock::TokioClock::new());
    let inside = bulkhead.try_enter().unwrap();
    let mut waiter = Waiter::new(bulkhead.enter().within(Duration::from_secs(5)));
    for _ in 0..2 {
        let polled = catch_unwind(AssertUnwindSafe(|| waiter.poll().map(drop)));
        assert!(polled.is_err(), "and does not wait without a deadline when polled again");
        assert_eq!(bulkhead.waiting(), 1);
    }
    drop(waiter);
    assert_eq!(bulkhead.waiting(), 0);
    drop(inside);
    assert!(bulkhead.try_enter().is_ok());
}

#[test]
fn every_step_of_construction_keeps_the_others() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let one = Bulkhead::new(1).unwrap().with_room(0).with_clock(clock.clone());
    let other = Bulkhead::new(1).unwrap().with_clock(clock).with_room(0);
    for bulkhead in [one, other] {
        let _inside = bulkhead.try_enter().unwrap();
        let refused = ready(Waiter::new(bulkhead.enter()).poll()).unwrap_err();
        assert_eq!((refused.retry(), bulkhead.waiting()), (Retry::Unknown, 0), "nobody may wait");
        let past = Waiter::new(bulkhead.enter().until(Tick::from_secs(99))).poll();
        assert_eq!(ready(past).unwrap_err().retry(), Retry::Never, "by that clock");
    }
}

#[test]
fn another_room_is_another_bulkhead() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let _inside = bulkhead.try_enter().unwrap();
    let other = bulkhead.clone().with_room(0);
    assert_eq!((bulkhead.standing().remaining, other.standing().remaining), (0, 1));
    assert!(Waiter::new(bulkhead.enter()).poll().is_pending(), "the first has room as before");
}

#[test]
fn the_line_has_a_bound() {
    let bulkhead = Bulkhead::new(1).unwrap().with_room(1);
    let _inside = bulkhead.try_enter().unwrap();
    let mut first = Waiter::new(bulkhead.enter());
    assert!(first.poll().is_pending());
    assert_eq!(ready(Waiter::new(bulkhead.enter()).poll()).unwrap_err().retry(), Retry::Unknown);
    drop(first);
    assert!(Waiter::new(bulkhead.enter()).poll().is_pending(), "there is room again");
}

/// A waker is foreign code and may use the bulkhead: it runs without the lock.
#[test]
fn a_waker_that_looks_at_the_bulkhead_holds_up_nobody() {
    struct Looks(Bulkhead);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.waiting(), 0);
        }
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(self.0.waiting() <= 1);
        }
    }

    let bulkhead = Bulkhead::new(1).unwrap();
    let inside = bulkhead.try_enter().unwrap();
    let mut entry = Box::pin(bulkhead.enter());
    for _ in 0..2 {
        // The clone in the queue is the last one, and is dropped when the next one comes.
        let waker = Waker::from(Arc::new(Looks(bulkhead.clone())));
        assert!(entry.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(inside);
    assert!(ready(entry.as_mut().poll(&mut Context::from_waker(Waker::noop()))).is_ok());
}

#[test]
fn a_panic_returns_the_place() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let inside = bulkhead.clone();
    let worker = thread::spawn(move || {
        let _permit = inside.try_enter().unwrap();
        panic!("as expected by this test");
    });
    assert!(worker.join().is_err());
    assert_eq!(bulkhead.standing().remaining, 1);
}

#[test]
fn threads_take_turns_at_two_places() {
    let bulkhead = Bulkhead::new(2).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let permit = bulkhead.enter().within(Duration::MAX).blocking().unwrap();
                    assert!(bulkhead.standing().debt == 0);
                    permit.leave(Outcome::Success);
                }
            });
        }
    });
    assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (2, 0));
}

#[tokio::test]
async fn a_task_that_is_aborted_in_line_leaves_it() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let inside = bulkhead.try_enter().unwrap();
    let waiter = tokio::spawn(bulkhead.enter());
    while bulkhead.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    assert_eq!(bulkhead.waiting(), 0);
    drop(inside);
    assert!(bulkhead.enter().await.is_ok());
}
