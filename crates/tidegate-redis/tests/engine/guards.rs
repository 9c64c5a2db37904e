//! Places in flight on a server: those of a dead holder are freed after their time to live.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{Charge, Ending, Op, Step, StepClock, Store as _};
use tidegate::{Clock as _, ManualClock};
use tidegate_core::{Cost, Finish, Quota, Tick};
use tidegate_redis::RedisStore;

use crate::servers::{Server, options, runtime};

#[test]
fn places_of_a_node_that_died_come_back() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let clock = ManualClock::default();
    clock.set(Tick::from_secs(1_700_000_000));
    let shared = crate::servers::namespace();
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
            assert!(dying.blocking_settle(&engine(Op::Take)).unwrap().allowed);
        }
        survivor.blocking_settle(&engine(Op::Take)).unwrap().lines[0].receipt.unwrap()
    };
    assert!(!survivor.blocking_settle(&engine(Op::Take)).unwrap().allowed, "held by whoever is gone");
    let ended = [Ending::new(receipt, Finish::UNDONE)];
    survivor.blocking_settle(&engine(Op::Finish(&ended))).unwrap();
    assert!(survivor.blocking_settle(&engine(Op::Take)).unwrap().allowed, "one that was returned");
    clock.set(clock.now().after(Duration::from_secs(31)));
    let again = (0..6).filter(|_| survivor.blocking_settle(&engine(Op::Take)).unwrap().allowed).count();
    assert_eq!(again, 5);
}
