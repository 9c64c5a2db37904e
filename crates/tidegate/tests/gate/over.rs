//! Limits with `over`, which let requests pass and report them: what a gate reports, and the priority that it decides
//! by.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, Check, GateDecision};
use tidegate::policy::{Among, Descriptor, KeepFor, Kept, Limit, Mode, Over, Policy, PolicySet, Share};
use tidegate::priority::{Criticality, Priority};
use tidegate::{Cost, Gate, Quota};

use crate::engine::{Engine, Mood};
use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

fn limit(name: &str, count: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::per_hour(count).gcra().unwrap(), name))
}

fn over(name: &str, count: u64, over: Over) -> Policy {
    let mut policy = limit(name, count);
    policy.over = over;
    policy
}

/// Ten an hour, with half of them kept for critical requests.
fn shared() -> Policy {
    let mut all = limit("all", 10);
    all.limits[0].keep_for = KeepFor::default().with(Critical, Kept::Units(5));
    all
}

fn gate(policies: Vec<Policy>) -> Gate {
    let set = PolicySet::new(policies).unwrap();
    Gate::in_memory(set, 1000).unwrap().with_clock(ManualClock::default())
}

/// One policy marks from the second request on, the other demotes from the third on.
fn soft() -> Vec<Policy> {
    vec![over("soft", 1, Over::Mark), over("heavy", 2, Over::Demote { to: None }), shared()]
}

fn told(decision: &GateDecision) -> (Vec<String>, Criticality, bool) {
    let names = decision.over().map(|(name, _)| name.to_owned()).collect();
    (names, decision.priority.level(), decision.allowed)
}

fn expected() -> Vec<(Vec<String>, Criticality, bool)> {
    let both = || vec!["soft".to_owned(), "heavy".to_owned()];
    vec![
        (vec![], Critical, true),
        (vec!["soft".to_owned()], Critical, true),
        (both(), SheddablePlus, true),
        (both(), SheddablePlus, true),
        (both(), SheddablePlus, true),
        (both(), SheddablePlus, false),
    ]
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Regression: a gate let such requests pass without a report and at their original priority, so the kept half went to
/// the caller that asked most.
#[test]
fn all_checks_say_who_is_over_and_decide_by_what_priority_is_left() {
    let request = Descriptor::new();
    let check = Check::of(&request);
    let six = || 0..6;

    let plain = gate(soft());
    assert_eq!(six().map(|_| told(&plain.check(check).now().unwrap())).collect::<Vec<_>>(), expected());
    let peek = plain.check(check.peek()).now().unwrap();
    assert_eq!((told(&peek), peek.limits[2].kept_back), (expected().pop().unwrap(), 5));

    let waiting = gate(soft());
    let answers = six().map(|_| told(&block_on(waiting.check(check)).unwrap()));
    assert_eq!(answers.collect::<Vec<_>>(), expected());

    let charging = gate(soft());
    let mut charged = Charged::default();
    let answers = six().map(|_| {
        let told = told(&charging.charge(check, &mut charged).now().unwrap());
        assert_eq!(charged.is_empty(), !told.2);
        told
    });
    assert_eq!(answers.collect::<Vec<_>>(), expected());

    let admitting = gate(soft());
    let answers = six().map(|_| told(admitting.admit(check).now().unwrap().decision()));
    assert_eq!(answers.collect::<Vec<_>>(), expected());

    let of_each = |answers: Vec<Result<GateDecision, _>>| {
        answers.into_iter().map(|one| told(&one.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of_each(gate(soft()).check_each(&[check; 6]).now()), expected());
    assert_eq!(of_each(block_on(gate(soft()).check_each(&[check; 6]))), expected());
    let bounded = gate(soft());
    let mut kept = Vec::new();
    let answers = of_each(block_on(bounded.check_each(&[check; 6]).charge(&mut kept).most_limits(4)));
    assert_eq!((answers, kept.len()), (expected()[..2].to_vec(), 2), "two meet six limits");

    let together = gate(soft());
    let answers = six().map(|_| told(&together.check_together(&[check]).now().unwrap().decisions[0]));
    assert_eq!(answers.collect::<Vec<_>>(), expected());
}

/// A list of checks is sent to an engine one by one, because each decision depends on those before it.
#[test]
fn an_engine_decides_the_same() {
    let engine = Engine::default();
    engine.be(Mood::Later);
    let set = || PolicySet::new(soft()).unwrap();
    let request = Descriptor::new();
    let gate = Gate::new(set(), engine.clone()).with_clock(ManualClock::default());
    let checks = [Check::of(&request); 6];
    let answers = block_on(gate.check_each(&checks));
    assert_eq!(answers.iter().map(|one| told(one.as_ref().unwrap())).collect::<Vec<_>>(), expected());

    // Policies in two stores: the engine's policies demote the request, and the local store's policy keeps the part.
    let mut policies = soft();
    policies[2].share = Some(Share::Local);
    let local = tidegate::store::MemoryStore::with_capacity(100).unwrap();
    let set = PolicySet::new(policies).unwrap();
    let engine = Engine::default();
    let gate =
        Gate::new(set, engine.clone()).with_store(Share::Local, local).with_clock(ManualClock::default());
    let answers = (0..6).map(|_| told(&block_on(gate.check(&request)).unwrap()));
    let mut expected = expected();
    expected[5].0.clear();
    assert_eq!(answers.collect::<Vec<_>>(), expected, "of the last, the engine was not asked any more");

    // While the engine fails, nothing is demoted, and the limits that it decides have no answer.
    engine.be(Mood::Errs);
    assert!(block_on(gate.check(&request)).is_err());
}

#[test]
fn each_policy_takes_a_level_and_only_those_that_are_asked() {
    let two = vec![
        over("one", 1, Over::Demote { to: None }),
        over("other", 1, Over::Demote { to: None }),
        limit("all", 100),
    ];
    let gate = gate(two);
    let request = Descriptor::new();
    let most = Check::of(&request).priority(Priority::of(CriticalPlus));
    let level = |check| gate.check(check).now().unwrap().priority.level();
    assert_eq!((level(most), level(most)), (CriticalPlus, SheddablePlus));
    let one = Among::new(gate.policies(), [0, 2]);
    assert_eq!(level(most.among(&one)), Critical);
    let none = Among::new(gate.policies(), [2]);
    assert_eq!(level(most.among(&none)), CriticalPlus);
    let low = Check::of(&request).priority(Priority::of(Sheddable));
    assert_eq!(level(low), Sheddable, "never raised");
}

#[test]
fn policies_in_shadow_and_shadow_limits_lower_nothing() {
    let mut shadow = over("shadow", 1, Over::Demote { to: None });
    shadow.mode = Mode::Shadow;
    let mut tried = over("tried", 100, Over::Demote { to: None });
    tried.shadow_limit = Some(Limit::new(Quota::per_hour(1).gcra().unwrap(), "1/h"));
    let gate = gate(vec![shadow, tried]);
    let request = Descriptor::new();
    for _ in 0..3 {
        assert_eq!(told(&gate.check(&request).now().unwrap()), (vec![], Critical, true));
    }
}

#[test]
fn a_request_of_a_call_is_looked_at_by_itself() {
    let mut heavy = over("heavy", 2, Over::Demote { to: Some(Sheddable) });
    heavy.by = vec!["user.id".to_owned()];
    let gate = gate(vec![heavy, limit("all", 100)]);
    let (ann, bob) = (Descriptor::new().with("user.id", "ann"), Descriptor::new().with("user.id", "bob"));
    assert!(gate.check(Check::of(&ann).cost(2)).now().unwrap().allowed);
    let answer = gate.check_together(&[Check::of(&ann), Check::of(&bob)]).now().unwrap();
    let levels: Vec<_> = answer.decisions.iter().map(|decision| decision.priority.level()).collect();
    assert_eq!((answer.allowed, levels), (true, vec![Sheddable, Critical]));
    let lines = answer.decisions[0].limits.iter();
    assert_eq!(lines.map(|line| line.cost).collect::<Vec<_>>(), [Cost::ONE; 2]);
}

#[cfg(feature = "http")]
#[test]
fn the_next_hop_is_told_in_place_of_what_a_caller_sent() {
    use http::{HeaderMap, HeaderValue};
    use tidegate::http_answer::over;

    let gate = gate(soft());
    let request = Descriptor::new();
    let sent = || {
        let names = [over::MARKED, over::DEMOTED, over::PRIORITY];
        names.into_iter().map(|name| (name, HeaderValue::from_static("forged"))).collect::<HeaderMap>()
    };
    let mut headers = sent();
    over::replace(&gate.check(&request).now().unwrap(), &mut headers);
    assert!(headers.is_empty());
    let _ = gate.check(&request).now().unwrap();
    headers = sent();
    over::replace(&gate.check(&request).now().unwrap(), &mut headers);
    let read = |name| headers[&name].to_str().unwrap();
    assert_eq!([over::MARKED, over::DEMOTED, over::PRIORITY].map(read), ["soft", "heavy", "sheddable-plus"]);
    let plain = self::gate(vec![shared()]);
    headers = sent();
    over::replace(&plain.check(&request).now().unwrap(), &mut headers);
    assert_eq!(headers.len(), 3, "of a proxy in front, perhaps");
}
