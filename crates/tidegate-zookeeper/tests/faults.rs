//! Connections that lose answers, hang and break, and sessions that end.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::cluster::CoordinatorError;
use tidegate::store::{CasStore, Charge, Op, Step, Store as _};
use tidegate::{Cost, Quota, Tick};
use tidegate_testkit::{
    Fault, FaultyProxy, ZooKeeperServer, charge_under_faults, free_port, runtime, within,
};
use tidegate_zookeeper::{ZooKeeper, ZooKeeperMap, ZooKeeperOptions};
use tokio::runtime::Runtime;

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

/// Wherever it stands.
#[test]
fn a_dead_address_in_the_list_costs_no_request() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let (live, dead) = (server.addr().to_string(), format!("127.0.0.1:{}", free_port()));
    for (addresses, path) in [([&live, &dead], "/last"), ([&dead, &live], "/first")] {
        let options = ZooKeeperOptions::new(addresses.map(String::as_str)).path(path);
        let store = runtime.block_on(ZooKeeper::connect(options)).unwrap().store();
        let answered = (0..50).filter(|_| execute(&store, Op::Take, &quota).is_some()).count();
        assert_eq!(answered, 50, "the dead address is {path}");
    }
}

/// An ensemble of three, each server behind a proxy.
struct Three {
    servers: [ZooKeeperServer; 3],
    proxies: [FaultyProxy; 3],
}

impl Three {
    fn start() -> Option<Self> {
        let servers = ZooKeeperServer::start_three()?;
        let proxies = servers.each_ref().map(|server| FaultyProxy::before(server.addr()).unwrap());
        Some(Self { servers, proxies })
    }

    fn one_that(&self, leads: bool) -> usize {
        self.servers.iter().position(|server| server.leads() == leads).unwrap()
    }

    /// Connects to all servers, but so that this one is asked: the others are away until then.
    fn store_that_asks(&self, which: usize, runtime: &Runtime) -> CasStore<ZooKeeperMap> {
        let others = || self.proxies.iter().enumerate().filter(|(at, _)| *at != which);
        others().for_each(|(_, proxy)| proxy.set(Fault::Cut));
        let options = ZooKeeperOptions::new(self.proxies.each_ref().map(|proxy| proxy.addr().to_string()));
        let zookeeper = runtime.block_on(ZooKeeper::connect(options)).unwrap();
        others().for_each(|(_, proxy)| proxy.set(Fault::None));
        zookeeper.store()
    }
}

/// Steps go to another server when theirs dies, and what was answered is charged once.
#[test]
fn a_killed_follower_fails_no_step_and_a_killed_leader_only_until_the_next_is_elected() {
    let Some(mut three) = Three::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let follower = three.one_that(false);
    let store = three.store_that_asks(follower, &runtime);
    let mut taken = 0;
    let mut takes = || {
        let left = execute(&store, Op::Take, &quota);
        taken += u64::from(left.is_some());
        assert!(left.is_none_or(|left| left == 1_000_000 - taken), "{left:?} left of {taken} taken");
        left.is_some()
    };
    assert!(takes());
    three.servers[follower].kill();
    assert!((0..20).all(|_| takes()), "a follower was killed");
    three.servers[follower].start_again();
    let leader = three.one_that(true);
    let asks_leader = three.store_that_asks(leader, &runtime);
    assert!(execute(&asks_leader, Op::Peek, &quota).is_some());
    three.servers[leader].kill();
    within("another leads", || execute(&asks_leader, Op::Take, &quota).is_some());
    within("the other store sees it", || execute(&store, Op::Take, &quota).is_some());
    let both = |store| execute(store, Op::Peek, &quota).is_some();
    assert!((0..20).all(|_| both(&asks_leader) && both(&store)), "the leader was killed");
}

/// A server that stands still, or is cut off without a word, closes no connection: it was left after four seconds,
/// and the step failed.
#[test]
fn a_silent_server_is_left_within_the_deadline_of_a_step() {
    let Some(three) = Three::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let follower = three.one_that(false);
    let store = three.store_that_asks(follower, &runtime);
    assert_eq!(execute(&store, Op::Take, &quota), Some(999_999));
    three.proxies[follower].set(Fault::Stall);
    let clock = SystemClock::new();
    let before = clock.now();
    assert_eq!(execute(&store, Op::Take, &quota), Some(999_998));
    let took = clock.now().since(before);
    assert!(took < Duration::from_millis(250), "{took:?}");
}
