//! Tenants with guaranteed parts that they lend or keep: who enters while another waits.

use std::time::Duration;

use tidegate::bulkhead::{Permit, Tenants};
use tidegate::clock::ManualClock;
use tidegate::concurrency::Partition;
use tidegate::limiter::Retry;
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome};

use super::throttled::{Hears, SixteenProcessors};
use super::{Waiter, places, ready};

/// Ten places: `lender` owns half and lends all of it, `keeper` owns half and lends nothing of it.
fn lender_and_keeper() -> Bulkhead {
    let half = Partition::default().guaranteed(50).unwrap();
    let tenants = Tenants::default().named("lender", half).unwrap();
    let tenants = tenants.named("keeper", half.lends(0).unwrap()).unwrap();
    Bulkhead::new(10).unwrap().with_tenants(tenants)
}

/// Regression: a caller that waited for places which its tenant had lent kept other tenants out of what they do not lend.
#[test]
fn what_a_tenant_does_not_lend_is_there_while_another_waits_for_what_it_has_lent() {
    let bulkhead = lender_and_keeper();
    let mut borrowed: Vec<Permit> = std::iter::from_fn(|| bulkhead.enter().now().ok()).collect();
    assert_eq!(borrowed.len(), 5);
    let mut lender = Waiter::new(bulkhead.enter().of("lender"));
    assert!(lender.poll().is_pending(), "all of its part is lent");
    assert!(bulkhead.enter().of("lender").now().is_err());
    let own = bulkhead.enter_n(places(2)).of("keeper").now().unwrap();
    let awaited = ready(Waiter::new(bulkhead.enter_n(places(3)).of("keeper")).poll()).unwrap();
    let mut keeper = Waiter::new(bulkhead.enter().of("keeper"));
    assert!(keeper.poll().is_pending());
    drop(own);
    assert!(ready(keeper.poll()).is_ok(), "two of its own are free again");
    assert!(lender.poll().is_pending() && !lender.was_woken());
    drop((borrowed.pop(), awaited));
    assert!(ready(lender.poll()).is_ok());
}

/// Regression: a caller that asked for more places than its tenant can ever have waited for ever, and the other tenants
/// behind it.
#[test]
fn more_places_than_a_tenant_can_ever_have_hold_up_nobody() {
    let bulkhead = lender_and_keeper();
    let _inside = bulkhead.enter().now().unwrap();
    let refused = ready(Waiter::new(bulkhead.enter_n(places(6)).of("lender")).poll()).unwrap_err();
    assert_eq!((refused.retry(), bulkhead.waiting()), (Retry::Never, 0), "five are not lent to it");
    assert_eq!(bulkhead.enter_n(places(6)).now().unwrap_err().retry(), Retry::Never);
    let mut wide = Waiter::new(bulkhead.enter_n(places(10)).of("keeper"));
    assert!(wide.poll().is_pending());
    bulkhead.change(9).unwrap();
    assert_eq!(ready(wide.poll()).unwrap_err().retry(), Retry::Never);
}

/// Regression: a newcomer takes the only position in the queue from a waiter for whom a place was saved up. That place is
/// then free for the newcomer, which waited all the same.
#[test]
fn whoever_was_held_up_by_a_displaced_waiter_enters_at_once() {
    let tenants = Tenants::default().each(Partition::default(), 9).unwrap();
    let tenants = tenants.named("eve", Partition::default().weight(2).unwrap()).unwrap();
    let clock = ManualClock::default();
    let bulkhead = Bulkhead::new(3).unwrap().with_tenants(tenants).with_room(1).with_clock(clock.clone());
    let inside = bulkhead.enter_n(places(2)).now().unwrap();
    let before = bulkhead.enter().of("eve").now().unwrap();
    clock.advance(Duration::from_secs(1));
    drop(before);
    let mut wide = Waiter::new(bulkhead.enter_n(places(2)).of("bob"));
    assert!(wide.poll().is_pending());
    assert!(bulkhead.enter().of("eve").now().is_err(), "bob has received less, and one place is free");
    let newcomer = ready(Waiter::new(bulkhead.enter().of("eve")).poll()).unwrap();
    assert!(ready(wide.poll()).is_err(), "eve has twice his weight");
    drop((inside, newcomer));
    assert_eq!((bulkhead.waiting(), bulkhead.standing().remaining), (0, 3));
}

/// A throttle sees priorities alone: it shed the work of quiet tenants for the flood of another, a fifth at twice the
/// capacity and three quarters at ten times.
#[test]
fn with_tenants_there_is_no_throttle_whichever_step_comes_first() {
    let tenants = || Tenants::default().each(Partition::default(), 9).unwrap();
    let of_two = || Bulkhead::new(2).unwrap();
    for bulkhead in [
        of_two().with_throttle(Hears::default()).with_tenants(tenants()),
        of_two().with_tenants(tenants()).with_throttle(Hears::default()),
    ] {
        assert!(bulkhead.enter().of("ann").priority(Criticality::Sheddable).now().is_ok());
        assert_eq!(bulkhead.refused_share(), 0);
    }
}

#[test]
fn the_flood_of_one_tenant_costs_quiet_ones_nothing_behind_a_self_tuning_limit() {
    let fifth = Partition::default().guaranteed(20).unwrap();
    let each = || Tenants::default().each(Partition::default(), 100).unwrap();
    for (tenants, name) in [(each(), "no guarantee"), (each().named("quiet", fifth).unwrap(), "a fifth")] {
        for times in [2, 10] {
            let clock = ManualClock::default();
            let bulkhead = Bulkhead::self_tuning().with_tenants(tenants.clone()).with_clock(clock.clone());
            let mut service = SixteenProcessors::new(&clock);
            // A quiet tenant asks for an eighth of the capacity, which is 1.6 calls of 10 ms per millisecond.
            for _ in 0..10_000 {
                service.arrive(0.2, 10, 0, || bulkhead.enter().of("quiet"));
                service.arrive(1.6 * f64::from(times), 10, 1, || bulkhead.enter().of("floods"));
                service.millisecond();
            }
            let good = service.good(0);
            assert!(good >= 0.98, "{good} of the quiet tenant's at {times} times the capacity, {name}");
        }
    }
}

/// One call in ten hangs for five seconds. By dependency, such calls hold no more places than are free.
#[test]
fn calls_that_hang_leave_places_for_calls_of_other_dependencies() {
    let clock = ManualClock::default();
    let each = Tenants::default().each(Partition::default().dynamic_threshold(), 8).unwrap();
    let bulkhead = Bulkhead::new(20).unwrap().with_short_queue().with_tenants(each).with_clock(clock.clone());
    let mut hung: Vec<Waiter> = (0..100).map(|_| Waiter::new(bulkhead.enter().of("hangs"))).collect();
    let held: Vec<Permit> = hung
        .iter_mut()
        .filter_map(|waiter| match waiter.poll() {
            std::task::Poll::Ready(answer) => answer.ok(),
            std::task::Poll::Pending => None,
        })
        .collect();
    assert_eq!((held.len(), bulkhead.standing().remaining), (10, 10), "half of the places");
    for _ in 0..100 {
        let well: Vec<Permit> = (0..5).map(|_| bulkhead.enter().of("answers").now().unwrap()).collect();
        clock.advance(Duration::from_millis(10));
        well.into_iter().for_each(|permit| permit.leave(Outcome::Success));
    }
    assert!(bulkhead.enter().of("another").now().is_ok());
}

#[test]
fn a_flood_of_one_tenant_leaves_the_guarantee_of_another_whole_behind_a_self_tuning_limit() {
    let clock = ManualClock::default();
    let half = Partition::default().guaranteed(50).unwrap().lends(0).unwrap();
    let tenants = Tenants::default().named("ann", half).unwrap();
    let bulkhead = Bulkhead::self_tuning().with_tenants(tenants).with_clock(clock.clone());
    let mut inside: Vec<(u64, Permit)> = Vec::new();
    let (mut shed, mut refused) = (0, 0);
    for now in 0..2_000_u64 {
        for _ in 0..20 {
            match bulkhead.enter().of("flood").now() {
                Ok(permit) => inside.push((now + 10, permit)),
                Err(_) => shed += 1,
            }
        }
        match bulkhead.enter().of("ann").now() {
            Ok(permit) => inside.push((now + 2, permit)),
            Err(_) => refused += 1,
        }
        clock.advance(Duration::from_millis(1));
        let (over, still): (Vec<_>, Vec<_>) = inside.into_iter().partition(|(ends, _)| *ends <= now);
        over.into_iter().for_each(|(_, permit)| permit.leave(Outcome::Success));
        inside = still;
    }
    assert!(shed > 10_000, "{shed} of the flood");
    assert_eq!(refused, 0, "of 2000 calls within the guarantee");
}
