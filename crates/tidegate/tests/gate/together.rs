//! Several checks in one call: all are charged or none is, and a limit that two of them meet is charged once for both.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, Check, Part, Together};
use tidegate::limiter::Retry;
use tidegate::policy::{Access, AccessEntry, AccessList, Descriptor, Limit, Policy, PolicySet, Share};
use tidegate::store::{CasStore, StoreError};
use tidegate::{Gate, Outcome, Quota};

use crate::byte_map::{Bytes, OnTheSpot};
use tidegate::store::conformance::Random;

const USERS: [&str; 3] = ["ann", "bob", "eve"];
const BURST: u64 = 12;

fn policy(name: &str, by: &[&str]) -> Policy {
    let quota = Quota::per_day(1).burst(BURST).gcra().unwrap();
    let mut policy = Policy::new(name, Limit::new(quota, "1/day burst 12"));
    policy.by = by.iter().map(|name| (*name).to_owned()).collect();
    policy
}

fn user(name: &str) -> Descriptor<'_> {
    Descriptor::new().with("user.id", name)
}

/// A limit for each user and a limit for all users; with `shared`, the second one is in a store of its own.
fn gate(shared: bool) -> Gate {
    let mut all = policy("all", &[]);
    all.share = shared.then_some(Share::Central);
    let gate = Gate::in_memory(PolicySet::new(vec![policy("user", &["user.id"]), all]).unwrap(), 100)
        .unwrap()
        .with_clock(ManualClock::default());
    if shared { gate.with_store(Share::Central, OnTheSpot(CasStore::new(Bytes::default()))) } else { gate }
}

fn left(gate: &Gate) -> [u64; 4] {
    let of = |name, limit: usize| {
        gate.check(Check::of(&user(name)).peek()).now().unwrap().limits[limit].decision.standing.remaining
    };
    [of("ann", 0), of("bob", 0), of("eve", 0), of("ann", 1)]
}

#[test]
fn calls_agree_with_a_plain_count() {
    for (seed, shared) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut random = Random::seeded(seed);
        for _ in 0..40 {
            let gate = gate(shared);
            let mut model = [BURST; 4];
            for _ in 0..12 {
                let asked: Vec<(usize, u64)> = (0..1 + random.below(4))
                    .map(|_| (random.below(3) as usize, 1 + random.below(3)))
                    .collect();
                let requests: Vec<_> = asked.iter().map(|(who, _)| user(USERS[*who])).collect();
                let checks: Vec<_> = requests
                    .iter()
                    .zip(&asked)
                    .map(|(request, (_, cost))| Check::of(request).cost(*cost))
                    .collect();
                let mut after = model;
                let mut fits = true;
                for (who, cost) in &asked {
                    for at in [*who, 3] {
                        fits &= after[at] >= *cost;
                        after[at] = after[at].saturating_sub(*cost);
                    }
                }
                let Together { allowed, decisions, .. } = gate.check_together(&checks).now().unwrap();
                assert_eq!(allowed, fits, "seed {seed}, shared {shared}: {asked:?} of {model:?}");
                assert_eq!(decisions.len(), checks.len());
                assert_eq!(decisions.iter().all(|decision| decision.allowed), allowed, "{decisions:?}");
                if fits {
                    model = after;
                }
                assert_eq!(left(&gate), model, "seed {seed}, shared {shared}");
            }
        }
    }
}

#[test]
fn a_refused_call_names_the_check_that_refuses() {
    let gate = gate(false);
    assert!(gate.check(Check::of(&user("eve")).cost(10)).now().unwrap().allowed);
    let (ann, eve) = (user("ann"), user("eve"));
    let together = gate.check_together(&[Check::of(&ann), Check::of(&eve).cost(3)]).now().unwrap();
    assert!(!together.allowed);
    let refuses = |at: usize| {
        let decision = &together.decisions[at];
        let name =
            |limit: &tidegate::gate::LimitDecision| decision.policies.policies()[limit.policy].name.clone();
        decision.refusing().map(name).collect::<Vec<_>>()
    };
    assert_eq!(refuses(0), ["all"], "both of them together are too much for that");
    assert_eq!(refuses(1), ["user", "all"]);
    assert_eq!(left(&gate), [12, 12, 2, 2]);
}

#[test]
fn looks_refuse_and_charge_nothing() {
    let gate = gate(false);
    let (ann, eve) = (user("ann"), user("eve"));
    let look = Check::of(&eve).cost(5).peek();
    assert!(gate.check_together(&[Check::of(&ann), look]).now().unwrap().allowed);
    assert_eq!(left(&gate), [11, 12, 12, 11], "the look has spent nothing");
    assert!(gate.check(Check::of(&eve).cost(10)).now().unwrap().allowed);
    assert!(!gate.check_together(&[Check::of(&ann), look]).now().unwrap().allowed);
    assert_eq!(left(&gate), [11, 12, 2, 1]);
}

#[test]
fn a_list_that_refuses_one_refuses_the_call() {
    let deny = AccessList::from_iter(["user.id=eve".parse::<AccessEntry>().unwrap()]);
    let access = Access { deny, ..Access::default() };
    let set = PolicySet::with(vec![policy("all", &[])], access, 64).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::default());
    let (ann, eve) = (user("ann"), user("eve"));
    let together = gate.check_together(&[Check::of(&ann), Check::of(&eve)]).now().unwrap();
    assert!(!together.allowed && together.decisions[1].refusal.is_some());
    assert_eq!(
        gate.check(Check::of(&ann).peek()).now().unwrap().limits[0].decision.standing.remaining,
        BURST
    );
}

#[tokio::test]
async fn what_a_call_charged_is_settled_like_any_charge() {
    let gate = gate(true);
    let (ann, bob) = (user("ann"), user("bob"));
    let mut charged = Charged::default();
    let checks = [Check::of(&ann).cost(3), Check::of(&bob).cost(4)];
    assert!(gate.check_together(&checks).charge(&mut charged).await.unwrap().allowed);
    assert_eq!(left(&gate), [9, 8, 12, 5]);
    gate.finish(&charged, Part::All, Outcome::Ignored, |_| Some(0)).await.unwrap();
    assert_eq!(left(&gate), [12, 12, 12, 12], "a line that two checks met is settled once");
}

/// Regression: two checks that brought different quotas for one key were both decided by the first one's quota.
#[test]
fn one_key_under_two_quotas_is_a_mistake_that_names_the_policy() {
    for shared in [false, true] {
        let gate = gate(shared);
        let (ann, bob) = (user("ann"), user("bob"));
        let [wide, narrow, alike] =
            [20, 3, 3].map(|burst| Arc::new(Quota::per_day(1).burst(burst).gcra().unwrap()));
        let both = [Check::of(&ann).quota(&wide), Check::of(&ann).quota(&narrow)];
        let refused = gate.check_together(&both).now().unwrap_err();
        assert_eq!(refused, StoreError::TwoQuotas { policy: "user".to_owned() });
        assert!(refused.to_string().contains("policy `user`"), "{refused}");
        assert_eq!(left(&gate), [BURST; 4]);
        // Equal quotas count as the same one, even if they are separate allocations.
        let both = [Check::of(&ann).quota(&narrow), Check::of(&bob).quota(&alike)];
        assert!(gate.check_together(&both).now().unwrap().allowed);
        assert!(!gate.check_together(&both).now().unwrap().allowed, "four of three for all");
    }
}

/// Regression: a check that was not asked was reported as allowed, or as never worth repeating.
#[test]
fn a_check_that_was_not_asked_is_not_allowed_and_may_be_repeated() {
    let gate = gate(true);
    let (ann, eve) = (user("ann"), user("eve"));
    assert!(gate.check(Check::of(&eve).cost(10)).now().unwrap().allowed);
    let look = Check::of(&eve).cost(5).peek();
    let together = gate.check_together(&[Check::of(&ann), look]).now().unwrap();
    let unasked = &together.decisions[0];
    assert!(!unasked.allowed && unasked.limits.is_empty());
    assert_eq!(unasked.retry(), Retry::Unknown);
    // The first store refused, so the second store was not asked. Nobody knows the answer of the check that needs both.
    let together = gate.check_together(&[Check::of(&ann), Check::of(&eve).cost(5)]).now().unwrap();
    let half = &together.decisions[0];
    assert_eq!((half.limits.len(), half.allowed, half.retry()), (1, false, Retry::Unknown));
}

/// Two checks of one call that meet one bulkhead take two places, and return both.
#[tokio::test]
async fn places_that_two_checks_took_together_are_left_together() {
    let places = Quota::concurrency(3, std::time::Duration::from_secs(60)).unwrap();
    let set = PolicySet::new(vec![Policy::new("places", Limit::new(places, "3 at once"))]).unwrap();
    let gate = Gate::in_memory(set, 100).unwrap().with_clock(ManualClock::default());
    let request = Descriptor::new();
    let free = || gate.check(Check::of(&request).peek()).now().unwrap().limits[0].decision.standing.remaining;
    let mut charged = Charged::default();
    assert!(gate.check_together(&[Check::of(&request); 2]).charge(&mut charged).await.unwrap().allowed);
    assert_eq!(free(), 1);
    assert!(!gate.check_together(&[Check::of(&request); 2]).now().unwrap().allowed);
    gate.finish(&charged, Part::All, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(free(), 3);
}
