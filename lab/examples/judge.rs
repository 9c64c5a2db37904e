//! Judges protections against overload on a set of simulated services, and prints the table and the checks:
//! `cargo run --release -p tidegate-lab --example judge -- A 10`. The number is that of the seeds. A word after it
//! selects the services whose names contain it: `-- A 10 neighbour`; one that no name contains leaves the checks alone.
//! Names of protections after that, with commas, leave the others and the checks out: `-- A 10 '' ideal,nothing`.
//! If a check fails, a line says so, and the exit code is 1.

use std::process::ExitCode;

use tidegate_lab::judge::{Set, page, protections};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let set = match words.first().map(String::as_str) {
        Some("A") => Set::A,
        Some("B") => Set::B,
        Some("C") => Set::C,
        _ => {
            eprintln!("write which set of services, A, B or C, and how many seeds: A 10");
            return ExitCode::from(2);
        }
    };
    let Ok(seeds) = words.get(1).map_or(Ok(10), |text| text.parse::<u64>()) else {
        eprintln!("write how many seeds, as 10");
        return ExitCode::from(2);
    };
    let only: Vec<&str> = words.get(3).map_or(Vec::new(), |text| text.split(',').collect());
    let all = protections();
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        eprintln!("`{unknown}` is not a protection; write some of: {}", all.join(","));
        return ExitCode::from(2);
    }
    let (text, failed) = page(set, seeds, words.get(2).map_or("", String::as_str), &only);
    print!("{text}");
    for check in &failed {
        eprintln!("{check}");
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}
