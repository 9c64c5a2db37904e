//! Simulates three regions with an engine each, which divide a limit, each scenario with a number of seeds, and
//! prints the table of the manual: `cargo run --release -p tidegate-lab --example fleet_regions -- 20`. If a bound is
//! broken, a line names the scenario and the seed, and the exit code is 1.

use std::process::ExitCode;

use tidegate_lab::fleet::regional_page;

fn main() -> ExitCode {
    let seeds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse::<u64>());
    let Ok(seeds) = seeds else {
        eprintln!("write how many seeds, as 20");
        return ExitCode::from(2);
    };
    let (table, broken) = regional_page(seeds);
    println!("{table}");
    for fault in &broken {
        eprintln!("{fault}");
    }
    ExitCode::from(u8::from(!broken.is_empty()))
}
