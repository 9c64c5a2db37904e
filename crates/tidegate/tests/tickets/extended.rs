//! Tickets whose places are held longer.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidegate::gate::ticket::Extended;
use tidegate::policy::Mode;
use tidegate::store::{Executed, Execution, Occupancy, PlainStore, Step};
use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency};

use super::*;

const PLACE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// A rate, and places of two: `work` of fixed number, `backend` with a law.
fn places() -> PolicySet {
    let rate = Policy::new("all", Limit::new(Quota::per_hour(100).gcra().unwrap(), "100/h"));
    let fixed = Policy::new("work", Limit::new(Quota::concurrency(2, PLACE).unwrap(), "concurrency 2"));
    let law: Adaptive = "aimd".parse().unwrap();
    let moves = Quota::from(AdaptiveConcurrency::new(law).ttl(PLACE).unwrap());
    let backend = Policy::new("backend", Limit::new(moves, "adaptive"));
    PolicySet::new(vec![rate, fixed, backend]).unwrap()
}

fn gate_of(set: PolicySet) -> (Gate, ManualClock) {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000_000));
    (Gate::in_memory(set, 100).unwrap().with_clock(clock.clone()).with_issuer("one:8080"), clock)
}

fn extend(gate: &Gate, ticket: &OpenTicket) -> Result<Extended, TicketError> {
    gate.tickets().extend(ticket, &keys(), TTL, None).now()
}

/// Places in use of a policy.
fn in_use(gate: &Gate, policy: usize) -> u64 {
    let standing =
        gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[policy].decision.standing;
    standing.limit - standing.remaining
}

#[test]
fn work_that_says_that_it_goes_on_keeps_its_places_and_its_other_charges() {
    let (gate, clock) = gate_of(places());
    let mut current = open(&gate, &ticket(&gate, 1)).unwrap();
    for _ in 0..10 {
        clock.advance(PLACE - SECOND);
        let extended = extend(&gate, &current).unwrap();
        let lapses = |at: usize| extended.places[at].lapses.since(gate.now());
        assert!(lapses(0) >= PLACE && lapses(0) < PLACE + PLACE / 1000 + SECOND / 1000, "{:?}", lapses(0));
        assert_eq!(extended.places.iter().map(|one| &*one.policy).collect::<Vec<_>>(), ["work", "backend"]);
        assert_eq!(
            settle(&gate, &current, 0),
            Err(TicketError::Settled),
            "the ticket before it settles nothing"
        );
        assert_eq!([in_use(&gate, 1), in_use(&gate, 2)], [1, 1]);
        current = open(&gate, &extended.ticket).unwrap();
    }
    let settled = gate.tickets().settle(&current, Part::All, Outcome::Success, |_| Some(0)).now().unwrap();
    assert_eq!(settled.len(), 3, "the rate too");
    assert_eq!([in_use(&gate, 1), in_use(&gate, 2)], [0, 0]);
    assert_eq!(extend(&gate, &current), Err(TicketError::Settled));
}

/// The tick at which a place lapses finds it. Holders whose places lapse at the same tick must not end or extend those of
/// each other: a request to extend that is sent twice did.
#[test]
fn an_old_ticket_never_touches_a_place_that_lapses_at_the_same_tick() {
    let (gate, clock) = gate_of(places());
    let [mine, others] = [(); 2].map(|()| open(&gate, &ticket(&gate, 1)).unwrap());
    clock.advance(SECOND);
    let extended = open(&gate, &extend(&gate, &mine).unwrap().ticket).unwrap();
    for _ in 0..3 {
        assert_eq!(extend(&gate, &mine), Err(TicketError::Settled));
        assert_eq!(settle(&gate, &mine, 0), Err(TicketError::Settled));
    }
    assert_eq!(in_use(&gate, 1), 2);
    clock.advance(PLACE - SECOND / 2);
    assert_eq!(in_use(&gate, 1), 1, "theirs has lapsed as it was due to");
    settle(&gate, &extended, 0).unwrap();
    settle(&gate, &others, 0).unwrap();
    assert_eq!(in_use(&gate, 1), 0);
}

#[test]
fn what_is_in_the_way_is_told_and_the_ticket_stays() {
    let (gate, clock) = gate_of(places());
    let refused = |ticket: &OpenTicket, says: &str| {
        let error = extend(&gate, ticket).unwrap_err();
        assert!(
            matches!(error, TicketError::NotExtended { .. }) && error.to_string().contains(says),
            "{error}"
        );
    };
    let (other, _) = gate_of(places());
    let foreign = open(&other, &ticket(&other, 1)).unwrap();
    assert!(matches!(extend(&gate, &foreign), Err(TicketError::Elsewhere { .. })));
    let late = open(&gate, &ticket(&gate, 1)).unwrap();
    clock.advance(PLACE + SECOND);
    refused(&late, "have lapsed");
    assert_eq!(
        gate.tickets().settle(&late, Part::All, Outcome::Success, |_| Some(0)).now().unwrap()[0].used,
        0,
        "still a ticket"
    );
    let expired = open(&gate, &ticket(&gate, 1)).unwrap();
    clock.advance(TTL);
    assert!(matches!(extend(&gate, &expired), Err(TicketError::Expired { .. })));

    let (rates, _) = gate_of(policies());
    let without = open(&rates, &ticket(&rates, 1)).unwrap();
    let error = extend(&rates, &without).unwrap_err();
    assert!(error.to_string().ends_with("it has none"), "{error}");
}

#[test]
fn a_reset_key_has_no_place_to_hold() {
    let (gate, clock) = gate_of(places());
    let held = open(&gate, &ticket(&gate, 1)).unwrap();
    clock.advance(SECOND);
    let set = gate.policies();
    let plan = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap();
    assert_eq!(plan.limits.len(), 3);
    let key = set.key(1, 0, &Descriptor::new()).unwrap();
    let quota = Arc::clone(set.policies()[1].limits[0].terms.quota.as_ref().unwrap());
    gate.keys().reset(&[tidegate::store::Charge::new(&key, &quota, tidegate::Cost::ONE)]).now().unwrap();
    assert!(matches!(extend(&gate, &held), Err(TicketError::NotExtended { .. })));
    assert_eq!([in_use(&gate, 1), in_use(&gate, 2)], [0, 1], "nothing was held longer");
}

/// A ticket of which one half was settled is extended for the other.
#[test]
fn a_cost_may_be_settled_before_the_work_goes_on() {
    let (gate, clock) = gate_of(places());
    let held = open(&gate, &ticket(&gate, 5)).unwrap();
    gate.tickets().settle(&held, Part::Spent, Outcome::Ignored, |_| Some(2)).now().unwrap();
    clock.advance(PLACE - SECOND);
    let extended = open(&gate, &extend(&gate, &held).unwrap().ticket).unwrap();
    assert!(!extended.has(Part::Spent) && extended.has(Part::Outcome));
    gate.tickets().settle(&extended, Part::All, Outcome::Success, |_| None).now().unwrap();
    let reported = open(&gate, &ticket(&gate, 5)).unwrap();
    gate.tickets().settle(&reported, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(extend(&gate, &reported), Err(TicketError::Settled));
}

#[test]
fn no_work_is_kept_alive_for_longer_than_a_ticket_may_live() {
    let hour = Duration::from_secs(3600);
    let one = Policy::new("work", Limit::new(Quota::concurrency(1, hour).unwrap(), "concurrency 1"));
    let (gate, clock) = gate_of(PolicySet::new(vec![one]).unwrap());
    let admission = gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap();
    let mut current = keys().open(&admission.into_ticket(&keys(), hour).unwrap(), gate.now()).unwrap();
    let made = current.made();
    let mut count = 0;
    let ended = loop {
        // Just before the place lapses.
        clock.advance(hour - SECOND);
        match gate.tickets().extend(&current, &keys(), Ticket::MAX_TTL, None).now() {
            Ok(next) => current = keys().open(&next.ticket, gate.now()).unwrap(),
            Err(error) => break error,
        }
        count += 1;
    };
    assert!(matches!(ended, TicketError::Expired { .. }), "{ended}");
    assert_eq!((current.made(), current.expires()), (made, made.after(Ticket::MAX_TTL)));
    assert_eq!(count, 720);
}

/// `latency` and `in-flight` see one piece of work, however often it says that it goes on.
#[test]
fn the_work_counts_once_and_from_its_check_on() {
    let work = Policy::new("work", Limit::new(Quota::concurrency(9, PLACE).unwrap(), "concurrency 9"));
    let when = |name: &str, text: &str| {
        let policy = Policy::new(name, Limit::new(Quota::per_hour(100).gcra().unwrap(), "100/h"));
        policy.when(text.parse().unwrap())
    };
    let set = vec![work, when("busy", "in-flight above 90"), when("slow", "latency above 90s")];
    let (gate, clock) = gate_of(PolicySet::new(set).unwrap());
    let read = |word: &str| {
        clock.advance(SECOND / 10);
        gate.signals().read();
        gate.signals().list().into_iter().find(|one| one.source.to_string() == word).unwrap().value
    };
    let mut current = open(&gate, &ticket(&gate, 1)).unwrap();
    for _ in 0..3 {
        clock.advance(Duration::from_secs(20));
        current = open(&gate, &extend(&gate, &current).unwrap().ticket).unwrap();
        assert_eq!(read("in-flight"), Some(1.0));
    }
    settle(&gate, &current, 1).unwrap();
    assert_eq!(read("in-flight"), Some(0.0));
    let latency = read("latency").unwrap();
    assert!((60_000.0..60_500.0).contains(&latency), "{latency}");
}

/// A place that is only measured lapses on its own: it refuses no extension, and is held longer where it is still there.
#[test]
fn a_place_of_a_shadow_refuses_no_extension() {
    let places = |name: &str, ttl| {
        let places = Quota::concurrency(2, ttl).unwrap();
        Policy::new(name, Limit::new(places, "concurrency 2"))
    };
    let mut measured = places("measured", PLACE / 3);
    measured.mode = Mode::Shadow;
    let names = |extended: &Extended| {
        extended.places.iter().map(|one| (one.policy.to_string(), one.shadow)).collect()
    };
    let (work, shadow) = (("work".to_owned(), false), ("measured".to_owned(), true));
    let (gate, clock) = gate_of(PolicySet::new(vec![measured.clone(), places("work", PLACE)]).unwrap());
    let first = open(&gate, &ticket(&gate, 1)).unwrap();
    clock.advance(PLACE / 6);
    let extended = extend(&gate, &first).unwrap();
    let listed: Vec<_> = names(&extended);
    assert_eq!(listed, [shadow, work.clone()]);
    let lapses = extended.places[0].lapses.since(gate.now());
    assert!(lapses >= PLACE / 3 && lapses < PLACE / 3 + SECOND / 50, "{lapses:?}");

    // Now that it lapses, others come and take both places that are measured; theirs are not touched.
    let mut current = open(&gate, &extended.ticket).unwrap();
    clock.advance(PLACE / 2);
    assert_eq!([in_use(&gate, 0), in_use(&gate, 1)], [0, 1]);
    let others = open(&gate, &ticket(&gate, 1)).unwrap();
    for _ in 0..2 {
        let extended = extend(&gate, &current).unwrap();
        let listed: Vec<_> = names(&extended);
        assert_eq!(listed, std::slice::from_ref(&work), "only what is held");
        current = open(&gate, &extended.ticket).unwrap();
        assert_eq!([in_use(&gate, 0), in_use(&gate, 1)], [1, 2]);
    }
    settle(&gate, &current, 1).unwrap();
    assert_eq!([in_use(&gate, 0), in_use(&gate, 1)], [1, 1], "theirs");
    clock.advance(PLACE + SECOND);
    assert!(matches!(extend(&gate, &others), Err(TicketError::NotExtended { .. })), "work has lapsed");

    let (gate, clock) = gate_of(PolicySet::new(vec![measured]).unwrap());
    let alone = open(&gate, &ticket(&gate, 1)).unwrap();
    clock.advance(PLACE);
    let extended = extend(&gate, &alone).unwrap();
    assert!(extended.places.is_empty(), "nobody waits for it");
    settle(&gate, &open(&gate, &extended.ticket).unwrap(), 1).unwrap();
}

/// Regression: the places were held, and then the ticket was too long. An extended ticket has its own time of issue too.
#[test]
fn places_are_held_only_if_there_can_be_a_ticket_for_them() {
    let mut work = Policy::new("work", Limit::new(Quota::concurrency(2, PLACE).unwrap(), "concurrency 2"));
    work.by = vec!["key".to_owned()];
    let (gate, clock) = gate_of(PolicySet::new(vec![work]).unwrap());
    let issue = |long: usize| {
        let text = "x".repeat(long);
        let admission = gate.admit(&Descriptor::new().with("key", &text)).now().unwrap().admitted().unwrap();
        admission.into_ticket(&keys(), TTL).map_err(|refused| refused.0)
    };
    let bytes = |ticket: &Ticket| ticket.as_bytes().len();
    let (others, mut refusals) = (bytes(&issue(0).unwrap()), 0);
    for missing in 0..32 {
        clock.advance(SECOND);
        // A value above 127 bytes takes one more byte for its length.
        let sealed = issue(Ticket::MAX_BYTES - others - 1 - missing).unwrap();
        let free = Ticket::MAX_BYTES - bytes(&sealed);
        let first = open(&gate, &sealed).unwrap();
        clock.advance(SECOND);
        let extended = extend(&gate, &first);
        if free < 16 {
            assert!(matches!(extended, Err(TicketError::Seal(SealError::TooLong { .. }))), "{extended:?}");
            settle(&gate, &first, 1).unwrap();
            refusals += 1;
        } else {
            assert_eq!(bytes(&extended.unwrap().ticket), bytes(&sealed) + 16);
        }
    }
    assert!((8..=16).contains(&refusals), "{refusals}");
}

/// A plain store that notes how long each mark of a ticket lives.
#[derive(Debug, Default)]
struct Marked {
    plain: PlainStore,
    lives: Mutex<Vec<Duration>>,
}

impl Store for Marked {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        // The owner number of all marks.
        let marks = step.charges.iter().filter(|charge| charge.rules.owner == u32::MAX);
        self.lives.lock().extend(marks.filter_map(|mark| mark.quota.fills_within()));
        self.plain.execute_into(step, out)
    }

    fn occupancy(&self) -> Occupancy {
        self.plain.occupancy()
    }
}

/// Regression: a mark lived for as long as the work had gone on, so each sign of life of a long job left one for days.
#[test]
fn marks_live_no_longer_for_work_that_has_gone_on_for_long() {
    let (store, clock) = (Arc::new(Marked::default()), ManualClock::default());
    let gate = Gate::new(places(), Arc::clone(&store)).with_clock(clock.clone());
    let mut current = open(&gate, &ticket(&gate, 1)).unwrap();
    let made = current.made();
    let extensions = 3 * 3600 / (PLACE / 2).as_secs();
    for _ in 0..extensions {
        clock.advance(PLACE / 2);
        current = open(&gate, &extend(&gate, &current).unwrap().ticket).unwrap();
        assert_eq!((current.made(), current.issued()), (made, gate.now()));
    }
    settle(&gate, &current, 1).unwrap();
    let lives = store.lives.lock();
    assert_eq!(lives.len() as u64, 2 * extensions + 2, "one for each half");
    assert!(lives.iter().all(|life| (TTL..2 * TTL).contains(life)), "{:?}", lives.last());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks, extensions by present and by old tickets, ends and pauses in any order, against a list of holders: never
    /// more places in use than there are, and each holder has its place until it ends it or lets it lapse.
    #[test]
    fn places_in_use_are_those_of_the_holders(steps in proptest::collection::vec((0..5_u8, 0..4_usize, 0..40_u64), 1..60)) {
        let one = Policy::new("work", Limit::new(Quota::concurrency(3, PLACE).unwrap(), "concurrency 3"));
        let (gate, clock) = gate_of(PolicySet::new(vec![one]).unwrap());
        let mut holders: Vec<(OpenTicket, u64)> = Vec::new();
        let mut old: Vec<OpenTicket> = Vec::new();
        let mut now = 0_u64;
        for (what, which, pause) in steps {
            match what {
                0 | 1 => {
                    if let Some(admission) = gate.admit(&Descriptor::new()).now().unwrap().admitted() {
                        let ticket = admission.into_ticket(&keys(), TTL).unwrap();
                        holders.push((open(&gate, &ticket).unwrap(), now + 30));
                    } else {
                        prop_assert_eq!(holders.len(), 3);
                    }
                }
                2 if which < holders.len() => {
                    let next = extend(&gate, &holders[which].0).unwrap();
                    let next = (open(&gate, &next.ticket).unwrap(), now + 30);
                    old.push(std::mem::replace(&mut holders[which], next).0);
                }
                3 if which < holders.len() => {
                    let (ticket, _) = holders.remove(which);
                    settle(&gate, &ticket, 1).unwrap();
                    old.push(ticket);
                }
                _ => {
                    if let Some(ticket) = old.get(which) {
                        prop_assert!(extend(&gate, ticket).is_err() && settle(&gate, ticket, 0).is_err());
                    }
                    now += pause;
                    clock.advance(Duration::from_secs(pause));
                    let (kept, lapsed) = holders.into_iter().partition(|(_, lapses)| *lapses > now);
                    holders = kept;
                    let lapsed: Vec<(OpenTicket, u64)> = lapsed;
                    prop_assert!(lapsed.iter().all(|(ticket, _)| extend(&gate, ticket).is_err()));
                }
            }
            prop_assert_eq!(in_use(&gate, 0), holders.len() as u64);
        }
    }
}
