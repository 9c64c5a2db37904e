//! A service whose dependency slows, fails and recovers, with and without protection, under the same load, on a virtual
//! clock.
//!
//! Runs differ slightly, because the jitter of retries is random.
//!
//! `cargo run --example under_load -- docs/images/under-load.svg` draws the picture of docs/axum-and-tonic.md.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

mod load;
mod service;

use load::Seen;
use service::Phases;
use tidegate::Tick;
use tidegate_sim::chart::{Chart, Curve, OverTime, TimeAxis};

fn main() {
    let phases = Phases::long();
    let [bare, protected] = [false, true].map(|protected| load::run(phases, protected));
    for (name, seen) in [("without", &bare), ("with", &protected)] {
        println!("{name} protection, answers in time per second, and the breaker:");
        for (second, ((good, stand_ins), breaker)) in
            seen.good.iter().zip(&seen.stand_ins).zip(&seen.breaker).enumerate().step_by(5)
        {
            println!("{second:>4} s {good:>5} {stand_ins:>5} of a stand-in  {breaker}");
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, picture(&bare, &protected)).unwrap();
    }
}

/// Draws both runs.
fn picture(bare: &Seen, protected: &Seen) -> String {
    let second = |at: usize| Tick::from_secs(at as u64);
    let curve = |name: &str, values: Vec<f64>| Curve {
        name: name.to_owned(),
        end: second(values.len()),
        steps: values.into_iter().enumerate().map(|(at, value)| (second(at), value)).collect(),
    };
    let counts = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).collect::<Vec<_>>();
    let share = |state: &&str| match *state {
        "open" => 60.0,
        "half-open" => 30.0,
        _ => 0.0,
    };
    let states: Vec<f64> = protected.breaker.iter().map(share).collect();
    let chart = OverTime {
        title: "A dependency slows at 10 s, fails at 25 s and is well again at 40 s",
        unit: "per second",
        axis: TimeAxis::Elapsed,
        area: Some(curve("asked, bare", counts(&bare.tries))),
        curves: vec![
            curve("in time, protected", counts(&protected.good)),
            curve("in time, bare", counts(&bare.good)),
            curve("by a stand-in", counts(&protected.stand_ins)),
            curve("breaker (60 is open)", states),
        ],
        limit: None,
    };
    chart.svg().unwrap()
}
