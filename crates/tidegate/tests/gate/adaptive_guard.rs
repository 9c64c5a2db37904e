//! An adaptive limit among the limits of a gate: it learns from admissions that end, shares of it are kept, and its law
//! gets the readings of the machine.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::concurrency::signals::Reading;
use tidegate::concurrency::{Adaptive, AdaptiveConcurrency, Aimd, Bbr, Bounds};
use tidegate::gate::{Admission, Check};
use tidegate::limiter::Retry;
use tidegate::policy::{Descriptor, KeepFor, Kept, Limit, Policy, PolicySet};
use tidegate::priority::Criticality;
use tidegate::store::{
    Charge, Ending, Executed, Execution, Fallback, Occupancy, Op, Step, Store, StoreError,
};
use tidegate::{Cost, Gate, Outcome, Quota, Tick};
use tidegate_core::Finish;

const TTL: Duration = Duration::from_secs(30);
const START: Tick = Tick::from_secs(1_600_000_000);

fn aimd(least: u64, start: u64, most: u64) -> Quota {
    let bounds = Bounds::new(least, most).unwrap().start_at(start).unwrap();
    let law = Aimd::default().bounds(bounds).timeout(Duration::from_millis(50)).unwrap();
    AdaptiveConcurrency::new(Adaptive::Aimd(law)).ttl(TTL).unwrap().into()
}

fn gate(limit: Limit) -> (Gate, ManualClock) {
    let clock = ManualClock::at(START);
    let set = PolicySet::new(vec![Policy::new("backend", limit)]).unwrap();
    (Gate::in_memory(set, 100).unwrap().with_clock(clock.clone()), clock)
}

fn fill<'g>(gate: &'g Gate, check: &Check<'_, '_>) -> Vec<Admission<&'g Gate>> {
    std::iter::from_fn(|| gate.admit(*check).now().unwrap().admitted()).collect()
}

fn limit(gate: &Gate) -> u64 {
    gate.places()[0].standing.limit
}

#[test]
fn what_leaves_teaches_the_law_and_what_is_dropped_does_not() {
    let (gate, clock) = gate(Limit::new(aimd(1, 10, 100), "aimd"));
    let request = Descriptor::new();
    let check = Check::of(&request);
    let inside = fill(&gate, &check);
    assert_eq!((inside.len(), gate.places()[0].in_use()), (10, 10));
    let refused = gate.check(check).now().unwrap();
    assert_eq!((refused.allowed, refused.retry()), (false, Retry::Unknown));
    clock.advance(Duration::from_millis(10));
    drop(inside);
    assert_eq!((limit(&gate), gate.places()[0].in_use()), (10, 0), "a dropped admission says nothing");

    for admission in fill(&gate, &check) {
        admission.finish(Outcome::Success).now().unwrap();
    }
    // The fifth to the tenth admission found at least half of the places taken, so six samples raised the limit by one
    // each.
    assert_eq!(limit(&gate), 16);
    let slow = fill(&gate, &check);
    clock.advance(Duration::from_millis(51));
    for admission in slow {
        admission.finish(Outcome::Success).now().unwrap();
    }
    assert!(limit(&gate) < 5, "{}", limit(&gate));
}

/// When another limit refuses, the place that was taken first is returned, and the law gets no sample.
#[test]
fn a_check_that_another_limit_refuses_teaches_nothing() {
    let clock = ManualClock::at(START);
    let policies = vec![
        Policy::new("backend", Limit::new(aimd(1, 10, 100), "aimd")),
        Policy::new("rate", Limit::new(Quota::per_hour(1).gcra().unwrap(), "1/h")),
    ];
    let gate = Gate::in_memory(PolicySet::new(policies).unwrap(), 100).unwrap().with_clock(clock);
    let request = Descriptor::new();
    assert!(gate.check(&request).now().unwrap().allowed);
    assert!(!gate.check(&request).now().unwrap().allowed);
    assert_eq!((limit(&gate), gate.places()[0].in_use()), (10, 1));
}

#[test]
fn a_share_is_kept_of_the_limit_as_it_stands() {
    let mut kept = Limit::new(aimd(1, 20, 200), "aimd");
    kept.keep_for = KeepFor::default().with(Criticality::Critical, Kept::Percent(25));
    let (gate, clock) = gate(kept);
    let request = Descriptor::new();
    let (plain, low) = (Check::of(&request), Check::of(&request).priority(Criticality::Sheddable));
    let sheddable = fill(&gate, &low);
    assert_eq!(sheddable.len(), 15, "three quarters of 20");
    let refused = gate.check(low).now().unwrap();
    assert_eq!((refused.limits[0].kept_back, refused.limits[0].remaining()), (5, 0));
    let critical = fill(&gate, &plain);
    assert_eq!(critical.len(), 5);
    for admission in sheddable.into_iter().chain(critical) {
        admission.finish(Outcome::Success).now().unwrap();
    }
    let grown = limit(&gate);
    assert!(grown > 30, "{grown}");
    assert_eq!(fill(&gate, &low).len() as u64, grown - grown.div_ceil(4));

    // Down to a limit of one place: no part of one place can be kept for ever.
    for _ in 0..200 {
        let admission = gate.admit(plain).now().unwrap().admitted().unwrap();
        clock.advance(Duration::from_millis(60));
        admission.finish(Outcome::Success).now().unwrap();
    }
    assert_eq!((limit(&gate), fill(&gate, &low).len()), (1, 1));

    let mut all = Limit::new(aimd(1, 20, 200), "aimd");
    all.keep_for = KeepFor::default().with(Criticality::Critical, Kept::Percent(100));
    let (gate, _) = self::gate(all);
    assert_eq!(gate.check(low).now().unwrap().retry(), Retry::Never);
    let mut units = Limit::new(aimd(1, 20, 200), "aimd");
    units.keep_for = KeepFor::default().with(Criticality::Critical, Kept::Units(5));
    let error = PolicySet::new(vec![Policy::new("p", units)]).unwrap_err().to_string();
    assert!(error.contains("5 is not part of a limit that moves; write a share of it, as 20%"), "{error}");
}

/// 500 requests a second of 20 ms each, about ten at once. When the processor becomes busy, about ten are admitted at
/// once.
#[test]
fn a_gate_tells_bbr_of_its_machine() {
    // The gate's readings are smoothed, so the law's own smoothing has no effect.
    for law in [Bbr::default(), Bbr::default().smoothing(0.0).unwrap()] {
        bbr_follows_the_machine(law.bounds(Bounds::new(1, 200).unwrap()));
    }
}

fn bbr_follows_the_machine(law: Bbr) {
    let cpu = Arc::new(AtomicU16::new(300));
    let read = Arc::clone(&cpu);
    let guard = AdaptiveConcurrency::new(Adaptive::Bbr(law)).ttl(TTL).unwrap();
    let (gate, clock) = gate(Limit::new(Quota::from(guard), "bbr"));
    let gate = gate.with_machine(move || {
        let mut reading = Reading::default();
        reading.cpu = Some(read.load(Ordering::Relaxed));
        reading
    });
    let request = Descriptor::new();
    let mut inside = std::collections::VecDeque::new();
    for _ in 0..500 {
        inside.push_back(gate.admit(&request).now().unwrap().admitted().unwrap());
        clock.advance(Duration::from_millis(2));
        if inside.len() > 9 {
            inside.pop_front().unwrap().finish(Outcome::Success).now().unwrap();
        }
    }
    assert_eq!(limit(&gate), 200, "it has time");
    cpu.store(900, Ordering::Relaxed);
    clock.advance(Duration::from_millis(100));
    drop(gate.admit(&request).now().unwrap());
    let busy = limit(&gate);
    assert!((9..=11).contains(&busy), "{busy}");
    cpu.store(100, Ordering::Relaxed);
    clock.advance(Duration::from_secs(2));
    drop(inside);
    gate.admit(&request).now().unwrap().admitted().unwrap().finish(Outcome::Success).now().unwrap();
    assert_eq!(limit(&gate), 200);
}

/// While the engine is gone, each of three nodes moves a limit of its own, and counts each piece of work three times.
#[test]
fn each_node_lets_in_its_part_and_learns_from_its_own_traffic() {
    #[derive(Debug)]
    struct Gone;
    impl Store for Gone {
        fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
            Execution::Done(Err(StoreError::Unavailable { reason: "gone".to_owned() }))
        }
        fn occupancy(&self) -> Occupancy {
            Occupancy::default()
        }
    }
    let clock = ManualClock::at(START);
    let node = Fallback::around(Gone, clock.clone()).nodes(3).build();
    let quota = Arc::new(aimd(1, 10, 100));
    let charge = || Charge { by_fallback: true, ..Charge::new(b"key", &quota, Cost::ONE) };
    let take = || node.blocking_execute(&Step::new(clock.now(), Op::Take, &[charge()])).unwrap();
    let leave = |receipt| {
        let ending = [Ending::new(receipt, Finish { used: 1, outcome: Outcome::Overloaded })];
        node.blocking_execute(&Step::new(clock.now(), Op::Finish(&ending), &[charge()])).unwrap();
    };
    let inside: Vec<_> = std::iter::from_fn(|| take().lines[0].receipt).collect();
    assert_eq!(inside.len(), 3, "a third of ten");
    inside.into_iter().for_each(leave);
    // Down to a part in which no request fits; a request still enters while nobody else is inside.
    for _ in 0..40 {
        leave(take().lines[0].receipt.expect("one is always let in"));
    }
    let inside: Vec<_> = std::iter::from_fn(|| take().lines[0].receipt).collect();
    assert_eq!(inside.len(), 1);
}

#[test]
fn explain_tells_where_the_limit_stands() {
    let (gate, _) = gate(Limit::new(aimd(1, 2, 100), "adaptive aimd 1..100 ttl 30s"));
    let request = Descriptor::new();
    let _inside = fill(&gate, &Check::of(&request));
    let text = gate.explain(&request).now().unwrap().to_string();
    let told = "adaptive aimd 1..100 ttl 30s: needs 1, 2 of 2 places in use; key (all)";
    assert!(text.contains(told), "{text}");
}
