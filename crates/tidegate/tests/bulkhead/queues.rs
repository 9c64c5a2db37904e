//! Who is served when, and who is refused: priorities, orders, waits that cannot end in time, and tenants.

use std::time::Duration;

use tidegate::bulkhead::{Enter, Permit, QueueOrder, Tenants};
use tidegate::clock::ManualClock;
use tidegate::concurrency::Partition;
use tidegate::concurrency::codel::Codel;
use tidegate::limiter::Retry;
use tidegate::policy::{KeepFor, Kept};
use tidegate::priority::{Criticality, Priority};
use tidegate::{Bulkhead, Tick, priority};

use super::{Waiter, ready};

const MS: Duration = Duration::from_millis(1);

/// Polls each entry once, after which it waits.
fn waiting(entries: impl IntoIterator<Item = Enter>) -> Vec<Waiter> {
    let polled = |entry| {
        let mut waiter = Waiter::new(entry);
        assert!(waiter.poll().is_pending());
        waiter
    };
    entries.into_iter().map(polled).collect()
}

/// Returns the place again and again. Returns the order in which the waiters got it; refused ones stay in `line`.
fn turns(inside: Permit, line: &mut [Waiter]) -> Vec<usize> {
    let (mut order, mut inside) = (Vec::new(), Some(inside));
    while let Some(permit) = inside.take() {
        drop(permit);
        for (at, waiter) in line.iter_mut().enumerate() {
            if !order.contains(&at) && waiter.was_woken() {
                order.push(at);
                inside = ready(waiter.poll()).ok();
            }
        }
    }
    order
}

#[test]
fn more_important_callers_come_first() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let inside = bulkhead.try_enter().unwrap();
    let cohort = |cohort| Priority::of(Criticality::Sheddable).in_cohort(cohort).unwrap();
    let priorities =
        [cohort(9), cohort(3), Criticality::Critical.into(), cohort(3), Criticality::CriticalPlus.into()];
    let mut line = waiting(priorities.map(|priority| bulkhead.enter().priority(priority)));
    assert_eq!(turns(inside, &mut line), [4, 2, 1, 3, 0]);
}

/// An entry without a priority uses the task's priority at its first poll, wherever it was made.
#[test]
fn an_entry_that_names_no_priority_has_the_one_that_is_carried() {
    let bulkhead = Bulkhead::new(1).unwrap();
    let inside = bulkhead.try_enter().unwrap();
    let of = |carried: Criticality, named: Option<Criticality>| {
        let entry = bulkhead.enter();
        let mut waiter = Waiter::new(match named {
            Some(named) => entry.priority(named),
            None => entry,
        });
        assert!(priority::carry(carried, || waiter.poll()).is_pending());
        waiter
    };
    let mut line = [
        of(Criticality::Sheddable, None),
        of(Criticality::SheddablePlus, None),
        of(Criticality::Sheddable, Some(Criticality::CriticalPlus)),
        of(Criticality::CriticalPlus, Some(Criticality::Critical)),
    ];
    assert_eq!(turns(inside, &mut line), [2, 3, 1, 0]);
}

#[test]
fn a_part_is_kept_from_whoever_carries_too_little() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Units(1));
    let bulkhead = Bulkhead::new(2).unwrap().with_keep_for(kept).unwrap();
    let enters: [fn(&Bulkhead) -> bool; 3] = [
        |bulkhead| bulkhead.try_enter().is_ok(),
        |bulkhead| bulkhead.enter().now().is_ok(),
        |bulkhead| bulkhead.enter().try_now().is_some(),
    ];
    let _inside = bulkhead.try_enter().unwrap();
    for enter in enters {
        assert!(!priority::carry(Criticality::Sheddable, || enter(&bulkhead)));
        assert!(enter(&bulkhead), "critical");
    }
}

#[test]
fn a_full_queue_gives_up_the_least_important_for_who_is_more_important() {
    let bulkhead = Bulkhead::new(1).unwrap().with_room(2);
    let inside = bulkhead.try_enter().unwrap();
    let low = |bulkhead: &Bulkhead| bulkhead.enter().priority(Criticality::Sheddable);
    let mut line = waiting([low(&bulkhead), low(&bulkhead)]);
    assert_eq!(ready(Waiter::new(low(&bulkhead)).poll()).unwrap_err().retry(), Retry::Unknown, "an equal");
    let mut high = waiting([bulkhead.enter(), bulkhead.enter()]);
    assert!(line.iter().all(Waiter::was_woken), "told at once");
    for waiter in &mut line {
        assert_eq!(ready(waiter.poll()).unwrap_err().retry(), Retry::Unknown);
    }
    assert_eq!(ready(Waiter::new(bulkhead.enter()).poll()).unwrap_err().retry(), Retry::Unknown);
    assert_eq!(turns(inside, &mut high), [0, 1]);
}

#[test]
fn a_part_is_kept_for_who_is_more_important_also_where_others_wait_for_it() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Units(1));
    let bulkhead = Bulkhead::new(2).unwrap().with_keep_for(kept).unwrap();
    let low = || bulkhead.enter().priority(Criticality::Sheddable);
    let first = low().now().unwrap();
    let mut line = waiting([low()]);
    let high = ready(Waiter::new(bulkhead.enter()).poll()).unwrap();
    drop(first);
    assert!(line[0].poll().is_pending(), "the place that is left is kept");
    drop(high);
    assert!(ready(line[0].poll()).is_ok());
    assert_eq!(bulkhead.enter_n(2).priority(Criticality::Sheddable).now().unwrap_err().retry(), Retry::Never);
    let all = KeepFor::default().with(Criticality::Critical, Kept::Units(2));
    assert!(Bulkhead::new(2).unwrap().with_keep_for(all).is_err());
}

/// Eight of ten places are for critical work: each critical cohort leaves its 128th of them, and none as much as
/// sheddable work.
#[test]
fn later_cohorts_find_fewer_places() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Units(8));
    let kept = kept.with(Criticality::CriticalPlus, Kept::Units(0));
    let entered = |priority: Priority| {
        let bulkhead = Bulkhead::new(10).unwrap().with_keep_for(kept).unwrap();
        let permits: Vec<_> = (0..11).map_while(|_| bulkhead.enter().priority(priority).now().ok()).collect();
        permits.len()
    };
    let critical = |cohort| entered(Priority::default().in_cohort(cohort).unwrap());
    assert_eq!([0, 15, 16, 64, 127].map(critical), [10, 10, 9, 6, 3]);
    assert_eq!(entered(Criticality::Sheddable.into()), 2);
}

#[test]
fn the_newest_first_where_that_is_the_order() {
    let bulkhead = Bulkhead::new(1).unwrap().with_room(3).with_order(QueueOrder::Lifo);
    let inside = bulkhead.try_enter().unwrap();
    let mut line = waiting((0..4).map(|_| bulkhead.enter()));
    assert_eq!(ready(line[0].poll()).unwrap_err().retry(), Retry::Unknown, "the oldest of a full queue");
    assert_eq!(turns(inside, &mut line[1..]), [2, 1, 0]);
}

#[test]
fn a_queue_that_stands_serves_the_newest_and_refuses_who_waited_too_long() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let order = QueueOrder::Adaptive(Codel::default());
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone()).with_order(order);
    let mut inside = bulkhead.try_enter().unwrap();
    let mut line = waiting((0..6).map(|_| bulkhead.enter()));
    // A turn every 60 ms: after 100 ms the newest waiter is served, and waiters that were passed over for more than
    // that are refused.
    let (mut served, mut refused) = (Vec::new(), 0);
    for _ in 0..2 {
        clock.advance(60 * MS);
        drop(inside);
        let woken: Vec<usize> = (0..line.len()).rev().filter(|at| line[*at].was_woken()).collect();
        let mut next = None;
        for at in woken {
            match ready(line.remove(at).poll()) {
                Ok(permit) => next = Some((at, permit)),
                Err(error) => refused += u32::from(error.retry() == Retry::Unknown),
            }
        }
        let (at, permit) = next.unwrap();
        inside = permit;
        served.push(at);
    }
    assert_eq!(served, [0, 4], "the first, then the newest");
    assert_eq!((refused, bulkhead.waiting()), (4, 0), "who has waited for 120 ms, and a newcomer is served");
    let mut newcomer = waiting([bulkhead.enter()]);
    clock.advance(7 * MS);
    drop(inside);
    assert!(ready(newcomer[0].poll()).is_ok());
}

#[test]
fn nobody_waits_for_longer_than_the_bulkhead_says() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let bulkhead =
        Bulkhead::new(1).unwrap().with_clock(clock.clone()).with_longest_wait(Duration::from_secs(3));
    let _inside = bulkhead.try_enter().unwrap();
    let entries = [
        bulkhead.enter(),
        bulkhead.enter().within(Duration::from_secs(1)),
        bulkhead.enter().until(Tick::from_secs(999)),
    ];
    let mut line = waiting(entries);
    clock.advance(Duration::from_secs(1));
    assert_eq!(ready(line.remove(1).poll()).unwrap_err().retry(), Retry::Unknown, "its own wait is shorter");
    clock.advance(Duration::from_secs(2));
    for waiter in &mut line {
        assert!(waiter.was_woken());
        assert_eq!(ready(waiter.poll()).unwrap_err().retry(), Retry::Unknown);
    }
    let none = bulkhead.with_longest_wait(Duration::ZERO);
    let _inside = none.try_enter().unwrap();
    assert!(ready(Waiter::new(none.enter()).poll()).is_err());
    assert_eq!(none.waiting(), 0);
}

#[test]
fn a_turn_that_cannot_come_in_time_is_refused_at_once() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let mut inside = bulkhead.try_enter().unwrap();
    let mut line = waiting((0..6).map(|_| bulkhead.enter()));
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        drop(inside);
        inside = ready(line.remove(0).poll()).unwrap();
    }
    // Three wait, and each turn takes a second: a fourth caller gets its turn in four.
    let soon = || bulkhead.enter().within(Duration::from_secs(3));
    assert_eq!(ready(Waiter::new(soon()).poll()).unwrap_err().retry(), Retry::Unknown);
    assert_eq!(clock.sleepers(), 0, "it did not begin to wait");
    let _in_time = waiting([bulkhead.enter().within(Duration::from_secs(4))]);
    let _important = waiting([soon().priority(Criticality::CriticalPlus)]);
    // The first in the queue waits at any pace, so that a wrong measurement does not last.
    drop((_in_time, _important, line));
    let mut first = waiting([bulkhead.enter().within(MS)]);
    drop(inside);
    assert!(ready(first[0].poll()).is_ok());
}

#[test]
fn tenants_share_by_weight_what_is_not_their_own() {
    let clock = ManualClock::at(Tick::from_secs(100));
    let weight = |weight| Partition::default().weight(weight).unwrap();
    let tenants = Tenants::default().named("big", weight(3)).unwrap().each(weight(1), 10).unwrap();
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(clock.clone()).with_tenants(tenants);
    let mut inside = bulkhead.enter().of("big").now().unwrap();
    let mut big = waiting((0..80).map(|_| bulkhead.enter().of("big")));
    let mut small = waiting((0..80).map(|_| bulkhead.enter().of("small")));
    for _ in 0..80 {
        clock.advance(10 * MS);
        drop(inside);
        let line = if big[0].was_woken() { &mut big } else { &mut small };
        inside = ready(line.remove(0).poll()).unwrap();
    }
    assert_eq!((80 - big.len(), 80 - small.len()), (60, 20), "three to one");
}

#[test]
fn a_tenant_gets_its_own_back_and_a_flood_fills_only_its_own_queue() {
    let own = Partition::default().guaranteed(50).unwrap();
    let tenants = Tenants::default().named("checkout", own).unwrap().each(Partition::default(), 10).unwrap();
    let bulkhead = Bulkhead::new(2).unwrap().with_room(3).with_tenants(tenants);
    let flood = || bulkhead.enter().of("flood");
    let lent = [flood().now().unwrap(), flood().now().unwrap()];
    let mut line = waiting((0..3).map(|_| flood()));
    assert!(ready(Waiter::new(flood()).poll()).is_err(), "the queue is full");
    let mut checkout = waiting([bulkhead.enter().of("checkout")]);
    assert!(
        line.last().unwrap().was_woken() && ready(line.pop().unwrap().poll()).is_err(),
        "its last one went"
    );
    let mut other = waiting([bulkhead.enter().of("other")]);
    drop(lent);
    let checkout = ready(checkout[0].poll()).unwrap();
    let other = ready(other[0].poll()).unwrap();
    assert_eq!((bulkhead.waiting(), bulkhead.standing().remaining), (1, 0));
    // A returned place goes to a waiter at once, even if it is of a tenant's own part.
    drop(checkout);
    assert!(bulkhead.enter().of("checkout").now().is_err(), "which the flood got meanwhile");
    drop((other, line));
    assert_eq!((bulkhead.waiting(), bulkhead.standing().remaining), (0, 2));
}

#[test]
fn what_is_kept_is_there_for_another_tenant_while_less_important_ones_wait() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Units(1));
    let each = Tenants::default().each(Partition::default(), 10).unwrap();
    let bulkhead = Bulkhead::new(2).unwrap().with_keep_for(kept).unwrap().with_tenants(each);
    let low = |tenant| bulkhead.enter().of(tenant).priority(Criticality::Sheddable);
    let inside = low("ann").now().unwrap();
    let mut line = waiting([low("bob")]);
    let high = bulkhead.enter().of("eve").now().unwrap();
    let mut next = waiting([bulkhead.enter().of("eve")]);
    drop(high);
    let high = ready(next[0].poll()).unwrap();
    drop(inside);
    assert!(line[0].poll().is_pending(), "the place that is left is kept");
    drop(high);
    assert!(ready(line[0].poll()).is_ok());
}

/// A request for many places at low priority, which cannot have them beside the kept places, does not hold up the
/// callers that these are kept for.
#[test]
fn a_wide_ask_does_not_stand_before_those_for_whom_places_are_kept() {
    let kept = KeepFor::default().with(Criticality::Critical, Kept::Units(2));
    let each = Tenants::default().each(Partition::default(), 10).unwrap();
    let bulkhead = Bulkhead::new(4).unwrap().with_keep_for(kept).unwrap().with_tenants(each);
    let inside = bulkhead.enter().of("ann").now().unwrap();
    let mut wide = waiting([bulkhead.enter_n(2).of("bob").priority(Criticality::Sheddable)]);
    assert!(wide[0].poll().is_pending(), "one is taken and two are kept of four");
    let high = bulkhead.enter().of("eve").now().unwrap();
    drop((inside, high));
    assert_eq!(ready(wide[0].poll()).unwrap().places(), 2);
}

/// One waker panics: the other waiter is still woken, and its place is not lost.
#[test]
fn a_waker_that_panics_takes_no_other_with_it() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("a runtime that is shut down does");
        }
    }
    let bulkhead = Bulkhead::new(2).unwrap();
    let inside = bulkhead.enter_n(2).now().unwrap();
    let mut first = Box::pin(bulkhead.enter());
    let panics = std::task::Waker::from(std::sync::Arc::new(Panics));
    assert!(first.as_mut().poll(&mut std::task::Context::from_waker(&panics)).is_pending());
    let mut second = waiting([bulkhead.enter()]);
    assert!(second[0].poll().is_pending());
    let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(inside)));
    assert!(left.is_err() && second[0].was_woken());
    assert!(ready(second[0].poll()).is_ok());
}
