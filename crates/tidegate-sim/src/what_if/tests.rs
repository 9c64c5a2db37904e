use proptest::prelude::*;
use std::sync::Arc;
use tidegate::limiter::Rate;
use tidegate::policy::{Limit, PolicySet};

use super::*;
use crate::replay::{Replay, ReplayOptions};

fn policy(by: &[&str]) -> Policy {
    let mut policy = Policy::new("tried", Limit::new(Quota::per_second(1).gcra().unwrap(), "any"));
    policy.by = by.iter().map(|name| (*name).to_owned()).collect();
    policy
}

fn candidate(count: u64, seconds: u64, burst: u64) -> Candidate {
    Candidate { rate: Rate::new(count, Duration::from_secs(seconds)).unwrap(), burst }
}

/// Requests denied, keys hit, and each of these keys with its denied requests.
type Denials = (u64, u64, Vec<(String, u64)>);

/// Decides by real gates, one per candidate.
fn by_gates(candidates: &[Candidate], requests: &[(u64, u8, u64)]) -> Vec<Denials> {
    let set = |candidate: &Candidate| {
        let mut policy = policy(&["client.ip"]);
        let Candidate { rate, burst } = *candidate;
        let quota = Quota::per(rate.count(), rate.period()).burst(burst).gcra().unwrap();
        policy.limits = vec![Limit::new(quota, "gcra")];
        ("set".to_owned(), Arc::new(PolicySet::new(vec![policy]).unwrap()))
    };
    let sets = candidates.iter().map(set).collect();
    let options = ReplayOptions { bins: 2, store_keys: 1_000, ..ReplayOptions::default() };
    let mut replay = Replay::new(sets, options).unwrap();
    for (at, client, cost) in requests {
        let name = client.to_string();
        let request = Descriptor::new().with("client.ip", &*name);
        replay.feed_request(Tick::from_nanos(*at), &request, Cost::new(*cost));
    }
    let outcomes = replay.outcomes();
    let each = outcomes.iter().enumerate().map(|(run, outcome)| {
        let policy = &outcome.policies[0];
        let peaks = replay.policy_peaks(run, 0).unwrap();
        let mut hit: Vec<_> =
            peaks.top(1_000, |key| key.denied).into_iter().map(|key| (key.key, key.denied)).collect();
        hit.retain(|(_, denied)| *denied > 0);
        (policy.denied, policy.keys_hit, hit)
    });
    each.collect()
}

fn tried(what_if: &WhatIf) -> Vec<Denials> {
    let hit = |outcome: &WhatIfOutcome| outcome.hit.iter().map(|hit| (hit.key.clone(), hit.denied)).collect();
    what_if.outcomes().iter().map(|outcome| (outcome.denied, outcome.keys_hit, hit(outcome))).collect()
}

fn feed(what_if: &mut WhatIf, requests: &[(u64, u8, u64)]) {
    for (at, client, cost) in requests {
        let name = client.to_string();
        let request = Descriptor::new().with("client.ip", &*name);
        what_if.ask(Tick::from_nanos(*at), &request, Cost::new(*cost), *client == 1);
    }
}

proptest! {
    /// The module's promise: the same decisions as a gate per candidate.
    #[test]
    fn the_same_as_a_gate_each(
        limits in prop::collection::vec((1u64..50, prop::sample::select(vec![1u64, 7, 60]), 1u64..12), 1..12),
        gaps in prop::collection::vec((prop::sample::select(vec![0u64, 1, 999_999_999, 1_000_000_000, 3_000_000_001, 90_000_000_000]), 0u8..4, 1u64..4), 1..150),
    ) {
        let candidates: Vec<_> = limits.iter().map(|(count, seconds, burst)| candidate(*count, *seconds, *burst)).collect();
        let mut at = 0;
        let requests: Vec<_> = gaps.iter().map(|(gap, client, cost)| { at += gap; (at, *client, *cost) }).collect();
        let mut what_if = WhatIf::new(&policy(&["client.ip"]), &candidates, WhatIfOptions { named: 100, ..WhatIfOptions::default() }).unwrap();
        feed(&mut what_if, &requests);
        prop_assert_eq!(tried(&what_if), by_gates(&candidates, &requests));
    }

    /// Forgetting keys that are as good as new must not change any decision.
    #[test]
    fn forgetting_idle_keys_changes_no_decision(
        gaps in prop::collection::vec((0u64..40, 0u8..40), 1..300),
    ) {
        let candidates = [candidate(60, 60, 1), candidate(60, 60, 3), candidate(10, 1, 2)];
        let mut at = 0;
        let requests: Vec<_> = gaps.iter().map(|(gap, client)| { at += gap * 100_000_000; (at, *client, 1) }).collect();
        let of = |keys| {
            let options = WhatIfOptions { keys, named: 100, ..WhatIfOptions::default() };
            let mut what_if = WhatIf::new(&policy(&["client.ip"]), &candidates, options).unwrap();
            feed(&mut what_if, &requests);
            what_if
        };
        let (small, large) = (of(16), of(1_000));
        if small.evicted() == 0 {
            prop_assert_eq!(tried(&small), tried(&large));
        }
        prop_assert!(!large.has_forgotten());
    }
}

#[test]
fn who_is_hit_is_named_with_what_is_known() {
    let mut what_if = WhatIf::new(
        &policy(&["client.ip"]),
        &[candidate(1, 60, 2), candidate(1, 60, 3)],
        WhatIfOptions { named: 1, ..WhatIfOptions::default() },
    )
    .unwrap();
    let second = |second: u64, client| (second * 1_000_000_000, client, 1);
    feed(
        &mut what_if,
        &[
            second(0, 1),
            second(0, 1),
            second(1, 1),
            second(1, 2),
            second(2, 2),
            second(2, 2),
            second(3, 2),
            second(99, 3),
        ],
    );
    let [strict, lenient] = &what_if.outcomes()[..] else { panic!() };
    assert_eq!((strict.denied, strict.keys_hit, strict.keys_hit_signed_in), (3, 2, 1));
    assert!(
        (strict.denied_share - 3.0 / 8.0).abs() < 1e-9 && (strict.keys_hit_share - 2.0 / 3.0).abs() < 1e-9
    );
    let first = KeyHit { key: "2".to_owned(), denied: 2, requests: 4, peak: 4, signed_in: false };
    assert_eq!(strict.hit, [first], "the one denied most, and no more names than asked for");
    assert_eq!((lenient.denied, lenient.keys_hit, lenient.keys_hit_signed_in), (1, 1, 0));
    assert_eq!((what_if.requests(), what_if.keys()), (8, Distinct::Exactly(3)));
}

#[test]
fn when_more_keys_are_in_use_than_there_is_room_for_it_says_so() {
    let options = WhatIfOptions { keys: 10, ..WhatIfOptions::default() };
    let mut what_if = WhatIf::new(&policy(&["client.ip"]), &[candidate(1, 60, 5)], options).unwrap();
    let crowd: Vec<_> =
        (0..200u8).flat_map(|client| [(u64::from(client), 255, 1), (u64::from(client), client, 1)]).collect();
    feed(&mut what_if, &crowd);
    assert!(what_if.evicted() > 0 && what_if.keys.iter().count() <= 10);
    let outcome = &what_if.outcomes()[0];
    assert_eq!((outcome.denied, outcome.hit[0].key.as_str()), (195, "255"), "the busy one was not forgotten");
    let Distinct::About(about) = what_if.keys() else { panic!("{:?}", what_if.keys()) };
    assert!(about.abs_diff(201) < 10, "{about}");
}

#[test]
fn the_key_the_match_and_the_cost_are_the_policys() {
    let mut tried = policy(&["client.ip"]);
    tried.matching = tidegate::policy::Match::any().path("/api/**").unwrap();
    tried.cost = Some(tidegate::policy::CostRule::Fixed(Cost::new(5).unwrap()));
    let mut what_if = WhatIf::new(&tried, &[candidate(1, 60, 9)], WhatIfOptions::default()).unwrap();
    for (client, path) in [("2001:db8::1", "/api/a"), ("2001:db8::2", "/api/b"), ("2001:db8::3", "/")] {
        let request = Descriptor::new().with("client.ip", client).with("request.path", path);
        what_if.ask(Tick::EPOCH, &request, None, false);
    }
    let outcome = &what_if.outcomes()[0];
    assert_eq!((what_if.requests(), outcome.denied, outcome.hit[0].key.as_str()), (2, 1, "2001:db8::/64"));
}

#[test]
fn what_cannot_be_tried_is_refused() {
    let options = WhatIfOptions::default();
    let many = vec![candidate(1, 1, 1); MAX_CANDIDATES + 1];
    assert!(matches!(WhatIf::new(&policy(&[]), &many, options), Err(WhatIfError::TooMany { count: 1_025 })));
    assert!(matches!(WhatIf::new(&policy(&[]), &[candidate(1, 1, 0)], options), Err(WhatIfError::Quota(_))));
    let slow = candidate(1, 86_400, 1 << 40);
    assert!(matches!(WhatIf::new(&policy(&[]), &[slow], options), Err(WhatIfError::TooSlow { .. })));
    assert!(matches!(WhatIf::new(&policy(&["a", "a"]), &[], options), Err(WhatIfError::Policy(_))));
    for charge in [ChargeOn::Failure, ChargeOn::Always] {
        let mut otherwise = policy(&[]);
        otherwise.charge = charge;
        assert!(matches!(WhatIf::new(&otherwise, &[], options), Err(WhatIfError::ChargesOtherwise { .. })));
    }
}
