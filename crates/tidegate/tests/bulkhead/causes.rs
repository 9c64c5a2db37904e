//! Each way to be refused has a cause of its own in the refusal.

use std::time::Duration;

use tidegate::bulkhead::{Enter, NoPlace, Permit, QueueOrder, Tenants};
use tidegate::clock::ManualClock;
use tidegate::concurrency::Partition;
use tidegate::concurrency::codel::Codel;
use tidegate::deadline::carry;
use tidegate::limiter::{Retry, TakeError};
use tidegate::policy::{KeepFor, Kept};
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome, Tick};

use super::throttled::Hears;
use super::{Waiter, places, ready};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the cause of a refusal.
fn why(result: Result<Permit, TakeError>) -> (NoPlace, Retry) {
    let TakeError::Denied(denied) = result.unwrap_err() else { panic!("a place is asked for") };
    (denied.no_place.unwrap(), denied.retry())
}

/// A bulkhead of one place, which is taken, on a manual clock.
fn taken(change: impl FnOnce(Bulkhead) -> Bulkhead) -> (Bulkhead, ManualClock, Permit) {
    let clock = ManualClock::default();
    let bulkhead = change(Bulkhead::new(1).unwrap().with_clock(clock.clone()));
    let permit = bulkhead.try_enter().unwrap();
    (bulkhead, clock, permit)
}

/// Waits until `span` is over, and returns the cause.
fn after(entry: Enter, clock: &ManualClock, span: Duration) -> (NoPlace, Retry) {
    let mut waiter = Waiter::new(entry);
    assert!(waiter.poll().is_pending());
    clock.advance(span);
    why(ready(waiter.poll()))
}

#[test]
fn whoever_does_not_wait_is_told_whether_places_are_taken_or_kept() {
    let (full, _, permit) = taken(|bulkhead| bulkhead);
    let denied = full.try_enter().unwrap_err();
    assert_eq!((denied.no_place, denied.retry()), (Some(NoPlace::Full), Retry::Unknown));
    assert_eq!(why(full.enter().now()).0, NoPlace::Full);
    assert_eq!(why(full.enter_n(2).now()), (NoPlace::TooManyPlaces, Retry::Never));
    drop(permit);

    let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
    let kept = Bulkhead::new(2).unwrap().with_keep_for(kept).unwrap();
    let _permit = kept.try_enter().unwrap();
    let low = kept.enter().priority(Criticality::Sheddable);
    assert_eq!(why(low.now()).0, NoPlace::KeptForOthers);
    let promised = Partition::default().guaranteed(50).unwrap().lends(0).unwrap();
    let tenants = Tenants::default().named("checkout", promised).unwrap();
    let divided = Bulkhead::new(2).unwrap().with_tenants(tenants);
    let _permit = divided.try_enter().unwrap();
    assert_eq!(why(divided.enter().of("search").now()).0, NoPlace::KeptForOthers);
    let _permit = divided.enter().of("checkout").now().unwrap();
    assert_eq!(why(divided.enter().of("search").now()).0, NoPlace::Full);
}

#[test]
fn a_full_queue_and_whoever_gives_way_in_it_are_told_so() {
    let (bulkhead, _, _permit) = taken(|bulkhead| bulkhead.with_room(1));
    let mut low = Waiter::new(bulkhead.enter().priority(Criticality::Sheddable));
    assert!(low.poll().is_pending());
    let mut as_low = Waiter::new(bulkhead.enter().priority(Criticality::Sheddable));
    assert_eq!(why(ready(as_low.poll())).0, NoPlace::QueueFull);
    let mut high = Waiter::new(bulkhead.enter());
    assert!(high.poll().is_pending());
    assert_eq!(why(ready(low.poll())).0, NoPlace::Displaced);

    let (no_queue, _, _permit) = taken(|bulkhead| bulkhead.with_room(0));
    assert_eq!(why(ready(Waiter::new(no_queue.enter()).poll())).0, NoPlace::Full);
}

#[test]
fn the_bound_that_ends_a_wait_is_its_cause() {
    let longest = |bulkhead: Bulkhead| bulkhead.with_longest_wait(2 * SECOND);
    let (bulkhead, clock, _permit) = taken(longest);
    assert_eq!(after(bulkhead.enter(), &clock, 2 * SECOND), (NoPlace::QueueTimeout, Retry::Unknown));
    let own = bulkhead.enter().within(3 * SECOND);
    assert_eq!(after(own, &clock, 2 * SECOND).0, NoPlace::QueueTimeout);
    let own = bulkhead.enter().within(SECOND);
    assert_eq!(after(own, &clock, SECOND), (NoPlace::DeadlineExceeded, Retry::Unknown));
    let until = Tick::from_secs(6);
    let carried = carry(until, || after(bulkhead.enter(), &clock, SECOND));
    assert_eq!(carried.0, NoPlace::DeadlineExceeded);
    // It came too late, and did not wait.
    let late = bulkhead.enter().until(Tick::from_secs(1));
    assert_eq!(why(ready(Waiter::new(late).poll())), (NoPlace::DeadlineExceeded, Retry::Never));
    let late = carry(Tick::from_secs(5), || ready(Waiter::new(bulkhead.enter()).poll()));
    assert_eq!(why(late), (NoPlace::DeadlineExceeded, Retry::Never));

    let (short, clock, _permit) = taken(Bulkhead::with_short_queue);
    assert_eq!(after(short.enter(), &clock, SECOND).0, NoPlace::QueueTimeout);
}

#[test]
fn a_turn_that_would_come_too_late_is_told_so() {
    let (bulkhead, clock, permit) = taken(|bulkhead| bulkhead);
    let mut held = permit;
    let mut waiters: Vec<_> = (0..5).map(|_| Waiter::new(bulkhead.enter())).collect();
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()));
    for waiter in &mut waiters[..2] {
        clock.advance(SECOND);
        drop(held);
        held = ready(waiter.poll()).unwrap();
    }
    // A turn a second, and three are ahead of it.
    let mut hurried = Waiter::new(bulkhead.enter().within(SECOND));
    assert_eq!(why(ready(hurried.poll())), (NoPlace::TurnTooLate, Retry::Unknown));
    drop(held);
}

#[test]
fn whoever_a_queue_that_does_not_empty_refuses_is_told_so() {
    let (bulkhead, clock, permit) =
        taken(|bulkhead| bulkhead.with_order(QueueOrder::Adaptive(Codel::default())));
    let mut held = permit;
    let mut causes = Vec::new();
    let mut waiters: Vec<_> = (0..40).map(|_| Waiter::new(bulkhead.enter())).collect();
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()));
    for _ in 0..20 {
        clock.advance(SECOND / 10);
        drop(held);
        let polled: Vec<_> = waiters.extract_if(.., |waiter| waiter.was_woken()).collect();
        let (places, refused): (Vec<_>, Vec<_>) =
            polled.into_iter().map(|mut waiter| ready(waiter.poll())).partition(Result::is_ok);
        causes.extend(refused.into_iter().map(|refused| why(refused).0));
        let Some(Ok(place)) = places.into_iter().next() else { break };
        held = place;
        let mut next = Waiter::new(bulkhead.enter());
        if next.poll().is_pending() {
            waiters.push(next);
        }
    }
    assert!(!causes.is_empty() && causes.iter().all(|cause| *cause == NoPlace::StandingQueue), "{causes:?}");
}

#[test]
fn whoever_a_throttle_sheds_is_told_so() {
    let bulkhead = Bulkhead::new(1).unwrap().with_throttle(Hears::default());
    let low = || bulkhead.enter().priority(Criticality::Sheddable);
    assert_eq!(why(low().now()), (NoPlace::Throttled, Retry::Unknown));
    assert_eq!(why(ready(Waiter::new(low()).poll())).0, NoPlace::Throttled);
    let carried = tidegate::priority::carry(Criticality::Sheddable, || bulkhead.try_enter().unwrap_err());
    assert_eq!(carried.no_place, Some(NoPlace::Throttled));
    bulkhead.try_enter().unwrap().leave(Outcome::Success);
}

#[test]
fn a_waiter_that_asks_for_more_than_a_lowered_limit_is_told_so() {
    let bulkhead = Bulkhead::new(2).unwrap();
    let permit = bulkhead.try_enter().unwrap();
    let mut wide = Waiter::new(bulkhead.enter_n(places(2)));
    assert!(wide.poll().is_pending());
    bulkhead.change(1).unwrap();
    assert_eq!(why(ready(wide.poll())), (NoPlace::TooManyPlaces, Retry::Never));
    drop(permit);
}

/// Limiters and breakers have no places.
#[test]
fn other_refusals_have_no_such_cause() {
    use tidegate::breaker::CircuitBreaker;
    use tidegate::{Breaker, Limiter, Quota};

    let limiter = Limiter::new(Quota::per_day(1)).unwrap();
    assert!(limiter.allow().is_allowed());
    assert_eq!(limiter.allow().into_result().unwrap_err().no_place, None);
    let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
    breaker.try_enter().unwrap().leave(Outcome::Failure);
    assert_eq!(breaker.try_enter().unwrap_err().no_place, None);
}
