//! Loom models of waits that end early, of the orders of the queue, and of tenants with guarantees.

use std::time::Duration;

use tidegate_core::codel::Codel;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The longest wait of a caller ends while the place becomes free. The caller has the place or is refused, and the place
/// is free afterwards.
#[test]
fn a_wait_ends_while_the_place_becomes_free() {
    explore(Some(3), || {
        let clock = ManualClock::default();
        let rules = BulkheadRules { room: 9, longest_wait: SECOND, ..Bulkhead::rules(false) };
        let bulkhead = built_on(clock.clone(), rules, 1, None);
        let inside = bulkhead.try_enter().unwrap();
        let other = bulkhead.clone();
        let waits = thread::spawn(move || match turn(other.enter()) {
            Ok(permit) => drop(permit),
            Err(TakeError::Denied(denied)) => assert_eq!(denied.no_place, Some(NoPlace::QueueTimeout)),
            Err(other) => panic!("{other}"),
        });
        clock.advance(SECOND);
        drop(inside);
        waits.join().unwrap();
        is_empty(&bulkhead);
        assert_eq!(clock.sleepers(), 0);
    });
}

/// Two callers wait, the newest first, while the place becomes free: both are served.
#[test]
fn the_newest_first_serves_all() {
    explore(short_or_long(Some(2), Some(3)), || {
        let bulkhead =
            built(BulkheadRules { room: 9, order: QueueOrder::Lifo, ..Bulkhead::rules(false) }, 1, None);
        let inside = bulkhead.try_enter().unwrap();
        let (one, two) = (bulkhead.clone(), bulkhead.clone());
        let waits = [one, two].map(|waiting| thread::spawn(move || drop(enter(&waiting))));
        inside.leave(Outcome::Success);
        waits.into_iter().for_each(|waits| waits.join().unwrap());
        is_empty(&bulkhead);
    });
}

/// Two callers wait in a queue that may not have been empty for an interval when the place becomes free. Each is served,
/// or refused since the queue stands.
#[test]
fn a_standing_queue_serves_or_refuses_all() {
    explore(short_or_long(Some(2), Some(3)), || {
        let clock = ManualClock::default();
        let order = QueueOrder::Adaptive(Codel::default());
        let bulkhead =
            built_on(clock.clone(), BulkheadRules { room: 9, order, ..Bulkhead::rules(false) }, 1, None);
        let inside = bulkhead.try_enter().unwrap();
        let (one, two) = (bulkhead.clone(), bulkhead.clone());
        let waits = [one, two].map(|waiting| {
            thread::spawn(move || match turn(waiting.enter()) {
                Ok(permit) => drop(permit),
                Err(TakeError::Denied(denied)) => {
                    assert_eq!(denied.no_place, Some(NoPlace::StandingQueue));
                }
                Err(other) => panic!("{other}"),
            })
        });
        clock.advance(SECOND);
        inside.leave(Outcome::Success);
        waits.into_iter().for_each(|waits| waits.join().unwrap());
        is_empty(&bulkhead);
    });
}

/// One tenant waits for a place that it has lent, while the other comes for one that it does not lend: that one never
/// waits, and the first gets its place back.
#[test]
fn a_tenant_that_lends_nothing_never_waits_for_one_that_does() {
    explore(short_or_long(Some(2), Some(3)), || {
        let half = Partition::default().guaranteed(50).unwrap();
        let tenants = Tenants::default().named("lender", half).unwrap();
        let tenants = tenants.named("keeper", half.lends(0).unwrap()).unwrap();
        let rules = BulkheadRules { room: 9, tenants: Some(tenants), ..Bulkhead::rules(false) };
        let bulkhead = built(rules, 2, None);
        let borrowed = bulkhead.enter().now().unwrap();
        let (one, two) = (bulkhead.clone(), bulkhead.clone());
        let lender = thread::spawn(move || drop(turn(one.enter().of("lender")).unwrap()));
        let keeper = thread::spawn(move || drop(two.enter().of("keeper").now().unwrap()));
        drop(borrowed);
        lender.join().unwrap();
        keeper.join().unwrap();
        is_empty(&bulkhead);
    });
}
