//! Proposes a limit per client and minute for a log: `cargo run --release -p tidegate-sim --example suggest_limit -- LOG...`

use tidegate_sim::log::{Input, LogOptions};
use tidegate_sim::suggest::{SuggestOptions, suggest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let inputs: Vec<_> = std::env::args_os().skip(1).map(|arg| Input::from_arg(&arg)).collect();
    let found = suggest(&inputs, &LogOptions::default(), &SuggestOptions::default(), |_| {})?;
    println!("{found:#?}");
    if let Some(yaml) = found.proposals.first().and_then(|proposal| found.yaml(proposal, "per-ip")) {
        println!("{yaml}");
    }
    Ok(())
}
