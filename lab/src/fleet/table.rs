//! The scenarios of the manual, with the bounds that they must keep.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Part;
use tidegate::store::leased::TARGET;
use tidegate::store::{Fallback, Leased, MemoryStore, OnStoreError, Split, Store};
use tidegate_core::Quota;

use super::demand::Demand;
use super::link::{Passes, WireCondition};
use super::node::{Parts, Stack};
use super::outcome::Outcome;
use super::scenario::{Act, NodeSelection, Scenario};
use super::world::run;

const NODES: usize = 10;
/// The rate of the limit in units per second, unless a scenario is about it.
pub(super) const RATE: u64 = 2_000;
pub(super) const BURST: u64 = 1_000;
/// The time that the engine has to answer.
const DEADLINE: Duration = Duration::from_millis(250);

/// The bounds that a scenario must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) excess: u64,
    /// The least use, in thousandths of the ideal.
    pub(crate) used_per_mille: u64,
    /// The longest recovery after the last fault.
    pub(crate) recovery: Duration,
}

pub(crate) struct Row {
    pub(crate) scenario: Scenario,
    /// How the nodes decide, as one word in the table: `central`, `leased` or `split`.
    pub(crate) share: &'static str,
    pub(crate) stack: Box<Stack>,
    pub(crate) bounds: Bounds,
}

impl Row {
    /// Returns the outcome and the bounds that were broken.
    pub(crate) fn judge(&self, seed: u64) -> (Outcome, Vec<String>) {
        self.judge_with(seed, |_| {})
    }

    /// Judges as [`Row::judge`] does, after `counts` has changed the outcome.
    pub(super) fn judge_with(&self, seed: u64, counts: impl FnOnce(&mut Outcome)) -> (Outcome, Vec<String>) {
        let mut outcome = run(&self.scenario, seed, &*self.stack);
        counts(&mut outcome);
        let Bounds { excess, used_per_mille, recovery } = self.bounds;
        let mut broken = Vec::new();
        if outcome.excess > excess {
            broken.push(format!("an excess of {} units, where {excess} are allowed", outcome.excess));
        }
        if outcome.used_per_mille < used_per_mille {
            broken.push(format!(
                "used {} ‰ of the ideal, where {used_per_mille} ‰ are required",
                outcome.used_per_mille
            ));
        }
        // A request may wait for a draw that is lost, and then has the full deadline of the engine. A request
        // at the very end of the draw still waits for its answer.
        let longest = if self.share == "leased" { TARGET + DEADLINE } else { DEADLINE };
        if outcome.longest > longest + Duration::from_millis(5) {
            broken.push(format!("a decision took {:?}, where {longest:?} is allowed", outcome.longest));
        }
        match outcome.recovery {
            Some(took) if took <= recovery => {}
            Some(took) => broken.push(format!("back after {took:?}, where {recovery:?} is allowed")),
            None => broken.push("never back at nine tenths of the ideal".to_owned()),
        }
        (outcome, broken)
    }
}

fn fallback(parts: &Parts) -> Fallback {
    Fallback::around(parts.remote.clone(), parts.clock.clone()).nodes(parts.nodes).deadline(DEADLINE).build()
}

/// Builds stores in which every check asks the engine.
pub(super) fn central(parts: &Parts) -> Arc<dyn Store> {
    Arc::new(fallback(parts))
}

/// Nodes draw units ahead of time, as the server does.
pub(super) fn leased(parts: &Parts) -> Arc<dyn Store> {
    let background = parts.background.clone();
    let store = Leased::around(fallback(parts), parts.clock.clone())
        .nodes(parts.nodes)
        .background(move |later| background.spawn(later))
        .build();
    let (ticking, clock) = (store.clone(), parts.clock.clone());
    parts.background.spawn(async move {
        use tidegate::clock::Clock as _;
        loop {
            clock.sleep_until(clock.now().after(Duration::from_millis(250))).await;
            if let Some(returned) = ticking.tick(clock.now()) {
                returned.await;
            }
        }
    });
    Arc::new(store)
}

fn split(parts: &Parts) -> Arc<dyn Store> {
    let memory = MemoryStore::with_capacity(1024).expect("a thousand keys");
    Arc::new(Split::new(memory, Part::even(parts.nodes)))
}

pub(super) fn limit(rate: u64, burst: u64) -> Arc<Quota> {
    Arc::new(Quota::per_second(rate).burst(burst).gcra().expect("a rate and a burst in range"))
}

pub(super) fn secs(secs: f64) -> Duration {
    Duration::from_secs_f64(secs)
}

fn quiet(name: &'static str, demand: Demand) -> Scenario {
    Scenario {
        name,
        nodes: NODES,
        regions: 1,
        running: NODES,
        limit: limit(RATE, BURST),
        keys: 1,
        on_error: OnStoreError::Local,
        demand,
        wire_condition: WireCondition::FAIR,
        acts: Vec::new(),
        healed: Duration::ZERO,
        length: secs(10.0),
    }
}

pub(super) fn with(scenario: Scenario, acts: Vec<(f64, Act)>, healed: f64) -> Scenario {
    let acts = acts.into_iter().map(|(at, act)| (secs(at), act)).collect();
    Scenario { acts, healed: secs(healed), ..scenario }
}

#[allow(clippy::too_many_lines, reason = "a table")]
pub(crate) fn scenarios() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |share: &'static str, scenario: Scenario, excess: u64, used: u64, recovery: f64| {
        let stack: Box<Stack> = match share {
            "central" => Box::new(central),
            "split" => Box::new(split),
            _ => Box::new(leased),
        };
        let bounds = Bounds { excess, used_per_mille: used, recovery: secs(recovery) };
        rows.push(Row { scenario, share, stack, bounds });
    };
    // Decisions are judged when they reach their nodes. Two answers that overtake each other count as excess:
    // one unit per 0.5 ms.
    const OVERTAKEN: u64 = 2;
    // While the engine is gone, nodes grant its limit once more from full, and one request each; see
    // `store::fallback`.
    const GONE: u64 = 2 * BURST + NODES as u64;
    // Half of the nodes grant half of the limit while the others have the engine's whole limit: for 3 s, and
    // until they ask the engine again.
    const HALF_GONE: u64 = (BURST + RATE * 3 + RATE * 5 / 4) / 2 + NODES as u64;
    // A clock that jumps forward while the engine is asked makes the node believe the answer is late. That node
    // decides its part alone for a second.
    const JUMPED: u64 = (BURST + RATE * 5 / 4) / NODES as u64 + OVERTAKEN;
    // A node decides alone on a step that is lost. One in fifty is lost, so at most that much is granted beyond
    // the engine's limit.
    const LOSSY: u64 = RATE * 10 / 50;

    row("central", quiet("steady", Demand::Even(2.0)), OVERTAKEN, 995, 0.5);
    let loads = [
        ("even", Demand::Even(2.0)),
        ("skewed", Demand::Skewed { times: 2.0, exponent: 1.5 }),
        ("hopping", Demand::Hopping { times: 0.9, every: secs(2.0) }),
        ("on and off", Demand::OnOff { times: 3.0, every: secs(1.0) }),
        ("quiet, then four times", Demand::QuietThen { quiet: 0.2, then: 4.0, after: secs(3.0) }),
    ];
    for (name, demand) in loads {
        // What nodes hold when the demand ends was kept from others, each second.
        let used = if matches!(demand, Demand::OnOff { .. }) { 940 } else { 970 };
        row("leased", quiet(name, demand), OVERTAKEN, used, 1.0);
    }
    row("split", quiet("even", Demand::Even(2.0)), OVERTAKEN, 950, 0.5);

    let lossy = WireCondition {
        lost: 10_000,
        doubled: 10_000,
        jitter: Duration::from_millis(2),
        ..WireCondition::FAIR
    };
    row(
        "leased",
        with(
            quiet("1 % lost, doubled, overtaken", Demand::Even(2.0)),
            vec![(0.0, Act::Wires(NodeSelection::All, lossy))],
            0.0,
        ),
        LOSSY,
        950,
        2.0,
    );
    let crash = vec![(3.0, Act::Crash(NodeSelection::Node(0))), (5.0, Act::Restart(NodeSelection::Node(0)))];
    row(
        "leased",
        with(quiet("a node dies with what it held", Demand::Even(2.0)), crash, 5.0),
        OVERTAKEN,
        900,
        1.0,
    );
    // As in a rolling deployment.
    let mut upgrade = Vec::new();
    for node in 0..NODES {
        let at = 1.0 + node as f64 * 0.7;
        upgrade.push((at, Act::Crash(NodeSelection::Node(node))));
        upgrade.push((at + 0.3, Act::Restart(NodeSelection::Node(node))));
    }
    row(
        "leased",
        with(quiet("nodes restart one by one", Demand::Even(2.0)), upgrade, 8.0),
        OVERTAKEN,
        900,
        1.0,
    );
    let storm = Scenario { nodes: 20, running: 3, ..quiet("nodes 3, 20, 3", Demand::Even(2.0)) };
    let storm = with(
        storm,
        vec![(3.0, Act::Restart(NodeSelection::From(3))), (6.0, Act::Crash(NodeSelection::From(3)))],
        6.0,
    );
    row("leased", storm, OVERTAKEN, 900, 1.0);

    let gone = vec![(3.0, Act::Stop { forget: false }), (6.0, Act::Start)];
    row("leased", with(quiet("engine gone 3 s", Demand::Even(2.0)), gone.clone(), 6.0), GONE, 900, 1.5);
    row("central", with(quiet("engine gone 3 s", Demand::Even(2.0)), gone, 6.0), GONE, 900, 1.5);
    let empty = vec![(3.0, Act::Stop { forget: true }), (6.0, Act::Start)];
    row("leased", with(quiet("engine back empty", Demand::Even(2.0)), empty, 6.0), GONE + BURST, 900, 1.5);
    let mut stalls = Vec::new();
    for second in 2..7 {
        stalls.extend([(f64::from(second), Act::Stall(true)), (f64::from(second) + 0.2, Act::Stall(false))]);
    }
    row(
        "leased",
        with(quiet("engine hangs 0.2 s each second", Demand::Even(2.0)), stalls.clone(), 6.2),
        OVERTAKEN,
        800,
        1.0,
    );
    row(
        "central",
        with(quiet("engine hangs 0.2 s each second", Demand::Even(2.0)), stalls, 6.2),
        BURST / 2,
        800,
        1.0,
    );
    let lag = vec![(0.0, Act::Lag(secs(0.3))), (5.0, Act::FailOver)];
    row(
        "leased",
        with(quiet("failover to a replica 0.3 s behind", Demand::Even(2.0)), lag, 5.0),
        RATE * 3 / 10 + OVERTAKEN,
        900,
        1.0,
    );
    let flush = vec![(5.0, Act::Forget)];
    row("leased", with(quiet("engine flushed", Demand::Even(2.0)), flush, 5.0), BURST + OVERTAKEN, 900, 1.0);
    let ahead = vec![(4.0, Act::EngineClock(60_000_000_000))];
    row(
        "leased",
        with(quiet("engine's clock 60 s ahead", Demand::Even(2.0)), ahead, 4.0),
        BURST + OVERTAKEN,
        900,
        1.0,
    );
    let nodes = vec![
        (3.0, Act::NodeClock(NodeSelection::Node(1), 3_600_000_000_000)),
        (3.0, Act::NodeClock(NodeSelection::Node(2), -3_600_000_000_000)),
    ];
    row(
        "leased",
        with(quiet("clocks of nodes jump by an hour", Demand::Even(2.0)), nodes, 3.0),
        JUMPED,
        850,
        1.0,
    );
    let pause = vec![(3.0, Act::Pause(NodeSelection::Node(0), secs(3.0)))];
    row(
        "leased",
        with(quiet("a node stands still for 3 s", Demand::Even(2.0)), pause, 6.0),
        OVERTAKEN,
        900,
        1.0,
    );
    let cut = |passes| {
        vec![
            (3.0, Act::Wires(NodeSelection::From(5), WireCondition::FAIR.passing(passes))),
            (6.0, Act::Wires(NodeSelection::All, WireCondition::FAIR)),
        ]
    };
    row(
        "leased",
        with(quiet("half the nodes are cut off", Demand::Even(2.0)), cut(Passes::Nothing), 6.0),
        HALF_GONE,
        850,
        2.0,
    );
    row(
        "leased",
        with(quiet("answers to half the nodes are lost", Demand::Even(2.0)), cut(Passes::Requests), 6.0),
        HALF_GONE,
        850,
        2.0,
    );
    let changed = vec![(4.0, Act::Limit(limit(RATE / 2, BURST / 2)))];
    row("leased", with(quiet("the limit is halved", Demand::Even(2.0)), changed, 4.0), BURST, 900, 1.0);
    rows
}

/// Runs every row whose scenario's name contains `word` (an empty word matches all) with this many seeds.
/// Returns a table with the worst seed in each cell, and the bounds that were broken.
#[must_use]
pub fn page(seeds: u64, word: &str) -> (String, Vec<String>) {
    let mut text = String::from(
        "| scenario | share | excess: most allowed | worst seen | used of the ideal: least allowed | worst seen | back after | messages a second | p99 |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut broken = Vec::new();
    for row in scenarios().into_iter().filter(|row| row.scenario.name.contains(word)) {
        let mut worst = (0, u64::MAX, Duration::ZERO, 0_u64, Duration::ZERO);
        for seed in 1..=seeds {
            let (outcome, faults) = row.judge(seed);
            broken.extend(
                faults
                    .into_iter()
                    .map(|fault| format!("{}, {}, seed {seed}: {fault}", row.scenario.name, row.share)),
            );
            worst.0 = worst.0.max(outcome.excess);
            worst.1 = worst.1.min(outcome.used_per_mille);
            worst.2 = worst.2.max(outcome.recovery.unwrap_or(Duration::MAX));
            worst.3 = worst.3.max(outcome.messages);
            worst.4 = worst.4.max(outcome.p99);
        }
        let Bounds { excess, used_per_mille, .. } = row.bounds;
        let seconds = row.scenario.length.as_secs().max(1);
        let _ = writeln!(
            text,
            "| {} | {} | {excess} | {} | {:.1} % | {:.1} % | {} ms | {} | {:.1} ms |",
            row.scenario.name,
            row.share,
            worst.0,
            used_per_mille as f64 / 10.0,
            worst.1 as f64 / 10.0,
            worst.2.as_millis(),
            worst.3 / seconds,
            worst.4.as_secs_f64() * 1e3
        );
    }
    (text, broken)
}
