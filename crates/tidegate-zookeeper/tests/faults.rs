//! Connections that lose answers, hang and break, and sessions that end.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::cluster::CoordinatorError;
use tidegate::store::{CasStore, Charge, Op, Step, Store as _};
use tidegate::{Cost, Quota, Tick};
use tidegate_testkit::{Fault, FaultyProxy, charge_under_faults, runtime, within};
use tidegate_zookeeper::{ZooKeeper, ZooKeeperMap};

const NOW: Tick = Tick::from_secs(1_000_000);

/// Runs an operation with one unit of the test's limit, and returns the remaining units.
fn execute(store: &CasStore<ZooKeeperMap>, op: Op<'_>, quota: &Arc<Quota>) -> Option<u64> {
    let executed = store.blocking_execute(&Step::new(NOW, op, &[Charge::new(b"key", quota, Cost::ONE)]));
    executed.ok().map(|executed| executed.lines[0].decision.standing.remaining)
}

/// An answered charge is spent; an unanswered one is spent once or not at all.
#[test]
fn nothing_is_charged_twice_whatever_connections_do() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let options = server.options_through(&proxy).timeout(Duration::from_secs(1));
    let path = "/charged";
    let store = runtime.block_on(ZooKeeper::connect(options.path(path))).unwrap().store();
    let direct = runtime.block_on(ZooKeeper::connect(server.options().path(path))).unwrap().store();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let charges = charge_under_faults(&proxy, || execute(&store, Op::Take, &quota).is_some());
    let spent = 1_000_000 - execute(&direct, Op::Peek, &quota).unwrap();
    let most = charges.answered + charges.unanswered;
    assert!((charges.answered..=most).contains(&spent), "{spent} spent of {charges:?}");
}

/// Points a proxy at a server that knows none of the sessions, so that they end as soon as their connections are made
/// anew.
fn end_sessions(proxy: &FaultyProxy, other: &Server) {
    proxy.set(Fault::Cut);
    proxy.lead_to(other.addr());
    proxy.set(Fault::None);
}

/// It used to read over the shared session, which may lack writes from before the member last renewed.
#[test]
fn a_member_whose_session_has_ended_is_told_so() {
    let (Some(server), Some(other)) = (Server::start(), Server::start()) else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let zookeeper = runtime.block_on(ZooKeeper::connect(server.options_through(&proxy))).unwrap();
    let member = zookeeper.coordinator(Duration::from_secs(10));
    runtime.block_on(member.join("a", b"")).unwrap();
    runtime.block_on(member.read("document")).unwrap();
    end_sessions(&proxy, &other);
    within("the member is told", || match runtime.block_on(member.read("document")) {
        Err(CoordinatorError::Forgotten(_)) => true,
        Err(_) => false,
        Ok(read) => panic!("{read:?} over another session"),
    });
}
