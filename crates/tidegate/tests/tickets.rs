//! Tickets: each is settled once, in time, by any node of the shared store. No other ticket is credited.

#![cfg(feature = "ticket")]

use crate::byte_map;
mod ends_once;
mod extended;
mod failing_engine;
mod one_step;

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::ticket::{KeyError, OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use tidegate::gate::{Check, Part};
use tidegate::policy::{ChargeOn, Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{CasStore, MemoryStore, Store, StoreError};
use tidegate::{Gate, Outcome, Quota};

use byte_map::OnTheSpot;
use failing_engine::Engine;

const TTL: Duration = Duration::from_secs(600);

fn policies() -> PolicySet {
    let all = Policy::new("all", Limit::new(Quota::per_hour(100).gcra().unwrap(), "100/h"));
    let mut login = Policy::new("login", Limit::new(Quota::per_hour(5).sliding_log().unwrap(), "5/h"));
    login.charge = ChargeOn::Failure;
    login.by = vec!["login.name".to_owned()];
    PolicySet::new(vec![all, login]).unwrap()
}

fn gate(store: impl Store + 'static, clock: &ManualClock, name: &str) -> Gate {
    Gate::new(policies(), store).with_clock(clock.clone()).with_issuer(name)
}

fn in_memory(clock: &ManualClock) -> Gate {
    gate(MemoryStore::with_capacity(100).unwrap(), clock, "one:8080")
}

fn keys() -> TicketKeys {
    TicketKeys::new([7; 32])
}

fn ticket(gate: &Gate, cost: u64) -> Ticket {
    let admission = gate.admit(Check::of(&Descriptor::new()).cost(cost)).now().unwrap().admitted().unwrap();
    admission.into_ticket(&keys(), TTL).unwrap()
}

fn open(gate: &Gate, ticket: &Ticket) -> Result<OpenTicket, TicketError> {
    keys().open(&ticket.to_string().parse()?, gate.now())
}

fn settle(gate: &Gate, ticket: &OpenTicket, used: u64) -> Result<(), TicketError> {
    gate.tickets().settle(ticket, Part::All, Outcome::Success, |_| Some(used)).now().map(drop)
}

fn remaining(gate: &Gate) -> u64 {
    gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision.standing.remaining
}

#[test]
fn a_ticket_is_settled_once() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let ticket = ticket(&gate, 80);
    assert_eq!(remaining(&gate), 20);
    clock.advance(Duration::from_secs(1));
    let open = open(&gate, &ticket).unwrap();
    let lines: Vec<_> = open.lines().map(|line| (line.policy, line.charged.units())).collect();
    assert_eq!((lines, open.issuer()), (vec![("all", 80)], "one:8080"));
    settle(&gate, &open, 30).unwrap();
    assert_eq!(remaining(&gate), 70);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(100));
        let before = remaining(&gate);
        assert_eq!(settle(&gate, &open, 0), Err(TicketError::Settled));
        assert_eq!(remaining(&gate), before);
    }
}

/// A ticket that was forged, cut, changed in any bit, or made by another deployment is not credited.
#[test]
fn what_no_key_of_the_deployment_has_sealed_is_not_opened() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let ticket = ticket(&gate, 80);
    let bytes = ticket.as_bytes();
    let opened = |bytes: &[u8]| keys().open(&Ticket::from_bytes(bytes)?, gate.now());
    for at in 0..bytes.len() {
        assert!(opened(&bytes[..at]).is_err(), "cut after {at}");
        for bit in 0..8 {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << bit;
            let error = opened(&changed).unwrap_err();
            let expected = if at == 0 {
                matches!(error, TicketError::Malformed { .. })
            } else {
                error == TicketError::Unsealed
            };
            assert!(expected, "byte {at}: {error}");
        }
    }
    let other = TicketKeys::new([8; 32]);
    let error = other.open(&ticket, gate.now()).unwrap_err();
    assert_eq!(error, TicketError::Unsealed);
    assert!(error.to_string().contains("another deployment"), "{error}");
    assert!(matches!("no/ticket".parse::<Ticket>(), Err(TicketError::Malformed { .. })));
    assert!(matches!("A".repeat(30_000).parse::<Ticket>(), Err(TicketError::TooLong { length: 30_000, .. })));
    assert_eq!(remaining(&gate), 20);
}

#[test]
fn a_ticket_ends_with_its_time() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let (ticket, late) = (ticket(&gate, 40), ticket(&gate, 40));
    clock.advance(TTL - Duration::from_nanos(1));
    let opened = open(&gate, &late).unwrap();
    settle(&gate, &open(&gate, &ticket).unwrap(), 0).unwrap();
    clock.advance(Duration::from_nanos(1));
    let expired = TicketError::Expired { ago: Duration::ZERO };
    assert_eq!(open(&gate, &late), Err(expired.clone()));
    assert_eq!(settle(&gate, &opened, 0), Err(expired), "opened in time, settled too late");
}

#[test]
fn a_lifetime_has_bounds_and_so_has_a_ticket() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    for ttl in [Duration::ZERO, Ticket::MAX_TTL + Duration::from_nanos(1), Duration::MAX] {
        let admission = gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap();
        let refused = admission.into_ticket(&keys(), ttl).unwrap_err();
        assert_eq!(refused.0, SealError::Lifetime { ttl });
        refused.1.cancel().now().unwrap();
    }
    let name = "x".repeat(20_000);
    let request = Descriptor::new().with("login.name", &name);
    let admission = gate.admit(&request).now().unwrap().admitted().unwrap();
    let refused = admission.into_ticket(&keys(), TTL).unwrap_err();
    assert!(matches!(refused.0, SealError::TooLong { bytes: 20_000.. }), "{:?}", refused.0);
    refused.1.cancel().now().unwrap();
    assert_eq!(remaining(&gate), 100);
}

#[test]
fn older_keys_open_and_the_current_one_seals() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let ticket = ticket(&gate, 1);
    let hex = |byte: u8| format!("{byte:02x}").repeat(32);
    let rotated = TicketKeys::parse(&format!("# new\n{}\n\n# old\n{}\n", hex(9), hex(7))).unwrap();
    assert!(rotated.open(&ticket, gate.now()).is_ok());
    let admission = gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap();
    let new = admission.into_ticket(&rotated, TTL).unwrap();
    assert_eq!(keys().open(&new, gate.now()), Err(TicketError::Unsealed));
    assert!(TicketKeys::new([9; 32]).open(&new, gate.now()).is_ok());

    assert_eq!(TicketKeys::parse("\n# none\n").unwrap_err(), KeyError::Empty);
    assert_eq!(TicketKeys::parse("\nsecret").unwrap_err(), KeyError::Line { line: 2 });
    assert!(!KeyError::Line { line: 2 }.to_string().contains("secret"));
    let many: String = (1..=9).map(|byte| format!("{}\n", hex(byte))).collect();
    assert_eq!(TicketKeys::parse(&many).unwrap_err(), KeyError::TooMany { count: 9 });
    // The other spelling is the same key.
    let twice = format!("{}\n# again\n{}\n", hex(7), "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc");
    assert_eq!(TicketKeys::parse(&twice).unwrap_err(), KeyError::Repeated { line: 3, first: 1 });
    let base64 = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
    for text in [base64.to_owned(), format!("{base64}=")] {
        assert!(TicketKeys::parse(&text).unwrap().open(&ticket, gate.now()).is_ok());
    }
}

#[test]
fn what_a_ticket_holds_is_not_to_be_read() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let request = Descriptor::new().with("login.name", "hunter2-and-more");
    let admission = gate.admit(&request).now().unwrap().admitted().unwrap();
    let ticket = admission.into_ticket(&keys(), TTL).unwrap();
    let shown = |text: &[u8]| text.windows(7).any(|part| part == b"hunter2");
    assert!(!shown(ticket.as_bytes()) && !shown(format!("{ticket:?}").as_bytes()));
    let open = open(&gate, &ticket).unwrap();
    assert!(!shown(format!("{open:?} {:?}", keys()).as_bytes()));
}

/// The two halves of a ticket, outcome and usage, are settled once each.
#[test]
fn each_half_is_settled_once() {
    let clock = ManualClock::default();
    let gate = in_memory(&clock);
    let request = Descriptor::new().with("login.name", "ann");
    let made = |gate: &Gate| {
        let admission = gate.admit(&request).now().unwrap().admitted().unwrap();
        keys().open(&admission.into_ticket(&keys(), TTL).unwrap(), gate.now()).unwrap()
    };
    let one = made(&gate);
    let part = |ticket: &OpenTicket, part| {
        gate.tickets().settle(ticket, part, Outcome::Ignored, |_| Some(0)).now().map(|told| told.len())
    };
    assert_eq!(part(&one, Part::Outcome), Ok(1));
    assert_eq!(part(&one, Part::Outcome), Err(TicketError::Settled));
    assert_eq!(part(&one, Part::All), Err(TicketError::Settled), "half of it is");
    assert_eq!(part(&one, Part::Spent), Ok(1));
    assert_eq!(part(&one, Part::Spent), Err(TicketError::Settled));
    let two = made(&gate);
    assert_eq!(part(&two, Part::All), Ok(2));
    for half in [Part::All, Part::Spent, Part::Outcome] {
        assert_eq!(part(&two, half), Err(TicketError::Settled));
    }
    let standing = gate.check(Check::of(&request).peek()).now().unwrap();
    assert_eq!(
        standing.limits.iter().map(|limit| limit.decision.standing.remaining).collect::<Vec<_>>(),
        [100, 5]
    );
}

#[test]
fn of_many_who_settle_at_once_one_does() {
    let clock = ManualClock::default();
    for gate in [in_memory(&clock), gate(OnTheSpot(CasStore::new(Engine::default())), &clock, "one")] {
        for _ in 0..20 {
            let open = open(&gate, &ticket(&gate, 40)).unwrap();
            let settled: usize = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..6)
                    .map(|_| {
                        scope.spawn(|| match settle(&gate, &open, 0) {
                            Ok(()) => 1,
                            Err(TicketError::Settled | TicketError::Store(StoreError::Contended { .. })) => 0,
                            Err(error) => panic!("{error}"),
                        })
                    })
                    .collect();
                tries.into_iter().map(|tried| tried.join().unwrap()).sum()
            });
            assert_eq!((settled, remaining(&gate)), (1, 100));
        }
    }
}

/// A charge of one node may be settled by another; a restarted node finds what it charged before.
#[test]
fn nodes_of_one_store_settle_each_others_tickets() {
    let clock = ManualClock::default();
    let engine = Engine::default();
    let node = |name| gate(OnTheSpot(CasStore::new(engine.clone())), &clock, name);
    let (one, two) = (node("one:8080"), node("two:8080"));
    let [first, second] = [ticket(&one, 50), ticket(&two, 40)];
    assert_eq!((remaining(&one), remaining(&two)), (10, 10));
    clock.advance(Duration::from_millis(1));
    settle(&two, &open(&two, &first).unwrap(), 0).unwrap();
    assert_eq!(settle(&one, &open(&one, &first).unwrap(), 0), Err(TicketError::Settled));
    drop(one);
    let again = node("one:8080");
    settle(&again, &open(&again, &second).unwrap(), 70).unwrap();
    assert_eq!((remaining(&again), remaining(&two)), (30, 30));
    assert_eq!(settle(&two, &open(&two, &second).unwrap(), 0), Err(TicketError::Settled));
}

#[test]
fn a_ticket_of_another_nodes_memory_names_that_node() {
    let clock = ManualClock::default();
    let (one, two) = (in_memory(&clock), gate(MemoryStore::with_capacity(100).unwrap(), &clock, "two:8080"));
    let open = open(&one, &ticket(&one, 50)).unwrap();
    let error = settle(&two, &open, 0).unwrap_err();
    assert_eq!(error, TicketError::Elsewhere { issuer: "one:8080".into(), restarted: false });
    assert!(error.to_string().contains("`one:8080`"), "{error}");
    let again = in_memory(&clock);
    let error = settle(&again, &open, 0).unwrap_err();
    assert_eq!(error, TicketError::Elsewhere { issuer: "one:8080".into(), restarted: true });
    assert_eq!((remaining(&one), remaining(&two), remaining(&again)), (50, 100, 100));
    settle(&one, &open, 0).unwrap();
    assert_eq!(remaining(&one), 100);
}

/// Made-up keys of a policy evict that policy's keys, and no mark of a settled ticket: four marks are within the share
/// that marks have of any eight slots.
#[test]
fn a_flood_of_keys_does_not_wash_a_settled_ticket_away() {
    let clock = ManualClock::default();
    let mut by_name = Policy::new("by-name", Limit::new(Quota::per_hour(1).gcra().unwrap(), "1/h"));
    by_name.by = vec!["login.name".to_owned()];
    let gate = Gate::in_memory(PolicySet::new(vec![by_name]).unwrap(), 64).unwrap().with_clock(clock.clone());
    let name = |made_up: u32| format!("made up {made_up}");
    let ask =
        |made_up| gate.admit(&Descriptor::new().with("login.name", name(made_up))).now().unwrap().admitted();
    let tickets: Vec<_> =
        (0..4).map(|at| open(&gate, &ask(at).unwrap().into_ticket(&keys(), TTL).unwrap()).unwrap()).collect();
    for ticket in &tickets {
        settle(&gate, ticket, 1).unwrap();
    }
    for made_up in 4..5000 {
        assert!(ask(made_up).is_some());
    }
    assert!(gate.occupancy().evicted > 1000);
    for ticket in &tickets {
        assert_eq!(settle(&gate, ticket, 0), Err(TicketError::Settled));
    }
}

/// Every order in which an admission that holds a place becomes a ticket or is dropped, and in which its ticket is
/// settled, dropped or lapses.
#[test]
fn every_way_a_place_can_go_returns_it_once() {
    for (settles, laps) in [(true, false), (true, true), (false, false), (false, true)] {
        let clock = ManualClock::default();
        let places = Quota::concurrency(1, Duration::from_secs(60)).unwrap();
        let set = PolicySet::new(vec![Policy::new("places", Limit::new(places, "1"))]).unwrap();
        let gate = Gate::in_memory(set, 100).unwrap().with_clock(clock.clone());
        let taken = || gate.admit(&Descriptor::new()).now().unwrap().admitted();
        let ticket = taken().unwrap().into_ticket(&keys(), TTL).unwrap();
        assert!(taken().is_none(), "a ticket holds the place");
        let open = keys().open(&ticket, gate.now()).unwrap();
        let mut next = None;
        if laps {
            clock.advance(Duration::from_secs(60));
            next = Some(taken().expect("the place has lapsed").undo_if_dropped(false));
        }
        if settles {
            settle(&gate, &open, 1).unwrap();
            assert_eq!(settle(&gate, &open, 1), Err(TicketError::Settled));
        }
        assert_eq!(taken().is_some(), settles && !laps, "settles: {settles}, laps: {laps}");
        drop(next);
        assert_eq!(taken().is_some(), settles || laps);
    }
}
