//! Tests of the simulation itself, and one seed of each scenario.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{Fallback, OnStoreError, Store};
use tidegate_core::Quota;

use super::growth::sizes;
use super::link::WireCondition;
use super::node::Parts;
use super::outcome::Outcome;
use super::scenario::{Act, Scenario};
use super::world::run;
use super::{Demand, page, regional_page};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn central(parts: &Parts) -> Arc<dyn Store> {
    Arc::new(Fallback::around(parts.remote.clone(), parts.clock.clone()).nodes(parts.nodes).build())
}

fn steady() -> Scenario {
    Scenario {
        name: "steady",
        nodes: 4,
        regions: 1,
        running: 4,
        limit: Arc::new(Quota::per_second(500).burst(100).gcra().unwrap()),
        keys: 1,
        on_error: OnStoreError::Local,
        demand: Demand::Even(2.0),
        wire_condition: WireCondition::FAIR,
        acts: Vec::new(),
        healed: secs(0),
        length: secs(4),
    }
}

#[test]
fn one_seed_is_one_run() {
    let runs: Vec<Outcome> = [7, 7, 8].map(|seed| run(&steady(), seed, &central)).into();
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

#[test]
fn central_decisions_are_the_ideal() {
    let outcome = run(&steady(), 1, &central);
    // Decisions are judged when they reach nodes, and answers overtake each other by a fifth of a millisecond.
    assert!(outcome.excess <= 1, "{outcome:?}");
    assert!(outcome.used_per_mille >= 995, "{outcome:?}");
    assert!((3800..4200).contains(&outcome.asked), "twice 500 a second for 4 s: {}", outcome.asked);
    assert_eq!(outcome.hung, 0);
    assert!(outcome.longest < Duration::from_millis(2), "{:?}", outcome.longest);
}

#[test]
fn an_engine_that_is_gone_is_stood_in_for_and_comes_back() {
    let mut scenario = steady();
    scenario.acts = vec![(secs(1), Act::Stop { forget: false }), (secs(3), Act::Start)];
    (scenario.healed, scenario.length) = (secs(3), secs(6));
    let outcome = run(&scenario, 1, &central);
    // The local stand-ins start full, the engine refills meanwhile, and each node admits one request more.
    assert!(outcome.excess <= 2 * 100 + 4, "{outcome:?}");
    assert!(outcome.used_per_mille >= 900, "{outcome:?}");
    assert!(outcome.recovery.is_some_and(|took| took <= secs(1)), "{:?}", outcome.recovery);
}

/// One seed of each scenario; `cargo run --release -p tidegate-lab --example fleet -- 1000` runs many.
#[test]
fn every_scenario_keeps_its_bounds() {
    let (table, broken) = page(1, "");
    assert!(broken.is_empty(), "{broken:#?}\n{table}");
}

/// One seed of each scenario of regions; `cargo run --release -p tidegate-lab --example fleet_regions -- 20` runs many.
#[test]
fn regions_keep_their_bounds_and_no_request_waits_for_another_region() {
    let (table, broken) = regional_page(1);
    assert!(broken.is_empty(), "{broken:#?}\n{table}");
}

/// With ten times the nodes and ten times the limit, each decision takes as many messages to the engine.
#[test]
fn a_decision_costs_the_same_in_a_larger_fleet() {
    let of = |nodes: usize| {
        let mut sizes = sizes().into_iter();
        let mut size = sizes.find(|size| size.share == "leased" && size.scenario.nodes == nodes).unwrap();
        size.scenario.length = secs(1);
        size.run(1)
    };
    let (small, large) = (of(10), of(100));
    assert!(large.messages_per_hundred < small.messages_per_hundred * 1.2, "{small:?} {large:?}");
    assert!(small.messages_per_hundred < 20.0, "{small:?}");
    assert_eq!((small.outcome.excess, large.outcome.excess), (0, 0));
}
