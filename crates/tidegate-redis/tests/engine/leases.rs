//! Leases over a real server: small limits are granted whole, and a wait is told right after a limit was lowered.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock as _, SystemClock};
use tidegate::limiter::Retry;
use tidegate::store::{Charge, Leased, Op, Step, StepClock, Store as _};
use tidegate_core::{Cost, Quota};
use tokio::runtime::Runtime;

use crate::servers::{Server, connect, namespace, options, runtime};

/// Connects nodes to one namespace, with leases around each.
fn nodes(server: &Server, runtime: &Runtime, count: u64) -> Vec<Leased> {
    let namespace = namespace();
    let connect = |_| connect(runtime, options(server).namespace(&namespace));
    let leased = |engine| Leased::around(engine, SystemClock::new()).nodes(count).build();
    (0..count).map(connect).map(leased).collect()
}

fn take(node: &Leased, key: &[u8], quota: &Arc<Quota>, units: u64) -> (bool, Retry) {
    let charges = [Charge::new(key, quota, Cost::new(units).unwrap())];
    let step = Step {
        receipts: false,
        clock: StepClock::Engine,
        ..Step::new(SystemClock::new().now(), Op::Take, &charges)
    };
    let executed = node.blocking_execute(&step).unwrap();
    (executed.allowed, executed.lines[0].decision.retry())
}

#[test]
fn small_limits_are_granted_whole() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    for (count, burst) in [(10, 100), (10, 20), (1, 20), (4, 40), (10, 390)] {
        let quota = Arc::new(Quota::per_day(burst).burst(burst).gcra().unwrap());
        let nodes = nodes(&server, &runtime, count);
        for (name, order) in [("in turn", 1), ("one after the other", burst)] {
            let key = format!("{count} {burst} {name}").into_bytes();
            let takes = (0..2 * burst * count).map(|number| (number / order % count) as usize);
            let granted = takes.filter(|node| take(&nodes[*node], &key, &quota, 1).0).count();
            assert_eq!(granted as u64, burst, "{count} nodes, {name}");
        }
        let most = take(&nodes[0], b"at once", &quota, burst);
        assert!(most.0, "a cost of {burst}, {count} nodes: {most:?}");
        assert_eq!(take(&nodes[0], b"too much", &quota, burst + 1), (false, Retry::Never));
    }
}

/// A limit in full use is lowered. What callers were told then, and from then on, is the wait after which they pass.
#[test]
fn a_wait_told_under_a_lowered_limit_is_not_too_short() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let quota = |rate: u64, burst| Arc::new(Quota::per_second(rate).burst(burst).gcra().unwrap());
    for count in [1, 2] {
        for (new, number) in [quota(50, 100), quota(100, 60), quota(20, 90)].into_iter().zip(0..) {
            let (old, nodes) = (quota(100, 100), nodes(&server, &runtime, count));
            let key = format!("lowered {number}").into_bytes();
            while (0..3).any(|_| nodes.iter().any(|node| take(node, &key, &old, 1).0)) {}
            for node in &nodes {
                // A unit may come back meanwhile.
                let wait = loop {
                    if let (false, Retry::After(wait)) = take(node, &key, &new, 1) {
                        break wait;
                    }
                };
                // The timer and the way to the server take more than a millisecond.
                let clock = SystemClock::new();
                clock.block_until(clock.now().after(wait + Duration::from_millis(1)));
                assert!(take(node, &key, &new, 1).0, "{count} nodes, {new:?}: not after {wait:?}");
            }
        }
    }
}
