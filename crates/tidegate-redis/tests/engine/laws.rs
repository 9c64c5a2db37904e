//! The suite that every store passes, over a real server; and places in flight, which are freed when their holder dies.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock as _, ManualClock};
use tidegate::store::{Charge, Ending, Op, Step, StepClock, Store as _, conformance};
use tidegate_core::{Cost, Finish, Quota, Tick};
use tidegate_redis::RedisStore;

use crate::servers::{Server, connect, namespace, options, runtime};

#[test]
fn a_single_server_conforms() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    conformance::run(|| connect(&runtime, options(&server)), &conformance::quotas(), 500);
}

#[test]
fn a_single_server_conforms_by_a_clock_that_jumps() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let make = |clock| {
        let connected = RedisStore::connect_with_clock(options(&server), Arc::new(clock));
        runtime.block_on(connected).unwrap()
    };
    conformance::run_by_clock(make, &conformance::quotas(), 500);
}

/// Places of a dead holder are freed after their time to live.
#[test]
fn places_of_a_node_that_died_come_back() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let clock = ManualClock::default();
    clock.set(Tick::from_secs(1_700_000_000));
    let shared = namespace();
    let node = || {
        let connected =
            RedisStore::connect_with_clock(options(&server).namespace(&shared), Arc::new(clock.clone()));
        runtime.block_on(connected).unwrap()
    };
    let five = Arc::new(Quota::concurrency(5, Duration::from_secs(30)).unwrap());
    let charges = [Charge::new(b"a", &five, Cost::ONE)];
    let engine = |op| Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, op, &charges) };
    let survivor = node();
    let receipt = {
        let dying = node();
        for _ in 0..4 {
            assert!(dying.blocking_execute(&engine(Op::Take)).unwrap().allowed);
        }
        survivor.blocking_execute(&engine(Op::Take)).unwrap().lines[0].receipt.unwrap()
    };
    assert!(!survivor.blocking_execute(&engine(Op::Take)).unwrap().allowed, "held by whoever is gone");
    let ended = [Ending::new(receipt, Finish::UNDONE)];
    survivor.blocking_execute(&engine(Op::Finish(&ended))).unwrap();
    assert!(survivor.blocking_execute(&engine(Op::Take)).unwrap().allowed, "one that was returned");
    clock.set(clock.now().after(Duration::from_secs(31)));
    let again = (0..6).filter(|_| survivor.blocking_execute(&engine(Op::Take)).unwrap().allowed).count();
    assert_eq!(again, 5);
}
