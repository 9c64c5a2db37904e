//! Simulates nodes that share a limit through an engine, each scenario with a number of seeds, and prints the table
//! of the manual: `cargo run --release -p tidegate-lab --example fleet -- 1000`. If a bound is broken, a line names
//! the scenario and the seed, and the exit code is 1. A word after the number selects the scenarios whose names
//! contain it: `-- 1000 lost`. `--ledger FILE` appends a line about the run to a file.

use std::process::ExitCode;

use tidegate_lab::FaultRun;
use tidegate_lab::fleet::page;

fn main() -> ExitCode {
    let (words, ledger) = FaultRun::ledger_of(std::env::args().skip(1));
    let seeds = words.first().map_or(Ok(10), |text| text.parse::<u64>());
    let Ok(seeds) = seeds else {
        eprintln!("write how many seeds, as 1000");
        return ExitCode::from(2);
    };
    let scenarios = words.get(1).map_or("", String::as_str);
    let (table, broken) = page(seeds, scenarios);
    println!("{table}");
    for fault in &broken {
        eprintln!("{fault}");
    }
    if let Some(file) = ledger {
        let run = FaultRun { on: "simulated", scenarios, seeds: Some(seeds), table: &table, broken: &broken };
        if let Err(error) = run.append(&file) {
            eprintln!("{file}: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}
