//! A model check of the lease protocol, over every order in which its events can happen.
//!
//! The model has two nodes with their real leases and one engine with the real arithmetic. Calls and replies between
//! them arrive at any later time, are lost, or arrive twice. Nodes crash, the engine fails over and forgets, and parts
//! of the budget move from one node to the other. The search covers all orders of these events, up to a number of
//! faults and a span of time, and checks the bound after each admission. Nodes and calls have no timing of their own,
//! so any schedule is among these orders.

mod world;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Quota;
use tidegate_core::envelope::Envelope;
use tidegate_core::rate::CalendarUnit;

use super::leasable::Terms;
use tidegate_limits::sync::short_or_long;
use world::{Bounds, Judge, Node, World};

/// The findings of a search.
#[derive(Debug, Default)]
struct SearchResult {
    states: usize,
    most_excess: u64,
    most_admitted: u64,
}

/// Searches all worlds that can follow from one.
fn search(first: World, bounds: &Bounds, most: u64) -> SearchResult {
    let (mut seen, mut found) = (HashSet::new(), SearchResult::default());
    let mut left = vec![first];
    while let Some(world) = left.pop() {
        for next in world.next(bounds) {
            assert!(next.excess <= most, "{} more than the limit, where {most} are promised", next.excess);
            assert!(
                next.nodes.iter().all(Node::is_whole),
                "a unit is held that was spent or given back before"
            );
            found.most_excess = found.most_excess.max(next.excess);
            found.most_admitted = found.most_admitted.max(next.admitted);
            if seen.insert(next.key()) {
                left.push(next);
            }
        }
    }
    found.states = seen.len();
    found
}

/// A limit of three at once and ten a second, of which each node may hold two: the smallest with two nodes that can
/// hold units.
fn flow(burst: u64, judged: u64) -> World {
    let quota = |burst| Arc::new(Quota::per_second(10).burst(burst).gcra().unwrap());
    let terms = Terms {
        engine: quota(burst),
        limit: judged,
        window: false,
        outstanding: 4,
        ahead: Duration::from_millis(100),
        target: Duration::ZERO,
        lasts: Duration::from_millis(150),
    };
    World::new(terms, Judge::Flow(Envelope::of(&quota(judged)).unwrap()))
}

fn window() -> World {
    let quota = Arc::new(Quota::per_minute(12).calendar_window(CalendarUnit::Minute, "UTC").unwrap());
    let terms = Terms {
        engine: quota,
        limit: 12,
        window: true,
        outstanding: 4,
        ahead: Duration::ZERO,
        target: Duration::ZERO,
        lasts: Duration::from_secs(600),
    };
    World::new(terms, Judge::Window { limit: 12, length: 60_000_000_000, window: 0, admitted: 0 })
}

/// Draws, faults and steps of time: few enough for a run of seconds. For a long run, `LEASE_MODEL` sets the three
/// numbers, such as `4,1,2`.
fn bounds(step: Duration, usual: [u64; 3]) -> Bounds {
    let told = std::env::var("LEASE_MODEL").ok();
    let told = told.map(|told| told.split(',').map(|number| number.parse().unwrap()).collect::<Vec<u64>>());
    let [draws, faults, steps] = told.map_or(usual, |told| [told[0], told[1], told[2]]);
    Bounds { step, steps, faults: u32::try_from(faults).unwrap(), draws }
}

#[test]
fn strict_leases_never_admit_more_than_the_limit_in_any_order() {
    let short = [[2, 1, 1], [3, 0, 1]].as_slice();
    for usual in short_or_long(short, &[[3, 1, 1]]) {
        let found = search(flow(1, 5), &bounds(Duration::from_millis(100), *usual), 0);
        println!("{found:?}");
    }
}

#[test]
fn bounded_leases_admit_what_is_outstanding_beyond_the_limit_and_no_more() {
    let found = search(flow(2, 2), &bounds(Duration::from_millis(100), [3, 0, 1]), 4);
    println!("{found:?}");
    assert!(
        found.most_excess > 0,
        "the search finds orders that exceed a limit which leaves no room for batches"
    );
}

#[test]
fn windows_never_have_more_than_their_limit_in_any_order() {
    let short = [[2, 1, 1], [2, 0, 2]].as_slice();
    for usual in short_or_long(short, &[[2, 1, 2]]) {
        let found = search(window(), &bounds(Duration::from_secs(30), *usual), 0);
        println!("{found:?}");
    }
}
