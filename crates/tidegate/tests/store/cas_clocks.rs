//! Compare-and-set over an engine without a clock, with nodes whose clocks differ.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{CasStore, Charge, Op, Step, Store as _};
use tidegate::{Cost, Quota, Tick};

use crate::byte_map::Bytes;

const START: Tick = Tick::from_secs(1_000_000);

fn take(node: &CasStore<Bytes>, at: Tick, quota: &Arc<Quota>) -> bool {
    node.blocking_execute(&Step::new(at, Op::Take, &[Charge::new(b"key", quota, Cost::ONE)])).unwrap().allowed
}

/// Two nodes over one engine.
fn nodes() -> [CasStore<Bytes>; 2] {
    let bytes = Bytes::default();
    [CasStore::new(bytes.clone()), CasStore::new(bytes)]
}

/// Two nodes take turns, and the clock of one is ahead. Regression: each turn of the slow node set the cell back, and
/// each turn of the fast node then found that time had passed: with a clock a minute ahead, fifty seconds at every
/// turn.
#[test]
fn clocks_apart_grant_what_comes_back_in_between_once() {
    for apart in [9, 11, 60, 299, 301, 3600, 30 * 86_400] {
        let (nodes, quota) = (nodes(), Arc::new(Quota::per_second(1).burst(10).gcra().unwrap()));
        let mut allowed = 0;
        for turn in 0..200 {
            // Ten turns a second.
            let now = START.after(Duration::from_millis(100 * turn));
            let ahead = now.after(Duration::from_secs(apart));
            allowed += (0..20).filter(|_| take(&nodes[0], now, &quota)).count();
            allowed += (0..20).filter(|_| take(&nodes[1], ahead, &quota)).count();
        }
        // A full limit, what came back in twenty seconds, and once what comes back between the two clocks, at most a
        // full limit.
        assert!(allowed <= 10 + 20 + 10, "{allowed} with clocks apart by {apart} s");
    }
}

/// The fast node leaves: its keys stand still until the other clock has caught up.
#[test]
fn a_key_stands_still_until_the_slower_clock_has_caught_up() {
    let (nodes, quota) = (nodes(), Arc::new(Quota::per_second(1).burst(10).gcra().unwrap()));
    assert_eq!((0..20).filter(|_| take(&nodes[1], START.after(Duration::from_secs(60)), &quota)).count(), 10);
    for second in 0..=60 {
        assert!(!take(&nodes[0], START.after(Duration::from_secs(second)), &quota), "second {second}");
    }
    assert!(take(&nodes[0], START.after(Duration::from_secs(61)), &quota));
}

/// A clock that was wrong by a day for a moment does not stop a limit for a day: the limit continues at half its rate.
#[test]
fn a_clock_far_ahead_is_followed_at_half_its_speed() {
    let (nodes, quota) = (nodes(), Arc::new(Quota::per_second(1).burst(10).gcra().unwrap()));
    assert_eq!(
        (0..20).filter(|_| take(&nodes[1], START.after(Duration::from_secs(86_400)), &quota)).count(),
        10
    );
    let allowed =
        (0..100).filter(|second| take(&nodes[0], START.after(Duration::from_secs(*second)), &quota));
    assert_eq!(allowed.count(), 49);
}
