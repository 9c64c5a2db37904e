//! Judges protections against overload on a half of the simulated services, and prints the table and the checks:
//! `cargo run --release -p tidegate-lab --example judge -- A 10`. The number is that of the seeds. A word after it
//! selects the services whose names contain it: `-- A 10 neighbour`; one that no name contains leaves the checks alone.
//! If a check fails, a line says so, and the exit code is 1.

use std::process::ExitCode;

use tidegate_lab::judge::{Half, page};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let half = match words.first().map(String::as_str) {
        Some("A") => Half::A,
        Some("B") => Half::B,
        _ => {
            eprintln!("write which half of the services, A or B, and how many seeds: A 10");
            return ExitCode::from(2);
        }
    };
    let Ok(seeds) = words.get(1).map_or(Ok(10), |text| text.parse::<u64>()) else {
        eprintln!("write how many seeds, as 10");
        return ExitCode::from(2);
    };
    let (text, failed) = page(half, seeds, words.get(2).map_or("", String::as_str));
    print!("{text}");
    for check in &failed {
        eprintln!("{check}");
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}
