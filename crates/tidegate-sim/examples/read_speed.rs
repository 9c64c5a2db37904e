//! How many lines a second are read and parsed? `cargo run --release -p tidegate-sim --example read_speed -- LOG...`

use std::hint::black_box;
use std::ops::ControlFlow;

use tidegate::{Clock, SystemClock};
use tidegate_sim::log::{Log, LogOptions};
use tidegate_sim::order::Order;
use tidegate_sim::source::Input;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let inputs: Vec<_> = std::env::args_os().skip(1).map(|arg| Input::from_arg(&arg)).collect();
    let clock = SystemClock::new();
    for order in [Order::Clamp, Order::default()] {
        let mut log = Log::open(inputs.clone(), LogOptions { order, ..LogOptions::default() })?;
        let start = clock.now();
        let mut seen = 0;
        log.read(|record| {
            seen += black_box(record).path.len();
            ControlFlow::Continue(())
        })?;
        let seconds = clock.now().since(start).as_secs_f64();
        let tally = log.tally();
        let (rate, each) = (tally.lines as f64 / seconds, seconds * 1e9 / tally.lines as f64);
        println!("{order:?}: {} lines, {seconds:.2} s, {rate:.0} lines/s, {each:.0} ns a line", tally.lines);
        println!(
            "  {} records, {} malformed, {:?}, {seen} path bytes",
            tally.records, tally.malformed, tally.order
        );
        println!("  {:?} {:?} to {:?}", tally.files, tally.first, tally.last);
        for line in &tally.first_malformed {
            println!("  {line}");
        }
    }
    Ok(())
}
