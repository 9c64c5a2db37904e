//! Judges nodes that share one limit through a real engine during faults: the table of real engines in docs/figures.md.
//!
//! Each node is a `tidegate serve` that reaches the engine through a proxy of its own. Needs redis-server, etcd or
//! zookeeper, and the program built with the engines' clients:
//!
//! ```text
//! cargo build -p tidegate-cli --features engines
//! cargo run -p tidegate-lab --example engine_faults -- redis
//! ```
//!
//! `regions` instead of an engine: three regions far from each other, with a Redis each and an etcd of three members.
//!
//! A second word selects the rows whose names contain it. `--ledger FILE` appends a line about the run to a file.
//! Exits with 1 if a bound is broken.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

mod act;
mod engine;
mod load;
mod regions;
mod run;
mod stand;
mod table;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use engine::Kind;
use table::{Times, rows};
use tidegate_lab::FaultRun;

/// The times used for the manual.
const TIMES: Times =
    Times { before: Duration::from_secs(3), lasts: Duration::from_secs(3), after: Duration::from_secs(4) };

/// The times of regions: a fault for which they keep their parts, and how much longer one lasts after which parts have
/// moved.
const BRIDGED: Times =
    Times { before: Duration::from_secs(3), lasts: Duration::from_secs(5), after: Duration::from_secs(10) };
const MOVES: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let (words, ledger) = FaultRun::ledger_of(std::env::args().skip(1));
    let mut kinds = [Kind::Redis, Kind::Etcd, Kind::ZooKeeper, Kind::Regions].into_iter();
    let Some(kind) = kinds.find(|kind| words.first().is_some_and(|word| word == kind.word())) else {
        eprintln!("write an engine: redis, etcd or zookeeper; or regions");
        return ExitCode::from(2);
    };
    let named = words.get(1).map_or("", String::as_str);
    let mut broken = Vec::new();
    let mut table = verdict::HEAD.to_owned();
    println!("{table}");
    let all = if kind == Kind::Regions { regions::rows(BRIDGED, MOVES) } else { rows(kind, TIMES) };
    for row in all.into_iter().filter(|row| row.name.contains(named)) {
        let Some(seen) = run::run(kind, &row) else { return ExitCode::from(2) };
        let outcome = verdict::judge(&row, &seen);
        let line = outcome.line(&row);
        println!("{line}");
        table.push('\n');
        table.push_str(&line);
        for fault in outcome.broken(&row) {
            eprintln!("{fault}");
            broken.push(fault);
        }
    }
    if let Some(path) = ledger {
        FaultRun { on: kind.word(), scenarios: named, seeds: None, table: &table, broken: &broken }
            .append(&path)
            .unwrap();
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}
