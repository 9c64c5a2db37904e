//! Two nodes behind nginx that share one limit over one engine, which is killed under load and comes back.
//!
//! Needs nginx and redis-server (or etcd), and the program built with the engine's client:
//!
//! ```text
//! cargo build -p tidegate-cli --features redis,etcd
//! cargo run -p tidegate-lab --example two_nodes -- redis docs/images/two-nodes-redis.svg
//! ```
//!
//! The second word is the file for the picture; docs/figures.md shows those of Redis and etcd. Exits with 1 if more was
//! admitted than the bounds of docs/stores/README.md allow, or a request was not answered. nginx and the nodes read the
//! files of examples/two-nodes, with other ports.

#![allow(clippy::unwrap_used, reason = "an example that cannot go on has failed")]

mod load;
mod picture;
mod stand;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use load::Load;
use stand::{Engine, Stand};
use verdict::Phases;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let engine = match words.next().as_deref() {
        None | Some("redis") => Engine::Redis,
        Some("etcd") => Engine::Etcd,
        Some(other) => panic!("no engine is called `{other}`: write redis or etcd"),
    };
    let phases =
        Phases { dies: Duration::from_secs(15), back: Duration::from_secs(25), end: Duration::from_secs(40) };
    let mut stand = Stand::start(engine).expect("what is named above is installed");
    let load = Load { per_second: 300, threads: 12 };
    let seen = load.run(&mut stand, phases);
    drop(stand);
    let judged = verdict::judge(&seen, phases, 0);
    println!("{judged}");
    if let Some(path) = words.next() {
        std::fs::write(path, picture::draw(engine, load, &seen, phases)).unwrap();
    }
    if let Err(broken) = judged.holds() {
        eprintln!("{broken}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
