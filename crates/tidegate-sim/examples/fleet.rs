//! Simulates nodes that share a limit through an engine, with so many seeds of each scenario, and prints the table of the manual:
//! `cargo run --release -p tidegate-sim --example fleet -- 1000`. Ends with 1 if a bound was broken; a line names scenario and seed. With a
//! word after the number only the scenarios whose names have it: `-- 1000 lost`.

use std::process::ExitCode;

use tidegate_sim::fleet::page;

fn main() -> ExitCode {
    let seeds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse::<u64>());
    let Ok(seeds) = seeds else {
        eprintln!("write how many seeds, as 1000");
        return ExitCode::from(2);
    };
    let (table, broken) = page(seeds, &std::env::args().nth(2).unwrap_or_default());
    println!("{table}");
    for fault in &broken {
        eprintln!("{fault}");
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}
