//! A guard among the limits of a gate: a request enters all of them or none, and leaves the guard when it ends.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, Check, Entry, Fate, Part};
use tidegate::limiter::Retry;
use tidegate::policy::{ChargeOn, Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{MemoryStore, PlainStore, conformance};
use tidegate::{Gate, Outcome, Quota};
use tidegate_core::breaker::CircuitBreaker;
use tidegate_core::concurrency::{AdaptiveConcurrency, Concurrency};

const TTL: Duration = Duration::from_secs(30);

fn at_once(name: &str, max: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::concurrency(max, TTL).unwrap(), "concurrency"))
}

fn per_hour(name: &str, count: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::per_hour(count).sliding_log().unwrap(), "log"))
}

fn gate(policies: Vec<Policy>) -> (Gate, ManualClock) {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_000));
    (Gate::in_memory(PolicySet::new(policies).unwrap(), 100).unwrap().with_clock(clock.clone()), clock)
}

fn remaining(gate: &Gate) -> Vec<u64> {
    let decision = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap();
    decision.limits.iter().map(|limit| limit.decision.standing.remaining).collect()
}

fn enter(gate: &Gate) -> Charged {
    let mut charged = Charged::default();
    assert!(gate.charge(&Descriptor::new(), &mut charged).now().unwrap().allowed);
    charged
}

#[test]
fn stores_carry_guards_as_they_carry_limits() {
    let mut quotas = conformance::quotas();
    quotas.retain(|quota| quota.is_guard());
    quotas.push(Arc::new(Concurrency::new(2).unwrap().into()));
    quotas.push(Arc::new(Quota::concurrency(3, Duration::from_millis(400)).unwrap()));
    quotas.push(Arc::new(Quota::per_second(7).burst(5).gcra().unwrap()));
    // BBR gets readings of the machine only through a gate, so it is not among the quotas above.
    let bbr = AdaptiveConcurrency::new("bbr".parse().unwrap()).ttl(Duration::from_secs(1)).unwrap().cpu(900);
    quotas.push(Arc::new(bbr.into()));
    assert_eq!(quotas.len(), 11);
    conformance::run(PlainStore::default, &quotas, 3_000);
    conformance::run(|| MemoryStore::with_capacity(10_000).unwrap(), &quotas, 6_000);
    conformance::run(|| MemoryStore::with_full_keys(10_000).unwrap(), &quotas, 6_000);
}

#[test]
fn a_busy_bulkhead_refuses_and_charges_no_limit_beside_it() {
    let (gate, _) = gate(vec![per_hour("all", 9), at_once("work", 1)]);
    let first = enter(&gate);
    assert_eq!(remaining(&gate), [8, 0]);
    let refused = gate.check(&Descriptor::new()).now().unwrap();
    assert_eq!((refused.allowed, refused.retry(), refused.policy()), (false, Retry::Unknown, Some(1)));
    assert_eq!(remaining(&gate), [8, 0], "all or none");
    gate.finish(&first, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [8, 1], "the place, and not the unit");
}

#[test]
fn a_limit_that_is_used_up_keeps_everybody_out_of_the_bulkhead() {
    let (gate, _) = gate(vec![at_once("work", 5), per_hour("all", 1)]);
    let _first = enter(&gate);
    assert!(!gate.check(&Descriptor::new()).now().unwrap().allowed);
    assert_eq!(remaining(&gate), [4, 0]);
}

#[test]
fn a_place_lapses_by_itself_and_is_then_left_without_a_trace() {
    let (gate, clock) = gate(vec![at_once("work", 1)]);
    let lost = enter(&gate);
    clock.advance(TTL);
    let second = enter(&gate);
    let told = gate.finish(&lost, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!((told[0].fate, remaining(&gate)), (Fate::Returned(0), vec![0]));
    let told = gate.finish(&second, Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    assert_eq!((told[0].fate, remaining(&gate)), (Fate::Returned(1), vec![1]));
}

#[test]
fn whoever_entered_before_a_live_change_leaves_after_it() {
    let (gate, _) = gate(vec![at_once("work", 2)]);
    let (first, second) = (enter(&gate), enter(&gate));
    gate.replace(PolicySet::new(vec![at_once("work", 1)]).unwrap());
    assert!(!gate.check(&Descriptor::new()).now().unwrap().allowed);
    gate.finish(&first, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [0], "one is inside, and one is all there is");
    gate.finish(&second, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [1]);
}

#[test]
fn who_was_inside_at_a_reset_returns_nobodys_place() {
    let (gate, _) = gate(vec![at_once("work", 1)]);
    let forgotten = enter(&gate);
    let policies = gate.policies();
    let plan = policies.plan(&Descriptor::new(), None);
    gate.keys().reset(&plan.charges().collect::<Vec<_>>()).now().unwrap();
    let inside = enter(&gate);
    gate.finish(&forgotten, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [0]);
    gate.finish(&inside, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [1]);
}

#[test]
fn an_admission_that_is_dropped_leaves_its_place_and_keeps_what_it_spent() {
    let (gate, _) = gate(vec![per_hour("all", 9), at_once("work", 1)]);
    let Entry::Admitted(admission) = gate.admit(&Descriptor::new()).now().unwrap() else { panic!() };
    assert_eq!(remaining(&gate), [8, 0]);
    drop(admission);
    assert_eq!(remaining(&gate), [8, 1]);
    let Entry::Admitted(admission) = gate.admit(Check::of(&Descriptor::new()).cost(1)).now().unwrap() else {
        panic!()
    };
    admission.cancel().now().unwrap();
    assert_eq!(remaining(&gate), [8, 1]);
}

#[test]
fn a_refund_gives_units_back_and_leaves_the_place_to_the_report() {
    let (gate, _) = gate(vec![per_hour("all", 9), at_once("work", 1)]);
    let charged = enter(&gate);
    gate.finish(&charged, Part::Spent, Outcome::Ignored, |_| Some(0)).now().unwrap();
    assert_eq!(remaining(&gate), [9, 0]);
    assert!(charged.awaits_report());
    let told = gate.finish(&charged, Part::Outcome, Outcome::Overloaded, |_| None).now().unwrap();
    assert_eq!((told.len(), remaining(&gate)), (1, vec![9, 1]));
}

fn breaker(name: &str) -> Policy {
    let law = CircuitBreaker::builder().consecutive(2).jitter(0.0).build().unwrap();
    Policy::new(name, Limit::new(Quota::Breaker(law), "breaker"))
}

#[test]
fn a_breaker_learns_from_outcomes_and_refuses_with_the_time_that_is_left() {
    let (gate, clock) = gate(vec![per_hour("all", 9), breaker("payments")]);
    let calls = [enter(&gate), enter(&gate), enter(&gate)];
    gate.finish(&calls[0], Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    gate.finish(&calls[1], Part::Outcome, Outcome::CallersFault, |_| None).now().unwrap();
    gate.finish(&calls[2], Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [6, 1], "not two in a row");
    let call = enter(&gate);
    gate.finish(&call, Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    clock.advance(Duration::from_secs(2));
    let refused = gate.check(&Descriptor::new()).now().unwrap();
    let left = Retry::After(Duration::from_secs(3));
    assert_eq!((refused.allowed, refused.retry(), refused.policy()), (false, left, Some(1)));
    assert_eq!(remaining(&gate), [5, 0], "and nothing was charged beside it");
}

#[test]
fn probes_of_a_gates_breaker_are_bounded_and_come_back_when_they_are_dropped() {
    let (gate, clock) = gate(vec![breaker("payments")]);
    for _ in 0..2 {
        let call = enter(&gate);
        gate.finish(&call, Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    }
    clock.advance(Duration::from_secs(5));
    let admit = || match gate.admit(&Descriptor::new()).now().unwrap() {
        Entry::Admitted(admission) => Some(admission),
        Entry::Refused(decision) => {
            assert_eq!(decision.retry(), Retry::Unknown);
            None
        }
    };
    for _ in 0..5 {
        let probes: Vec<_> = std::iter::from_fn(admit).collect();
        assert_eq!(probes.len(), 3, "dropped ones say nothing, and give their places back");
    }
    for _ in 0..6 * 4 {
        admit().unwrap().finish(Outcome::Success).now().unwrap();
    }
    let all: Vec<_> = (0..100).map_while(|_| admit()).collect();
    assert_eq!(all.len(), 100, "closed");
}

#[test]
fn a_live_change_keeps_an_open_breaker_open() {
    let (gate, clock) = gate(vec![breaker("payments")]);
    for _ in 0..2 {
        let call = enter(&gate);
        gate.finish(&call, Part::Outcome, Outcome::Failure, |_| None).now().unwrap();
    }
    let law = CircuitBreaker::builder().failure_ratio(0.9).build().unwrap();
    let changed = Policy::new("payments", Limit::new(Quota::Breaker(law), "breaker"));
    gate.replace(PolicySet::new(vec![changed]).unwrap());
    assert_eq!(gate.check(&Descriptor::new()).now().unwrap().retry(), Retry::After(Duration::from_secs(5)));
    clock.advance(Duration::from_secs(5));
    assert!(gate.check(&Descriptor::new()).now().unwrap().allowed);
}

/// With `charge: failure`, a success resets the policy's keys. For a bulkhead that would forget everybody inside.
#[test]
fn a_success_forgets_nobody_who_is_inside() {
    let mut work = at_once("work", 2);
    work.charge = ChargeOn::Failure;
    let (gate, _) = gate(vec![work]);
    let (first, _second) = (enter(&gate), enter(&gate));
    gate.finish(&first, Part::Outcome, Outcome::Success, |_| None).now().unwrap();
    assert_eq!(remaining(&gate), [1]);
}

#[test]
fn threads_never_meet_more_inside_than_there_are_places() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let gate = Gate::in_memory(PolicySet::new(vec![at_once("work", 2)]).unwrap(), 100).unwrap();
    let inside = AtomicU64::new(0);
    let entered: usize = std::thread::scope(|scope| {
        let turns = || {
            let mut entered = 0;
            for _ in 0..2_000 {
                let Entry::Admitted(admission) = gate.admit(&Descriptor::new()).now().unwrap() else {
                    continue;
                };
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                inside.fetch_sub(1, Ordering::SeqCst);
                admission.finish(Outcome::Success).now().unwrap();
                entered += 1;
            }
            entered
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(turns)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(entered > 0);
    assert_eq!(remaining(&gate), [2]);
}
