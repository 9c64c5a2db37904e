//! Connections that lose answers, hang and break.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::{ByteMap as _, CasStore, Charge, Op, Step, Store as _, Write};
use tidegate::{Cost, Quota, Tick};
use tidegate_etcd::{Etcd, EtcdMap, EtcdOptions};
use tidegate_testkit::{EtcdServer, Fault, FaultyProxy, charge_under_faults, free_port, runtime, within};
use tokio::runtime::Runtime;

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

/// One connection over all addresses asked a dead one each second time.
#[test]
fn a_dead_address_in_the_list_costs_no_request() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let (live, dead) = (server.url().to_owned(), format!("http://127.0.0.1:{}", free_port()));
    for (urls, prefix) in [([&live, &dead], "last"), ([&dead, &live], "first")] {
        let options = EtcdOptions::new(urls.map(String::as_str)).prefix(prefix);
        let store = runtime.block_on(Etcd::connect(options)).unwrap().store();
        let answered = (0..50).filter(|_| execute(&store, Op::Take, &quota).is_some()).count();
        assert_eq!(answered, 50, "the dead address is {prefix}");
    }
}

/// A cluster of three, each member behind a proxy.
struct Three {
    members: [EtcdServer; 3],
    proxies: [FaultyProxy; 3],
}

impl Three {
    fn start() -> Option<Self> {
        let members = EtcdServer::start_three(&["--unsafe-no-fsync", "--strict-reconfig-check=false"])?;
        let proxies = members.each_ref().map(|member| FaultyProxy::before(member.addr()).unwrap());
        Some(Self { members, proxies })
    }

    fn one_that(&self, leads: bool) -> usize {
        self.members.iter().position(|member| member.leader() == Some(leads)).unwrap()
    }

    /// Connects to all members, but so that this one is asked: the others are away until then.
    fn store_that_asks(&self, which: usize, runtime: &Runtime) -> CasStore<EtcdMap> {
        let others = || self.proxies.iter().enumerate().filter(|(at, _)| *at != which);
        others().for_each(|(_, proxy)| proxy.set(Fault::Cut));
        let urls = self.proxies.each_ref().map(|proxy| format!("http://{}", proxy.addr()));
        let etcd = runtime.block_on(Etcd::connect(EtcdOptions::new(urls).prefix("three"))).unwrap();
        others().for_each(|(_, proxy)| proxy.set(Fault::None));
        etcd.store()
    }
}

/// Steps go to another member when theirs dies, and what was answered is charged once.
#[test]
fn a_killed_follower_fails_no_step_and_a_killed_leader_only_until_the_next_is_elected() {
    let Some(mut three) = Three::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let follower = three.one_that(false);
    let store = three.store_that_asks(follower, &runtime);
    let mut taken = 0;
    let mut takes = || {
        execute(&store, Op::Take, &quota)
            .inspect(|left| {
                taken += 1;
                assert_eq!(*left, 1_000_000 - taken, "each is charged once");
            })
            .is_some()
    };
    assert!(takes());
    three.members[follower].kill();
    assert!((0..20).all(|_| takes()), "a follower was killed");
    three.members[follower].start_again();
    within("the follower is back", || three.members[follower].leader().is_some());
    let leader = three.one_that(true);
    let asks_leader = three.store_that_asks(leader, &runtime);
    assert!(execute(&asks_leader, Op::Peek, &quota).is_some());
    three.members[leader].kill();
    within("another leads", || execute(&asks_leader, Op::Peek, &quota).is_some());
    let both = |store| execute(store, Op::Peek, &quota).is_some();
    assert!((0..20).all(|_| both(&asks_leader) && both(&store)), "the leader was killed");
}

/// The member that is asked is removed from the cluster, and a new one comes to its address.
#[test]
fn members_that_are_removed_and_added_fail_no_step() {
    let Some(three) = Three::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let (leader, follower) = (three.one_that(true), three.one_that(false));
    let store = three.store_that_asks(follower, &runtime);
    let takes = || (0..20).all(|_| execute(&store, Op::Take, &quota).is_some());
    assert!(takes());
    three.members[leader].remove(&three.members[follower]);
    assert!(takes(), "the member was removed");
    let added = three.members[leader].add(&["--unsafe-no-fsync"]);
    three.proxies[follower].lead_to(added.addr());
    // The only one that is left for this process.
    for (at, proxy) in three.proxies.iter().enumerate() {
        proxy.set(if at == follower { Fault::None } else { Fault::Cut });
    }
    assert!(takes(), "the new member answers");
}

/// A member that stands still, or is cut off without a word, closes no connection.
#[test]
fn a_silent_member_is_left_within_the_deadline_of_a_step() {
    let Some(three) = Three::start() else { return };
    let runtime = runtime();
    let quota = Arc::new(Quota::per_day(1_000_000).fixed_window().unwrap());
    let follower = three.one_that(false);
    let store = three.store_that_asks(follower, &runtime);
    assert_eq!(execute(&store, Op::Take, &quota), Some(999_999));
    three.proxies[follower].set(Fault::Stall);
    let begun = SystemClock::new();
    let before = begun.now();
    assert_eq!(execute(&store, Op::Take, &quota), Some(999_998));
    let took = begun.now().since(before);
    assert!(took < Duration::from_millis(250), "{took:?}");
}
