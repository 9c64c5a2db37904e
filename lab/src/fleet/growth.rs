//! What a decision costs the engine as nodes or keys grow in number.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::store::OnStoreError;

use super::demand::Demand;
use super::link::WireCondition;
use super::outcome::Outcome;
use super::scenario::Scenario;
use super::table::{central, leased, limit};
use super::world::run;

/// Calls per second that one core of Redis 7.0 serves, each running a script: `cargo xtask bench redis`
/// measured 104,000 on an AMD EPYC.
pub(crate) const CALLS_PER_CORE: f64 = 100_000.0;

#[derive(Clone, Debug)]
pub(crate) struct Size {
    /// The name of its limit.
    pub(crate) name: &'static str,
    pub(crate) share: &'static str,
    pub(crate) scenario: Scenario,
}

#[derive(Clone, Debug)]
pub(crate) struct Grown {
    pub(crate) messages_per_hundred: f64,
    pub(crate) messages_per_second: f64,
    pub(crate) outcome: Outcome,
}

impl Size {
    pub(crate) fn run(&self, seed: u64) -> Grown {
        let outcome = match self.share {
            "central" => run(&self.scenario, seed, &central),
            _ => run(&self.scenario, seed, &leased),
        };
        let (messages, asked) = (outcome.messages as f64, outcome.asked.max(1) as f64);
        Grown {
            messages_per_hundred: messages * 100.0 / asked,
            messages_per_second: messages / self.scenario.length.as_secs_f64(),
            outcome,
        }
    }
}

/// Returns fleets of three kinds: one limit that grows with the fleet; one limit that stays; and many keys with a limit
/// each, ten for each node. The demand is one and a half times what they grant, for four seconds.
pub(crate) fn sizes() -> Vec<Size> {
    let mut sizes = Vec::new();
    let mut size = |name, share, nodes: usize, keys: u32, rate: u64| {
        let scenario = Scenario {
            name,
            nodes,
            regions: 1,
            running: nodes,
            limit: limit(rate, rate),
            keys,
            on_error: OnStoreError::Local,
            demand: Demand::Even(1.5),
            wire_condition: WireCondition::FAIR,
            acts: Vec::new(),
            healed: Duration::ZERO,
            length: Duration::from_secs(4),
        };
        sizes.push(Size { name, share, scenario });
    };
    for nodes in [10, 100, 1000] {
        size("one limit of 200/s for each node", "leased", nodes, 1, 200 * nodes as u64);
        size("the same", "central", nodes, 1, 200 * nodes as u64);
        size("one limit of 20,000/s", "leased", nodes, 1, 20_000);
        size("ten keys for each node, 20/s each", "leased", nodes, 10 * nodes as u32, 20);
    }
    sizes
}

/// Runs all sizes and returns the table of the manual.
#[must_use]
pub fn growth(seed: u64) -> String {
    let mut text = String::from(
        "| limits | share | nodes | decisions a second | messages for 100 decisions | messages a second | of one Redis core | excess | used | p99 |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for size in sizes() {
        let grown = size.run(seed);
        let outcome = &grown.outcome;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.1} | {:.0} | {:.1} % | {} | {:.1} % | {:.1} ms |",
            size.name,
            size.share,
            size.scenario.nodes,
            outcome.asked as f64 / size.scenario.length.as_secs_f64(),
            grown.messages_per_hundred,
            grown.messages_per_second,
            grown.messages_per_second * 100.0 / CALLS_PER_CORE,
            outcome.excess,
            outcome.used_per_mille as f64 / 10.0,
            outcome.p99.as_secs_f64() * 1e3,
        );
    }
    text
}
