//! Tickets are extended in one step: what needs several is refused, and then nothing has changed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::policy::Share;
use tidegate::store::{Caps, Executed, Execution, Fallback, Occupancy, PlainStore, Step};

use super::*;

const PLACE: Duration = Duration::from_secs(30);

/// A rate by caller, and a place: in a store that nodes share if `place` says so.
fn rate_and_place(rate: Option<Share>, place: Option<Share>) -> PolicySet {
    let mut requests = Policy::new("requests", Limit::new(Quota::per_hour(100).gcra().unwrap(), "100/h"));
    requests.by = vec!["user".to_owned()];
    requests.share = rate;
    let mut work = Policy::new("work", Limit::new(Quota::concurrency(2, PLACE).unwrap(), "concurrency 2"));
    work.share = place;
    PolicySet::new(vec![requests, work]).unwrap()
}

fn caller() -> Descriptor<'static> {
    Descriptor::new().with("user", "ann")
}

fn held(gate: &Gate) -> OpenTicket {
    let admission = gate.admit(&caller()).now().unwrap().admitted().unwrap();
    open(gate, &admission.into_ticket(&keys(), TTL).unwrap()).unwrap()
}

/// Units and places in use, of each policy.
fn in_use(gate: &Gate) -> Vec<u64> {
    let decision = gate.check(Check::of(&caller()).peek()).now().unwrap();
    let standings = decision.limits.iter().map(|limit| limit.decision.standing);
    standings.map(|standing| standing.limit - standing.remaining).collect()
}

/// Reports whether an extension is refused for a reason.
fn is_refused(gate: &Gate, ticket: &OpenTicket, why: &str) -> bool {
    let error = gate.tickets().extend(ticket, &keys(), TTL, None).now().unwrap_err();
    matches!(error, TicketError::NotExtended { .. }) && error.to_string().contains(why)
}

/// Stores of one tag each, like the machines of a cluster.
#[derive(Debug, Default)]
struct Shards(Mutex<HashMap<u64, PlainStore>>);

impl Store for Shards {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.0.lock().entry(step.tag).or_default().execute_into(step, out)
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.one_tag = true;
        caps
    }
}

/// Of two stores, and of two tags of one: the place was held there, and the rate was settled elsewhere.
#[test]
fn a_ticket_of_several_steps_is_not_extended_and_stays_whole() {
    let clock = ManualClock::default();
    let two_stores = |rate, place| {
        let gate = Gate::new(rate_and_place(rate, place), Arc::new(PlainStore::default()));
        gate.with_store(Share::Central, Arc::new(PlainStore::default()))
    };
    let two_tags = Gate::new(rate_and_place(None, None), Arc::new(Shards::default()));
    let central = Some(Share::Central);
    for gate in [two_stores(None, central), two_stores(central, None), two_tags] {
        let gate = gate.with_clock(clock.clone());
        for spent in [false, true] {
            let ticket = held(&gate);
            if spent {
                gate.tickets().settle(&ticket, Part::Spent, Outcome::Ignored, |_| Some(0)).now().unwrap();
            }
            clock.advance(PLACE - Duration::from_secs(1));
            let before = in_use(&gate);
            assert!(is_refused(&gate, &ticket, "give these places a `ttl`"));
            assert_eq!(in_use(&gate), before);
            let part = if spent { Part::Outcome } else { Part::All };
            gate.tickets().settle(&ticket, part, Outcome::Success, |_| Some(0)).now().unwrap();
            assert_eq!(in_use(&gate), [0, 0], "what was spent was settled before: {spent}");

            // A place that is not extended lapses when it was due to.
            let other = held(&gate);
            assert!(is_refused(&gate, &other, "give these places a `ttl`"));
            clock.advance(PLACE + PLACE / 500);
            assert_eq!(in_use(&gate)[1], 0);
            gate.tickets().settle(&other, Part::All, Outcome::Success, |_| Some(0)).now().unwrap();
        }
    }
}

/// One store decides two words of `share:`, so there is one step.
#[test]
fn a_ticket_of_one_step_is_extended_whatever_its_policies_say() {
    let clock = ManualClock::default();
    let set = rate_and_place(Some(Share::Central), None);
    let gate =
        Gate::new(set, PlainStore::default()).with_own_store_for(Share::Central).with_clock(clock.clone());
    let ticket = held(&gate);
    clock.advance(PLACE - Duration::from_secs(1));
    let extended =
        open(&gate, &gate.tickets().extend(&ticket, &keys(), TTL, None).now().unwrap().ticket).unwrap();
    clock.advance(PLACE - Duration::from_secs(1));
    assert_eq!(in_use(&gate)[1], 1);
    gate.tickets().settle(&extended, Part::All, Outcome::Success, |_| Some(0)).now().unwrap();
    assert_eq!(in_use(&gate), [0, 0]);
}

/// A mark would be made in the engine, and what was charged in its place would end here: by both tickets.
#[test]
fn a_ticket_with_a_charge_made_while_the_store_was_away_is_not_extended() {
    let clock = ManualClock::default();
    let engine = Engine::default();
    let central = Fallback::around(OnTheSpot(CasStore::new(engine.clone())), clock.clone()).build();
    let gate = Gate::new(rate_and_place(Some(Share::Central), None), PlainStore::default())
        .with_store(Share::Central, Arc::new(central))
        .with_clock(clock.clone());
    engine.fail_next();
    let ticket = held(&gate);
    let before = in_use(&gate);
    assert!(is_refused(&gate, &ticket, "while the store was away"));
    assert_eq!(in_use(&gate), before);
    gate.tickets().settle(&ticket, Part::All, Outcome::Success, |_| Some(0)).now().unwrap();
    assert_eq!(in_use(&gate), [0, 0]);
}
