//! A shorter form of the example `two_nodes`: nginx, two nodes, one limit, and an engine that is killed under load
//! and comes back.
//!
//! Needs nginx, redis-server and etcd. If one is missing, the test prints a message and is skipped; with
//! `TIDEGATE_REQUIRE_SERVERS=1` it fails.

#![cfg(feature = "engines")]

#[path = "../examples/two_nodes/load.rs"]
mod load;
#[path = "../examples/two_nodes/picture.rs"]
mod picture;
#[path = "../examples/two_nodes/stand.rs"]
mod stand;
#[path = "../examples/two_nodes/verdict.rs"]
mod verdict;

use std::time::Duration;

use load::Load;
use stand::{Engine, Stand};
use verdict::{BURST, Phases};

/// The engines run one after the other, so that they do not slow each other down.
#[test]
fn one_limit_is_held_over_both() {
    let seconds = Duration::from_secs;
    let phases = Phases { dies: seconds(3), back: seconds(5), end: seconds(10) };
    for engine in [Engine::Redis, Engine::Etcd] {
        let Some(mut stand) = Stand::start(engine) else { continue };
        let load = Load { per_second: 300, threads: 12 };
        let seen = load.run(&mut stand, phases);
        let judged = verdict::judge(&seen, phases, 2 * BURST);
        assert_eq!(judged.holds(), Ok(()), "{engine:?}\n{judged}");
        assert!(picture::draw(engine, load, &seen, phases).contains("</svg>"));
    }
}
