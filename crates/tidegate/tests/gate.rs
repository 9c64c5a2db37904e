//! What follows a decision: a refund of a part, a report of a failure.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use tidegate::policy::{ChargeOn, CostRule, Descriptor, Limit, Policy, PolicySet};
use tidegate::{Cost, Gate, ManualClock, Quota, Report};

fn policy(name: &str, per_hour: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::per_hour(per_hour).sliding_log().unwrap(), name))
}

fn gate(policies: Vec<Policy>) -> Gate {
    Gate::in_memory(PolicySet::new(policies).unwrap(), 100).with_clock(ManualClock::default())
}

fn remaining(gate: &Gate, request: &Descriptor<'_>) -> Vec<u64> {
    let decision = gate.peek(request, None).unwrap();
    decision.limits.iter().map(|limit| limit.decision.standing.remaining).collect()
}

/// A policy with a cost of its own went by that in a refund too, whatever the caller asked back: three of ten gave ten back,
/// and who refunded one unit after each request was never limited.
#[test]
fn a_refund_of_a_part_gives_back_that_part_and_never_more_than_was_charged() {
    let mut export = policy("export", 100);
    export.cost = Some(CostRule::Fixed(Cost::new(10).unwrap()));
    let gate = gate(vec![policy("all", 100), export]);
    let request = Descriptor::new();
    let cost = |units| Cost::new(units);

    assert!(gate.check(&request, cost(4)).unwrap().allowed);
    assert_eq!(remaining(&gate, &request), [96, 90]);
    gate.refund(&request, cost(3)).unwrap();
    assert_eq!(remaining(&gate, &request), [99, 93]);

    assert!(gate.check(&request, cost(20)).unwrap().allowed);
    assert_eq!(remaining(&gate, &request), [79, 83]);
    gate.refund(&request, cost(20)).unwrap();
    assert_eq!(remaining(&gate, &request), [99, 93], "ten of twenty where only ten were charged");
}

/// Who tries many passwords at once has all of them checked before the first has failed. When one limit that was used up
/// kept the failure from the others, the account's three were all that the address was charged for a thousand guesses.
#[test]
fn a_failure_is_charged_to_each_limit_that_has_room_for_it() {
    let policies = [("account", 3), ("address", 100)].map(|(name, per_hour)| {
        let mut policy = policy(name, per_hour);
        policy.charge = ChargeOn::Failure;
        policy
    });
    let gate = gate(policies.into());
    let request = Descriptor::new();
    for _ in 0..10 {
        gate.report(&request, None, Report::Failure).unwrap();
    }
    assert_eq!(remaining(&gate, &request), [0, 90]);
    gate.report(&request, None, Report::Success).unwrap();
    assert_eq!(remaining(&gate, &request), [3, 100]);
}

/// Threads that keep decisions keep the policies they were made under, however many are kept and whatever replaces them.
#[test]
fn a_decision_keeps_its_policies_when_others_are_put_in_force() {
    let gate = gate(vec![policy("before", 100)]);
    let kept: Vec<_> = (0..20).map(|_| gate.check(&Descriptor::new(), None).unwrap()).collect();
    let copy = kept[0].clone();
    gate.replace(PolicySet::new(vec![policy("after", 100)]).unwrap());
    let after = gate.check(&Descriptor::new(), None).unwrap();
    let name = |decision: &tidegate::GateDecision| decision.policies.policies()[0].name.clone();
    let names =
        std::thread::spawn(move || kept.iter().chain([&copy]).map(name).collect::<Vec<_>>()).join().unwrap();
    assert_eq!(names, vec!["before"; 21]);
    assert_eq!(name(&after), "after");
}
