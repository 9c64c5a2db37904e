//! A ticket stops counting as in flight once, in whatever order its halves are settled, and by however many callers.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::ticket::{OpenTicket, TicketError};
use tidegate::gate::{Charged, Check, Part};
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, Share, Source};
use tidegate::store::PlainStore;
use tidegate::{Gate, Outcome, Quota};

use super::{TTL, keys};

/// Policies whose charges lie in two stores, and one that reads the numbers; a place in the second store if `place`.
fn gate(clock: &ManualClock, place: bool) -> Gate {
    let policy = |name| Policy::new(name, Limit::new(Quota::per_hour(100).gcra().unwrap(), "100/h"));
    let mut policies = vec![
        policy("here"),
        policy("there"),
        policy("careful").when("in-flight above 90, until 80".parse().unwrap()),
        policy("slow").when("latency above 90s, until 80s".parse().unwrap()),
    ];
    policies[1].share = Some(Share::Central);
    if place {
        let places = Quota::concurrency(50, Duration::from_secs(3600)).unwrap();
        let mut places = Policy::new("places", Limit::new(places, "50 at once"));
        places.share = Some(Share::Central);
        policies.push(places);
    }
    Gate::new(PolicySet::new(policies).unwrap(), Arc::new(PlainStore::default()))
        .with_store(Share::Central, Arc::new(PlainStore::default()))
        .with_clock(clock.clone())
}

fn ticket(gate: &Gate) -> OpenTicket {
    let mut charged = Charged::default();
    assert!(gate.charge(Check::of(&Descriptor::new()), &mut charged).now().unwrap().allowed);
    keys().open(&gate.tickets().seal(&charged, &keys(), TTL, None).unwrap(), gate.now()).unwrap()
}

/// Returns how many tickets are in flight, and the mean duration in milliseconds of what ended within the last second.
fn numbers(gate: &Gate, clock: &ManualClock) -> (Option<f64>, Option<f64>) {
    clock.advance(Duration::from_millis(500));
    assert!(gate.check(&Descriptor::new()).now().unwrap().allowed);
    let read =
        |source: Source| gate.signals().list().into_iter().find(|one| one.source == source).unwrap().value;
    (read(Source::InFlight), read(Source::Latency))
}

const ORDERS: [[Part; 4]; 5] = [
    [Part::Spent, Part::Outcome, Part::All, Part::Spent],
    [Part::Outcome, Part::Spent, Part::Outcome, Part::All],
    [Part::Outcome, Part::All, Part::Spent, Part::Spent],
    [Part::All, Part::Outcome, Part::Spent, Part::All],
    [Part::Spent, Part::All, Part::Outcome, Part::Outcome],
];

#[test]
fn each_ticket_ends_once_in_whatever_order_it_is_settled() {
    for place in [false, true] {
        let clock = ManualClock::default();
        let gate = gate(&clock, place);
        let tickets: Vec<_> = (0..ORDERS.len() + 3).map(|_| ticket(&gate)).collect();
        for (ticket, order) in tickets.iter().zip(ORDERS) {
            for part in order {
                let settled = gate.tickets().settle(ticket, part, Outcome::Success, |_| None).now();
                assert!(matches!(settled, Ok(_) | Err(TicketError::Settled)), "{settled:?}");
            }
        }
        assert_eq!(numbers(&gate, &clock).0, Some(3.0), "with a place: {place}");
    }
}

#[test]
fn a_ticket_that_many_settle_at_once_ends_once() {
    for place in [false, true] {
        let clock = ManualClock::default();
        let gate = gate(&clock, place);
        let tickets: Vec<_> = (0..20).map(|_| ticket(&gate)).collect();
        std::thread::scope(|scope| {
            for at in 0..6 {
                let (gate, tickets) = (&gate, &tickets);
                let part = [Part::Spent, Part::Outcome, Part::All][at % 3];
                scope.spawn(move || {
                    for ticket in &tickets[..15] {
                        let _ = gate.tickets().settle(ticket, part, Outcome::Success, |_| None).now();
                    }
                });
            }
        });
        assert_eq!(numbers(&gate, &clock).0, Some(5.0), "with a place: {place}");
    }
}

/// What was spent may be settled while the work goes on, if a place is still held. Without one, nothing says that the
/// work goes on; but a report that comes later still tells how long it took, once.
#[test]
fn a_cost_alone_ends_only_work_that_no_outcome_decides() {
    for (place, left) in [(false, 0.0), (true, 1.0)] {
        let clock = ManualClock::default();
        let gate = gate(&clock, place);
        let ticket = ticket(&gate);
        let settle = |part| gate.tickets().settle(&ticket, part, Outcome::Success, |_| None).now().map(drop);
        settle(Part::Spent).unwrap();
        assert_eq!(numbers(&gate, &clock), (Some(left), None), "with a place: {place}");
        settle(Part::Outcome).unwrap();
        assert_eq!(numbers(&gate, &clock), (Some(0.0), Some(500.0)), "with a place: {place}");
        assert_eq!(settle(Part::Outcome), Err(TicketError::Settled));
    }
}
