//! A few rows of the example `engine_faults`, with shorter times: nodes that share one limit through a real engine
//! during faults.
//!
//! Needs redis-server, etcd and zookeeper. If one is missing, the test prints a message and is skipped; with
//! `TIDEGATE_REQUIRE_SERVERS=1` it fails.

#![cfg(feature = "engines")]

#[path = "../examples/engine_faults/act.rs"]
mod act;
#[path = "../examples/engine_faults/engine.rs"]
mod engine;
#[path = "../examples/engine_faults/load.rs"]
mod load;
#[path = "../examples/engine_faults/regions.rs"]
mod regions;
#[path = "../examples/engine_faults/run.rs"]
mod run;
#[path = "../examples/engine_faults/stand.rs"]
mod stand;
#[path = "../examples/engine_faults/table.rs"]
mod table;
#[path = "../examples/engine_faults/verdict.rs"]
mod verdict;

use std::time::Duration;

use engine::Kind;
use table::{Times, rows};
use tidegate_lab::fleet::Demand;

/// Runs one row, with bounds that hold on a busy machine too. The times before and after the fault are short, the
/// fault is long: nodes that each granted twice their part during it would far exceed the bounds.
fn holds(kind: Kind, name: &str, share: &str) {
    let times = Times {
        before: Duration::from_millis(500),
        lasts: Duration::from_millis(2_800),
        after: Duration::from_millis(500),
    };
    let mut rows = rows(kind, times).into_iter();
    let mut row = rows.find(|row| row.name == name && row.share == share).expect("a row of the table");
    row.demand = Demand::Even(4.0);
    row.bounds.used_per_mille = 600;
    let Some(seen) = run::run(kind, &row) else { return };
    let outcome = verdict::judge(&row, &seen);
    assert_eq!(outcome.broken(&row), Vec::<String>::new(), "{}\n{}", verdict::HEAD, outcome.line(&row));
}

/// The same for regions. `moves` is how much longer a fault lasts that makes parts move.
fn regions_hold(name: &str, moves: Duration) {
    let times = Times {
        before: Duration::from_millis(500),
        lasts: Duration::from_secs(2),
        after: Duration::from_millis(500),
    };
    let mut rows = regions::rows(times, moves).into_iter();
    let mut row = rows.find(|row| row.name == name).expect("a row of the table");
    row.bounds.used_per_mille = row.bounds.used_per_mille.min(800);
    let Some(seen) = run::run(Kind::Regions, &row) else { return };
    let outcome = verdict::judge(&row, &seen);
    assert_eq!(outcome.broken(&row), Vec::<String>::new(), "{}\n{}", verdict::HEAD, outcome.line(&row));
}

#[test]
fn redis_gone() {
    holds(Kind::Redis, "engine gone", "leased");
}

#[test]
fn redis_back_empty() {
    holds(Kind::Redis, "engine back empty", "central");
}

#[test]
fn redis_cut_off_from_half_the_nodes() {
    holds(Kind::Redis, "half the nodes are cut off", "leased");
}

#[test]
fn redis_replaced_by_its_replica() {
    holds(Kind::Redis, "failover to a replica 0.3 s behind", "leased");
}

#[test]
fn redis_flushed() {
    holds(Kind::Redis, "engine flushed", "leased");
}

#[test]
fn a_node_on_redis_dies() {
    holds(Kind::Redis, "a node dies with what it held", "leased");
}

#[test]
fn etcd_killed_and_back() {
    holds(Kind::Etcd, "engine killed and back", "leased");
}

#[test]
fn answers_of_etcd_lost() {
    holds(Kind::Etcd, "answers to half the nodes are lost", "leased");
}

#[test]
fn zookeeper_hangs() {
    holds(Kind::ZooKeeper, "engine hangs", "leased");
}

#[test]
fn a_follower_of_etcd_killed() {
    holds(Kind::Etcd, "a follower of three is killed", "leased");
}

#[test]
fn nodes_on_etcd_restarted_one_by_one() {
    holds(Kind::Etcd, "nodes restart one by one, every 2 s", "split");
}

#[test]
fn the_etcd_between_regions_cut_off() {
    regions_hold("the etcd is cut off", Duration::ZERO);
}

/// Longer than the others' wait for the part of a region that they do not hear of: then it is granted by both or by
/// neither.
#[test]
fn a_region_cut_off_from_the_others() {
    regions_hold("one region is cut off from the others", Duration::from_secs(10));
}
