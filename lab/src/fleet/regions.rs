//! Three distant regions with an engine each, which divide a limit among themselves.
//!
//! Each node leases units from the engine of its region, which holds the region's part of the limit
//! ([`Regional`]). The nodes of all regions agree on these parts over the long wires; no request waits for
//! that.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::cluster::shares::{Division, Driver};
use tidegate::store::{OnStoreError, Regional, Store};

use super::demand::Demand;
use super::global_coordinator::FAR;
use super::link::{Passes, WireCondition};
use super::node::Parts;
use super::scenario::{Act, Scenario};
use super::table::{BURST, Bounds, RATE, Row, leased, limit, secs, with};

const REGIONS: usize = 3;
const NODES: usize = 9;

/// The demand, in multiples of the rate.
const TIMES: f64 = 1.5;

/// Two answers may overtake each other on their way to the judge. The stated target is 2 % of the burst, ten times as
/// much.
const EXCESS: u64 = 2;

/// Use is measured from here on: by then the regions have found each other and each has its part.
const BEGUN: Duration = Duration::from_secs(10);

/// Counts what a node was asked for; set once its store exists.
type DemandCounter = OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>;

fn regional(parts: &Parts) -> Arc<dyn Store> {
    let counter: Arc<DemandCounter> = Arc::default();
    let demand = Arc::clone(&counter);
    let mut driver = Driver::new(
        parts.global.coordinator(parts.clock.clone()),
        parts.clock.clone(),
        format!("node {}", parts.node),
        Division::among(parts.global.regions() as u64),
        move || demand.get().map_or(0, |count| count()),
    )
    .in_region(&format!("region {}", parts.global.region()));
    let store = Regional::around(leased(parts), driver.part());
    // Set here for the first time, so this does not fail.
    let _ = counter.set(Box::new(store.demand()));
    parts.background.spawn(async move { driver.run(std::future::pending()).await });
    Arc::new(store)
}

fn demand(first: &'static [f64], then: &'static [f64], from: f64) -> Demand {
    Demand::Weighted { times: TIMES, first, then, from: secs(from), within: secs(10.0) }
}

/// The scenarios with several regions, and their bounds.
pub(crate) fn regional_scenarios() -> Vec<Row> {
    const EVEN: &[f64] = &[1.0; REGIONS];
    let mut rows = Vec::new();
    let mut row = |name, demand, on_error, acts, healed, used: u64, excess| {
        let scenario = Scenario {
            name,
            nodes: NODES,
            regions: REGIONS,
            running: NODES,
            limit: limit(RATE, BURST),
            keys: 1,
            on_error,
            demand,
            wire_condition: WireCondition::FAIR,
            acts: Vec::new(),
            healed: Duration::ZERO,
            length: secs(50.0),
        };
        let bounds = Bounds { excess, used_per_mille: used, recovery: secs(15.0) };
        let scenario = with(scenario, acts, healed);
        rows.push(Row { scenario, share: "leased", stack: Box::new(regional), bounds });
    };
    let (even, deny) = (demand(EVEN, EVEN, 0.0), OnStoreError::Deny);
    row("even load", even, deny, vec![], 10.0, 950, EXCESS);
    row(
        "one region has nine tenths of the load",
        demand(&[18.0, 1.0, 1.0], &[18.0, 1.0, 1.0], 0.0),
        deny,
        vec![],
        10.0,
        900,
        EXCESS,
    );
    row(
        "all load moves from one region to another within 10 s",
        demand(&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0], 20.0),
        deny,
        vec![],
        30.0,
        700,
        EXCESS,
    );
    let cut = |passes| vec![(15.0, Act::Across(2, FAR.passing(passes))), (35.0, Act::Across(2, FAR))];
    row(
        "one region is cut off from the others for 20 s",
        even,
        deny,
        cut(Passes::Nothing),
        35.0,
        850,
        EXCESS,
    );
    let answers = cut(Passes::Requests);
    row("answers to one region are lost for 20 s", even, deny, answers, 35.0, 600, EXCESS);
    let gone = || {
        let stop = Act::Stop { forget: false };
        vec![(15.0, Act::OfRegion(2, Box::new(stop))), (25.0, Act::OfRegion(2, Box::new(Act::Start)))]
    };
    row("one region's engine is gone for 10 s, refused", even, deny, gone(), 25.0, 850, EXCESS);
    // In the region without engine, the local stand-ins start full, the engine refills meanwhile, and each node
    // admits one request more.
    let twice = 2 * BURST / 3 + (NODES / REGIONS) as u64;
    row("the same, decided by its nodes", even, OnStoreError::Local, gone(), 25.0, 950, twice);
    let slow = WireCondition { delay: secs(0.3), ..FAR };
    row(
        "one region's wire is slow, 300 ms",
        even,
        deny,
        vec![(0.0, Act::Across(2, slow))],
        10.0,
        950,
        EXCESS,
    );
    let moves = demand(&[1.0, 0.0, 0.0], &[0.0, 0.0, 1.0], 20.0);
    row(
        "all load moves over the slow wire",
        moves,
        deny,
        vec![(0.0, Act::Across(2, slow))],
        30.0,
        700,
        EXCESS,
    );
    rows
}

/// Runs every regional scenario with this many seeds. Returns a table with the worst seed in each cell, and the
/// bounds that were broken.
#[must_use]
pub fn regional_page(seeds: u64) -> (String, Vec<String>) {
    let mut text = String::from(
        "| scenario | excess: most allowed | worst seen | used of the ideal: least allowed | worst seen | back after | calls across regions a second | of them for a request | messages to each engine a second | p99 |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut broken = Vec::new();
    for row in regional_scenarios() {
        let (name, bounds) = (row.scenario.name, row.bounds);
        let mut worst = (0, u64::MAX, Duration::ZERO, (0_u64, 0_u64), 0_u64, Duration::ZERO);
        for seed in 1..=seeds {
            let (outcome, faults) =
                row.judge_with(seed, |outcome| outcome.used_per_mille = outcome.used_from(BEGUN));
            broken.extend(faults.into_iter().map(|fault| format!("{name}, seed {seed}: {fault}")));
            if outcome.across_on_path > 0 {
                broken.push(format!("{name}, seed {seed}: {} calls for requests", outcome.across_on_path));
            }
            worst.0 = worst.0.max(outcome.excess);
            worst.1 = worst.1.min(outcome.used_per_mille);
            worst.2 = worst.2.max(outcome.recovery.unwrap_or(Duration::MAX));
            worst.3 = (worst.3.0.max(outcome.calls_across), worst.3.1.max(outcome.across_on_path));
            worst.4 = worst.4.max(outcome.messages);
            worst.5 = worst.5.max(outcome.p99);
        }
        let seconds = row.scenario.length.as_secs().max(1);
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {:.1} % | {:.1} % | {:.1} s | {:.1} | {} | {} | {:.1} ms |",
            bounds.excess,
            worst.0,
            bounds.used_per_mille as f64 / 10.0,
            worst.1 as f64 / 10.0,
            worst.2.as_secs_f64(),
            worst.3.0 as f64 / seconds as f64,
            worst.3.1,
            worst.4 / seconds / REGIONS as u64,
            worst.5.as_secs_f64() * 1e3
        );
    }
    (text, broken)
}
