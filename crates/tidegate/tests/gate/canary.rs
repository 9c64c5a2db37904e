//! A canary decides about a share of a policy's keys, and nothing else changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, GateDecision, Part};
use tidegate::policy::{
    Canary, CanaryError, Choice, CostRule, Descriptor, Limit, Mode, OnCostError, Over, Policy, PolicySet,
    PolicySetError, Portion, Terms,
};
use tidegate::{Gate, Outcome, Quota, Tick};

fn limit(count: u64) -> Limit {
    Limit::new(Quota::per_hour(count).gcra().unwrap(), format!("gcra {count}/h"))
}

/// Ten an hour for each user, and four for half of them.
fn tried() -> Policy {
    let mut policy = Policy::new("per-user", limit(10)).by(["user.id"]);
    policy.canary = Some(Canary::new(limit(4), Portion::of(0.5), Duration::from_secs(7200)));
    policy
}

fn set(policies: Vec<Policy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

fn gate(policies: Vec<Policy>) -> Gate {
    let clock = ManualClock::at(Tick::from_secs(1_800_000_000));
    Gate::in_memory(set(policies), 10_000).unwrap().with_clock(clock)
}

fn user(id: u32) -> Descriptor<'static> {
    Descriptor::new().with("user.id", id.to_string())
}

/// Returns the first users whose keys are the canary's, or not.
fn users(set: &PolicySet, canary: bool) -> impl Iterator<Item = u32> {
    (0..).filter(move |id| set.canary_decides(0, &user(*id)) == canary)
}

fn share(set: &PolicySet, share: f64) {
    let text = set.policies()[0].canary.as_ref().unwrap().text.clone();
    assert!(set.set_canary_share("per-user", &text, Portion::of(share)));
}

/// Returns what is left of the first limit, and of how many; `None` for a refused request.
fn left(gate: &Gate, request: &Descriptor<'_>) -> Option<(u64, u64)> {
    let decision = gate.check(request).now().unwrap();
    let standing = decision.limits[0].decision.standing;
    decision.allowed.then_some((standing.remaining, standing.limit))
}

#[test]
fn every_set_chooses_the_same_keys_and_a_larger_share_has_them_too() {
    let (one, other) = (set(vec![tried()]), set(vec![Policy::new("all", limit(9)), tried()]));
    let chosen = |at: usize, set: &PolicySet| -> Vec<u32> {
        (0..2000).filter(|id| set.canary_decides(at, &user(*id))).collect()
    };
    let half = chosen(0, &one);
    assert!((900..1100).contains(&half.len()), "{}", half.len());
    assert_eq!(chosen(1, &other), half);
    assert!(chosen(0, &other).is_empty(), "that policy has none");
    share(&one, 0.05);
    let few = chosen(0, &one);
    assert!((60..140).contains(&few.len()), "{}", few.len());
    assert!(few.iter().all(|id| half.contains(id)));
    share(&one, 1.0);
    assert_eq!(chosen(0, &one).len(), 2000);
    share(&one, 0.0);
    assert!(chosen(0, &one).is_empty());
}

#[test]
fn its_limit_decides_in_the_place_of_the_first_and_the_answer_says_so() {
    let mut policy = tried();
    policy.limits.push(limit(8));
    policy.shadow_limit = Some(limit(2));
    let gate = gate(vec![policy]);
    let policies = gate.policies();
    let own = user(users(&policies, true).next().unwrap());
    let indices =
        |decision: &GateDecision| -> Vec<usize> { decision.limits.iter().map(|line| line.limit).collect() };
    let decision = gate.check(&own).now().unwrap();
    assert_eq!(indices(&decision), [3, 1, 2]);
    let words = &decision.policies.policies()[0];
    assert!(words.is_canary(3) && !words.is_canary(0) && words.is_shadow_limit(2));
    assert_eq!(words.limit(3).unwrap().terms.label, "gcra 4/h");
    assert_eq!(decision.quota_of(&decision.limits[0], &own).unwrap().0.capacity(), 4);
    for _ in 0..3 {
        assert!(gate.check(&own).now().unwrap().allowed);
    }
    let refused = gate.check(&own).now().unwrap();
    assert!(!refused.allowed);
    assert_eq!(refused.limits[refused.binding.unwrap()].limit, 3);
    let told = gate.explain(&own).now().unwrap();
    assert!(told.reasons[0].limits[0].canary && !told.reasons[0].limits[1].canary);
    assert!(told.to_string().contains("DENIED      canary, gcra 4/h: needs 1, has 0 of 4"), "{told}");
    let other = user(users(&policies, false).next().unwrap());
    assert_eq!(indices(&gate.check(&other).now().unwrap()), [0, 1, 2]);
}

#[test]
fn a_key_that_moves_keeps_what_it_has_spent() {
    let gate = gate(vec![tried()]);
    let policies = gate.policies();
    let own = user(users(&policies, true).next().unwrap());
    share(&policies, 0.0);
    for remaining in [9, 8, 7] {
        assert_eq!(left(&gate, &own), Some((remaining, 10)));
    }
    share(&policies, 0.5);
    assert_eq!(left(&gate, &own), Some((0, 4)));
    assert_eq!(left(&gate, &own), None);
    share(&policies, 0.0);
    assert_eq!(left(&gate, &own), Some((5, 10)));
    // The store keeps both limits of a key in one place, which a reset finds under either.
    assert_eq!(policies.key(0, 0, &own), policies.key(0, 1, &own));
}

#[test]
fn a_refused_request_has_spent_nothing_anywhere() {
    let gate = gate(vec![tried(), Policy::new("all", limit(6))]);
    let policies = gate.policies();
    let mut users = users(&policies, true);
    let mut next = || user(users.next().unwrap());
    let (one, other) = (next(), next());
    for _ in 0..4 {
        assert!(gate.check(&one).now().unwrap().allowed);
    }
    let remaining = |decision: &GateDecision| -> Vec<u64> {
        decision.limits.iter().map(|line| line.decision.standing.remaining).collect()
    };
    for _ in 0..2 {
        let refused = gate.check(&one).now().unwrap();
        assert!(!refused.allowed && remaining(&refused) == [0, 2], "refused by the canary: {refused:?}");
    }
    for left in [[3, 1], [2, 0]] {
        assert_eq!(remaining(&gate.check(&other).now().unwrap()), left);
    }
    let refused = gate.check(&other).now().unwrap();
    assert!(!refused.allowed && remaining(&refused) == [2, 0], "refused by the other policy: {refused:?}");
}

#[test]
fn what_is_settled_after_a_key_has_moved_counts_under_the_limit_that_it_has_now() {
    let gate = gate(vec![tried()]);
    let policies = gate.policies();
    let own = user(users(&policies, true).next().unwrap());
    let mut charged = Charged::default();
    assert!(gate.charge(&own, &mut charged).now().unwrap().allowed);
    let lines: Vec<_> = charged
        .keyed_lines()
        .map(|(line, values)| (line.limit, values.map(|value| value.unwrap().to_owned()).collect::<Vec<_>>()))
        .collect();
    assert_eq!(lines, [(1, vec![own.value("user.id").unwrap().to_owned()])]);
    share(&policies, 0.0);
    let finished = gate.finish(&charged, Part::All, Outcome::Success, |_| Some(3)).now().unwrap();
    let standing = finished[0].standing;
    assert_eq!(standing.limit - standing.remaining, 3, "{standing:?}");
    assert_eq!(left(&gate, &own), Some((6, 10)));
}

#[test]
fn keys_with_rates_of_their_own_have_those_of_the_canary() {
    let mut policy = tried();
    let vip = Terms { quota: limit(90).terms.quota, label: "gcra 90/h".to_owned() };
    let everybody = (0..200).map(|id: u32| (id.to_string(), vip.clone())).collect();
    let choice = Choice { by: "user.id".to_owned(), values: everybody };
    policy.canary.as_mut().unwrap().limit.overrides = vec![choice];
    let gate = gate(vec![policy]);
    let policies = gate.policies();
    assert_eq!(left(&gate, &user(users(&policies, true).next().unwrap())), Some((89, 90)));
    assert_eq!(left(&gate, &user(users(&policies, false).next().unwrap())), Some((9, 10)));
}

#[test]
fn a_cost_that_takes_the_whole_limit_takes_that_of_the_canary() {
    let mut policy = tried();
    (policy.cost, policy.on_cost_error) =
        (Some(CostRule::Attribute("units".to_owned())), OnCostError::WholeLimit);
    let set = set(vec![policy]);
    for (canary, units) in [(true, 4), (false, 10)] {
        let request = user(users(&set, canary).next().unwrap());
        assert_eq!(set.plan(&request, None).lines[0].cost.units(), units);
    }
}

#[test]
fn a_set_with_the_same_canary_goes_on_with_its_share_and_another_begins_anew() {
    let gate = gate(vec![tried()]);
    share(&gate.policies(), 0.0);
    let mut changed = tried();
    changed.near_limit = 50;
    gate.replace(set(vec![changed.clone()]));
    assert_eq!(gate.policies().canary_share(0), Some(Portion::NONE), "stopped, and it stays so");
    changed.canary.as_mut().unwrap().text.push('!');
    gate.replace(set(vec![changed]));
    assert_eq!(gate.policies().canary_share(0), Some(Portion::of(0.5)));
    assert!(!gate.policies().set_canary_share("per-user", "another text", Portion::NONE));
    assert!(!gate.policies().set_canary_share("per-ip", "another text", Portion::NONE));
    gate.replace(set(vec![Policy::new("per-user", limit(10)).by(["user.id"])]));
    assert_eq!(gate.policies().canary_share(0), None);
}

#[test]
fn a_policy_that_cannot_have_a_canary_is_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut Policy)| {
        let mut policy = tried();
        change(&mut policy);
        match PolicySet::new(vec![policy]) {
            Err(PolicySetError::Canary { error, .. }) => error,
            other => panic!("{other:?}"),
        }
    };
    let canary = |change: &dyn Fn(&mut Canary)| refused(&|policy| change(policy.canary.as_mut().unwrap()));
    assert_eq!(refused(&|policy| policy.by.clear()), CanaryError::OneKey);
    assert_eq!(refused(&|policy| policy.mode = Mode::Shadow), CanaryError::Shadow);
    let lasts = Duration::from_secs(60);
    assert_eq!(refused(&|policy| policy.over = Over::Block { lasts }), CanaryError::Blocks);
    let unlimited = || Limit::of(Terms::unlimited());
    assert_eq!(refused(&|policy| policy.limits = vec![unlimited()]), CanaryError::Unlimited);
    assert_eq!(canary(&|canary| canary.limit = unlimited()), CanaryError::Unlimited);
    for share in [0.0009, 0.51].map(Portion::of) {
        assert_eq!(canary(&|canary| canary.share = share), CanaryError::Share { share });
    }
    for lasts in [59, 30 * 86_400 + 1].map(Duration::from_secs) {
        assert_eq!(canary(&|canary| canary.lasts = lasts), CanaryError::Lasts { lasts });
    }
    let window = Limit::new(Quota::per_hour(4).fixed_window().unwrap(), "fixed-window 4/h");
    let other = canary(&|canary| canary.limit = window.clone());
    assert!(matches!(other, CanaryError::OtherAlgorithm { .. }), "{other}");
    let places = Limit::new(Quota::concurrency(4, lasts).unwrap(), "concurrency 4");
    let guard = canary(&|canary| canary.limit = places.clone());
    assert!(matches!(guard, CanaryError::Guard { .. }), "{guard}");
}
