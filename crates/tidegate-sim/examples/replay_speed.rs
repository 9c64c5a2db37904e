//! How many lines a second does a whole replay take? `cargo run --release -p tidegate-sim --example replay_speed -- LOG...`

use std::ops::ControlFlow;

use tidegate::config::{Config, Format};
use tidegate::{Clock, SystemClock};
use tidegate_sim::log::{Log, LogOptions};
use tidegate_sim::replay::{Replay, ReplayOptions};
use tidegate_sim::source::Input;

const POLICIES: &str = "version: 1
policies:
  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 10/s, burst: 20 } }
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let inputs: Vec<_> = std::env::args_os().skip(1).map(|arg| Input::from_arg(&arg)).collect();
    let (config, _) =
        Config::parse(POLICIES, "built in", Format::Yaml).map_err(|_| "the policies are wrong")?;
    let clock = SystemClock::new();
    let start = clock.now();
    let mut replay = Replay::new(vec![("policies".to_owned(), config.policies)], ReplayOptions::default());
    let mut log = Log::open(inputs, LogOptions::default())?;
    log.read(|record| {
        replay.feed(record);
        ControlFlow::Continue(())
    })?;
    let seconds = clock.now().since(start).as_secs_f64();
    let lines = log.tally().lines as f64;
    println!(
        "{lines} lines, {seconds:.2} s, {:.0} lines/s, {:.0} ns a line",
        lines / seconds,
        seconds * 1e9 / lines
    );
    println!("{:#?}", replay.outcomes());
    Ok(())
}
