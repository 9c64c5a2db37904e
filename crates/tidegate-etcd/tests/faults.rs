//! Connections that lose answers, hang and break.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::store::{ByteMap as _, CasStore, Charge, Op, Step, Store as _, Write};
use tidegate::{Cost, Quota, Tick};
use tidegate_etcd::{Etcd, EtcdMap};
use tidegate_testkit::{Fault, FaultyProxy, charge_under_faults, runtime, within};

const NOW: Tick = Tick::from_secs(1_000_000);

/// Runs an operation with one unit of the test's limit, and returns the remaining units.
fn execute(store: &CasStore<EtcdMap>, op: Op<'_>, quota: &Arc<Quota>) -> Option<u64> {
    let executed = store.blocking_execute(&Step::new(NOW, op, &[Charge::new(b"key", quota, Cost::ONE)]));
    executed.ok().map(|executed| executed.lines[0].decision.standing.remaining)
}

/// An answered charge is spent; an unanswered one is spent once or not at all.
#[test]
fn nothing_is_charged_twice_whatever_connections_do() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let options = server.options_through(&proxy).timeout(Duration::from_secs(1));
    let prefix = "charged";
    let store = runtime.block_on(Etcd::connect(options.prefix(prefix))).unwrap().store();
    let direct = runtime.block_on(Etcd::connect(server.options().prefix(prefix))).unwrap().store();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let charges = charge_under_faults(&proxy, || execute(&store, Op::Take, &quota).is_some());
    let spent = 1_000_000 - execute(&direct, Op::Peek, &quota).unwrap();
    let most = charges.answered + charges.unanswered;
    assert!((charges.answered..=most).contains(&spent), "{spent} spent of {charges:?}");
}

/// Writes that were cancelled while their lease was being requested, as by a deadline, used to leave a lease behind
/// each, for an hour.
#[test]
fn a_write_that_is_given_up_leaves_no_lease_behind() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let map = runtime.block_on(Etcd::connect(server.options_through(&proxy))).unwrap().map();
    let write = || {
        let key: Arc<[u8]> = b"key".as_slice().into();
        let write = Write { key, version: 0, value: Some(vec![1]), keep: Some(Duration::from_secs(36_000)) };
        map.write_if_unchanged(0, vec![write])
    };
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    for _ in 0..8 {
        let given_up = async { tokio::time::timeout(Duration::from_millis(40), write()).await };
        assert!(runtime.block_on(given_up).is_err());
    }
    let leases = || server.ctl(&["lease", "list"]).lines().skip(1).count();
    proxy.set(Fault::None);
    // A cancelled one may have been executed.
    let _ = runtime.block_on(write()).unwrap();
    within("what was asked for is granted", || leases() > 0);
    // Two if a stretch of time ended between the tries.
    assert!(leases() <= 2, "{} leases", leases());
}
