//! What the observer of a gate is told: decisions, settlements, and changes of breakers and moving limits, by policy.
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::breaker::{CircuitBreaker, Force, Forced};
use tidegate::clock::ManualClock;
use tidegate::concurrency::{Adaptive, AdaptiveConcurrency, Aimd};
use tidegate::gate::Check;
use tidegate::observer::{AnyEvent, Observer};
use tidegate::policy::{Descriptor, Limit, Mode, Policy, PolicySet, Share};
use tidegate::store::{CasStore, Handling, MemoryStore};
use tidegate::{Gate, Outcome, Quota};

use crate::byte_map::{Bytes, OnTheSpot};

/// What was told, as lines of text.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Told {
    fn on_named(&self, policy: &str, event: AnyEvent<'_>) {
        let line = match event {
            AnyEvent::Decision(event) => {
                let ruled = if event.decision.is_allowed() { "allows" } else { "refuses" };
                let shadow = if event.shadow { " in shadow" } else { "" };
                let key = if event.key.is_some() { " for a key" } else { "" };
                format!("limit {} {ruled} {}{shadow}{key}", event.binding, event.cost.units())
            }
            AnyEvent::Cancel(event) => format!("gives back {}", event.cost.units()),
            AnyEvent::Settle(event, used) => format!("settles {} of {}", used, event.cost.units()),
            AnyEvent::Change(change) => format!("{} to {}", change.from.as_str(), change.to.as_str()),
            AnyEvent::KeyChange(change, _) => {
                format!("a key's {} to {}", change.from.as_str(), change.to.as_str())
            }
            AnyEvent::Limit(moved) => format!("{} to {} places", moved.from, moved.to),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(format!("{policy}: {line}"));
    }
}

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, Limit::new(quota, name))
}

fn by_user(name: &str, quota: Quota) -> Policy {
    let mut policy = policy(name, quota);
    policy.by = vec!["user.id".to_owned()];
    policy
}

fn gate(policies: Vec<Policy>, clock: &ManualClock) -> (Gate, Arc<Told>) {
    let told = Arc::new(Told::default());
    let gate = Gate::in_memory(PolicySet::new(policies).unwrap(), 1000)
        .unwrap()
        .with_clock(clock.clone())
        .with_observer(Arc::clone(&told));
    (gate, told)
}

fn ann() -> Descriptor<'static> {
    Descriptor::new().with("user.id", "ann")
}

fn breaker() -> Quota {
    let builder = CircuitBreaker::builder().consecutive(2).open_for(Duration::from_secs(5)).jitter(0.0);
    Quota::Breaker(builder.build().unwrap())
}

#[test]
fn each_limit_that_was_charged_or_that_refused_is_told() {
    let mut watched = policy("watched", Quota::per_hour(1).gcra().unwrap());
    watched.mode = Mode::Shadow;
    let all = policy("all", Quota::per_hour(3).gcra().unwrap());
    let each = by_user("each", Quota::per_hour(2).gcra().unwrap());
    let (gate, told) = gate(vec![all, each, watched], &ManualClock::default());
    assert!(gate.check(Check::of(&ann()).peek()).now().unwrap().allowed);
    assert!(told.take().is_empty(), "a peek is not told");
    let _ = gate.check(&ann()).now().unwrap();
    let first =
        ["all: limit 0 allows 1", "each: limit 0 allows 1 for a key", "watched: limit 0 allows 1 in shadow"];
    assert_eq!(told.take(), first);
    let _ = gate.check(&ann()).now().unwrap();
    assert_eq!(told.take()[2], "watched: limit 0 refuses 1 in shadow");
    assert!(!gate.check(&ann()).now().unwrap().allowed);
    assert_eq!(told.take(), ["each: limit 0 refuses 1 for a key", "watched: limit 0 refuses 1 in shadow"]);
}

#[test]
fn what_charges_became_is_told() {
    let (gate, told) =
        gate(vec![policy("units", Quota::per_hour(100).gcra().unwrap())], &ManualClock::default());
    let admit = || {
        let anyone = Descriptor::new();
        let admission = gate.admit(Check::of(&anyone).cost(10)).now().unwrap().admitted().unwrap();
        told.take();
        admission
    };
    admit().finish(Outcome::Success).now().unwrap();
    assert!(told.take().is_empty(), "nothing has changed");
    admit().finish(Outcome::Success).used(|_| Some(4)).now().unwrap();
    assert_eq!(told.take(), ["units: settles 4 of 10"]);
    admit().finish(Outcome::Success).used(|_| Some(14)).now().unwrap();
    assert_eq!(told.take(), ["units: settles 14 of 10"]);
    admit().cancel().now().unwrap();
    assert_eq!(told.take(), ["units: gives back 10"]);
    drop(admit().undo_if_dropped(true));
    assert_eq!(told.take(), ["units: gives back 10"]);
}

#[test]
fn the_states_of_a_breaker_are_told() {
    let clock = ManualClock::default();
    let (gate, told) = gate(vec![policy("stock", breaker())], &clock);
    let changes = || told.take().into_iter().filter(|line| line.contains(" to ")).collect::<Vec<_>>();
    for _ in 0..2 {
        gate.admit(&ann()).now().unwrap().admitted().unwrap().finish(Outcome::Failure).now().unwrap();
    }
    assert_eq!(changes(), ["stock: closed to open"]);
    assert!(!gate.check(&ann()).now().unwrap().allowed);
    assert_eq!(told.take(), ["stock: limit 0 refuses 1"]);
    clock.advance(Duration::from_secs(5));
    let probe = gate.admit(&ann()).now().unwrap().admitted().unwrap();
    assert_eq!(changes(), ["stock: open to half-open"]);
    probe.finish(Outcome::Failure).now().unwrap();
    // One failed probe may be chance.
    let mut probes = 1;
    while let Some(probe) = gate.admit(&ann()).now().unwrap().admitted() {
        probe.finish(Outcome::Failure).now().unwrap();
        probes += 1;
        assert!(probes < 100);
    }
    assert_eq!(changes(), ["stock: half-open to open"]);
}

#[test]
fn a_person_who_forces_a_breaker_is_told_and_so_is_each_key() {
    let (gate, told) = gate(vec![by_user("stock", breaker())], &ManualClock::default());
    let (set, request) = (gate.policies(), ann());
    let plan = set.plan(&request, None);
    let charge = plan.charges().next().unwrap();
    let forced = Forced::new(Force::Open, None, "upgrade");
    gate.keys().handle_breaker(None, &charge, Handling::Force(&forced)).now().unwrap();
    assert_eq!(told.take(), ["stock: a key's closed to forced-open"]);
    gate.keys().handle_breaker(None, &charge, Handling::Look).now().unwrap();
    assert!(told.take().is_empty());
}

#[test]
fn a_limit_that_its_law_moves_is_told_whatever_store_keeps_it() {
    let aimd = Quota::from(AdaptiveConcurrency::new(Adaptive::Aimd(Aimd::default())));
    let policies = || PolicySet::new(vec![policy("places", aimd.clone())]).unwrap();
    let gates = [
        Gate::new(policies(), MemoryStore::with_capacity(100).unwrap()),
        Gate::new(policies(), OnTheSpot(CasStore::new(Bytes::default()))),
    ];
    for gate in gates {
        let told = Arc::new(Told::default());
        let gate = gate.with_clock(ManualClock::default()).with_observer(Arc::clone(&told));
        // AIMD begins at 20 and grows where more than half of the places are in use.
        let mut many: Vec<_> =
            (0..15).map(|_| gate.admit(&ann()).now().unwrap().admitted().unwrap()).collect();
        told.take();
        many.pop().unwrap().finish(Outcome::Success).now().unwrap();
        assert_eq!(told.take(), ["places: 20 to 21 places"]);
    }
}

#[test]
fn a_request_over_two_stores_is_told_once() {
    let mut local = policy("here", breaker());
    local.share = Some(Share::Local);
    let told = Arc::new(Told::default());
    let there = policy("there", Quota::per_hour(3).gcra().unwrap());
    let gate =
        Gate::new(PolicySet::new(vec![local, there]).unwrap(), MemoryStore::with_capacity(100).unwrap())
            .with_store(Share::Local, MemoryStore::with_capacity(100).unwrap())
            .with_clock(ManualClock::default())
            .with_observer(Arc::clone(&told));
    for _ in 0..2 {
        gate.admit(&ann()).now().unwrap().admitted().unwrap().finish(Outcome::Failure).now().unwrap();
    }
    let both = ["here: limit 0 allows 1", "there: limit 0 allows 1"].map(str::to_owned);
    let change = ["here: closed to open".to_owned()];
    assert_eq!(told.take(), [&both[..], &both[..], &change[..]].concat());
    assert!(!gate.check(&ann()).now().unwrap().allowed);
    assert_eq!(told.take(), ["here: limit 0 refuses 1"]);
}
