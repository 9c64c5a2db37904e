//! Runs one row of the table.

#![allow(clippy::disallowed_methods, reason = "real programs take real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::Tick;
use tidegate_lab::fleet::NodeSelection;
use tidegate_testkit::runtime;

use super::act::{Act, Limit, Row};
use super::engine::Kind;
use super::load::{Asked, Load};
use super::stand::Stand;

/// The observations of a run.
pub(crate) struct Seen {
    /// The requests, in the order of their answers.
    pub(crate) asked: Vec<Asked>,
    /// The end of the last fault.
    pub(crate) healed: Tick,
    /// The limits, and the time from which each was in force on all nodes.
    pub(crate) limits: Vec<(Tick, Limit)>,
    /// The number of steps that each node decided without the engine.
    pub(crate) without_engine: Vec<u64>,
    /// How many of these came before the first fault.
    pub(crate) early: Vec<u64>,
    /// The length of the run.
    pub(crate) length: Duration,
}

/// Runs a row; prints a message and returns `None` if the engine is not installed.
pub(crate) fn run(kind: Kind, row: &Row) -> Option<Seen> {
    let mut stand = Stand::start(kind, row)?;
    if row.share == "split" || kind == Kind::Regions {
        // A part that a node has received counts only after the time that the limit takes to fill up.
        wait_until(Instant::now(), row.limit.fills_within());
    }
    let runtime = runtime();
    let load = Arc::new(Load {
        demand: row.demand,
        rate: row.limit.rate,
        nodes: stand.addrs(),
        running: stand.running().into_iter().map(AtomicBool::new).collect(),
        begun: Instant::now(),
        over: AtomicBool::new(false),
    });
    let asking = runtime.spawn(Arc::clone(&load).run());
    let now = || Tick::from_nanos(u64::try_from(load.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut limits = vec![(Tick::EPOCH, row.limit)];
    let mut healed = Tick::EPOCH;
    let mut early = vec![0; row.nodes];
    let mut without_engine = early.clone();
    for (number, (at, act)) in row.acts.iter().enumerate() {
        wait_until(load.begun, *at);
        if number == 0 {
            stand.count_without_engine(NodeSelection::All, &mut early);
        }
        // Stop asking nodes that are about to end, and ask those that have started.
        for (node, running) in load.running.iter().enumerate() {
            if act.ends().is_some_and(|which| which.has(node)) {
                running.store(false, Ordering::Relaxed);
            }
        }
        if let Some(which) = act.ends() {
            stand.count_without_engine(which, &mut without_engine);
        }
        stand.act(*act);
        healed = now();
        for (asked, runs) in load.running.iter().zip(stand.running()) {
            asked.store(runs, Ordering::Relaxed);
        }
        if let Act::Halve = act {
            limits.push((healed, Limit { rate: row.limit.rate / 2, burst: row.limit.burst / 2 }));
        }
    }
    wait_until(load.begun, healed.since(Tick::EPOCH) + row.after);
    load.over.store(true, Ordering::Relaxed);
    let asked = runtime.block_on(asking).expect("no request panics");
    stand.count_without_engine(NodeSelection::All, &mut without_engine);
    let length = now().since(Tick::EPOCH);
    Some(Seen { asked, healed, limits, without_engine, early, length })
}

fn wait_until(begun: Instant, at: Duration) {
    while let Some(left) = at.checked_sub(begun.elapsed()) {
        std::thread::park_timeout(left);
    }
}
