//! A cluster of three masters: requests go to the master that holds the shard's slot, also while slots move.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use tidegate::store::{Charge, Op, Step, StepClock, Store as _, conformance};
use tidegate_core::{Cost, Quota, Tick};
use tidegate_redis::{AfterLoss, RedisOptions, RedisStore};

use crate::servers::{Server, blocking_each, namespace, program, runtime, within};

/// The number of hashes per namespace in a cluster, unless options say otherwise.
const CLUSTER_SHARDS: u64 = 1024;

/// Starts three masters and joins them into a cluster.
fn cluster() -> Option<Vec<Server>> {
    let cli = program("redis-cli")?;
    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let servers: Vec<Server> = (0..3).map(|_| Server::start(&options)).collect::<Option<_>>()?;
    let addresses: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let mut create = Command::new(cli);
    create.args(["--cluster", "create"]).args(&addresses).arg("--cluster-yes").stdout(Stdio::null());
    assert!(create.status().unwrap().success());
    for server in &servers {
        server.within("is part of the cluster", |server| {
            server.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }
    Some(servers)
}

fn connect(runtime: &tokio::runtime::Runtime, servers: &[Server], name: &str) -> RedisStore {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let options = RedisOptions::cluster(&urls).unwrap().namespace(name).after_loss(AfterLoss::Full);
    runtime.block_on(RedisStore::connect(options.patience(Duration::from_secs(10)))).unwrap()
}

fn take(store: &RedisStore, tag: u64, quota: &Arc<Quota>) -> Result<bool, String> {
    let key = tag.to_be_bytes();
    let charges = [Charge::new(&key, quota, Cost::ONE)];
    let step = Step { clock: StepClock::Engine, tag, ..Step::new(Tick::EPOCH, Op::Take, &charges) };
    store.blocking_execute(&step).map(|executed| executed.allowed).map_err(|error| error.to_string())
}

#[test]
fn a_cluster_conforms() {
    let Some(servers) = cluster() else { return };
    let runtime = runtime();
    conformance::run(|| connect(&runtime, &servers, &namespace()), &conformance::quotas(), 150);
}

#[test]
fn a_cluster_shares_the_keys_out_and_answers_batches_over_all() {
    let Some(servers) = cluster() else { return };
    let runtime = runtime();
    let store = connect(&runtime, &servers, "spread");
    let quota = Arc::new(Quota::per_day(3).gcra().unwrap());
    let keys: Vec<[u8; 8]> = (0..300u64).map(u64::to_be_bytes).collect();
    let charges: Vec<[Charge<'_>; 1]> =
        keys.iter().map(|key| [Charge::new(key, &quota, Cost::new(2).unwrap())]).collect();
    let steps: Vec<Step<'_>> = charges
        .iter()
        .zip(0..)
        .map(|(charges, tag)| Step {
            clock: StepClock::Engine,
            tag,
            ..Step::new(Tick::EPOCH, Op::Take, charges)
        })
        .collect();
    assert!(blocking_each(&store, &steps).into_iter().all(|answer| answer.unwrap().allowed));
    assert!(blocking_each(&store, &steps).into_iter().all(|answer| !answer.unwrap().allowed));
    for server in &servers {
        let Value::Int(hashes) = server.ask(&["DBSIZE"]) else { panic!("a number") };
        assert!(hashes > 50, "{hashes} hashes on one of three masters");
    }
}

/// One slot moves to another master while its limit is in use, by the steps that operators' tools take.
#[test]
fn a_slot_that_moves_under_load_is_charged_once_and_never_refused() {
    let Some(servers) = cluster() else { return };
    moves_under_load(&servers, |from| (from + 1) % 3);
}

/// The slot moves to a new master without slots, which the slot table does not name.
#[test]
fn a_slot_that_moves_to_a_master_without_slots_is_never_refused() {
    let Some(mut servers) = cluster() else { return };
    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    servers.push(Server::start(&options).unwrap());
    let port = servers[0].port.to_string();
    servers[3].ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    for server in &servers {
        server.within("knows four nodes", |server| {
            let known = server.text(&["CLUSTER", "INFO"]);
            known.contains("cluster_known_nodes:4") && known.contains("cluster_state:ok")
        });
    }
    moves_under_load(&servers, |_| 3);
}

fn moves_under_load(servers: &[Server], target: impl Fn(usize) -> usize) {
    let runtime = runtime();
    let store = connect(&runtime, &servers[..3], "moves");
    let quota = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
    // One tag and its slot.
    let tag = 5u64;
    take(&store, tag, &quota).unwrap();
    let shard = tag % CLUSTER_SHARDS;
    let key = format!("tg:1:{{moves:{shard}}}:h");
    let Value::Int(slot) = servers[0].ask(&["CLUSTER", "KEYSLOT", &key]) else { panic!("a slot") };
    let slot = slot.to_string();
    let holds = |server: &Server| server.try_ask(&["HLEN", &key]).is_some_and(|held| held == Value::Int(1));
    let from = servers.iter().position(holds).unwrap();
    let to = target(from);
    let id = |server: &Server| server.text(&["CLUSTER", "MYID"]);
    let stop = AtomicBool::new(false);
    let taken: u64 = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut taken = 1;
            while !stop.load(Ordering::Relaxed) {
                taken += u64::from(take(&store, tag, &quota).unwrap());
            }
            taken
        });
        within("some were taken", || store.counts().exchanges > 50);
        servers[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&servers[from])]);
        servers[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&servers[to])]);
        let before = store.counts().exchanges;
        within("some more were taken", || store.counts().exchanges > before + 50);
        let port = servers[to].port.to_string();
        servers[from].ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        let before = store.counts().exchanges;
        within("some were asked for at the other", || store.counts().exchanges > before + 50);
        for server in [&servers[to], &servers[from]] {
            server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(&servers[to])]);
        }
        let before = store.counts().exchanges;
        within("some were taken there", || store.counts().exchanges > before + 50);
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    assert!(store.counts().retries > 0, "{:?}", store.counts());
    let key = tag.to_be_bytes();
    let charges = [Charge::new(&key, &quota, Cost::ONE)];
    let peek = Step { clock: StepClock::Engine, tag, ..Step::new(Tick::EPOCH, Op::Peek, &charges) };
    let left = store.blocking_execute(&peek).unwrap().lines[0].decision.standing.remaining;
    // About twelve units are refilled per second.
    assert!((1_000_000 - taken..1_000_000 - taken + 600).contains(&left), "{taken} taken, {left} left");
}

/// Each link scans only the hashes of its own master.
#[test]
fn full_cells_are_deleted_in_a_cluster() {
    let Some(servers) = cluster() else { return };
    let runtime = runtime();
    let store = connect(&runtime, &servers, "swept");
    let fast = Arc::new(Quota::per_second(1000).burst(5).gcra().unwrap());
    let daily = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
    assert!((0..2000).all(|tag| take(&store, tag, &fast) == Ok(true)));
    // While scans find nothing, the next one comes 256 steps later. If links scanned the hashes of all masters, one
    // round over a thousand hashes would take some hundred thousand steps.
    let enough = (0..20_000).any(|turn| {
        take(&store, 5000 + turn % 50, &daily).unwrap();
        store.counts().swept > 1900
    });
    assert!(enough, "{:?}", store.counts());
}

/// If one of three masters dies, keys of the others are still decided.
#[test]
fn a_dead_master_stops_its_own_slots_alone() {
    let Some(mut servers) = cluster() else { return };
    for server in &servers {
        server.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let runtime = runtime();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let options = RedisOptions::cluster(&urls).unwrap().namespace("dies").after_loss(AfterLoss::Full);
    let store = runtime.block_on(RedisStore::connect(options)).unwrap();
    let quota = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
    assert!((0..60).all(|tag| take(&store, tag, &quota) == Ok(true)));
    servers[1].kill();
    let decided = (0..60).filter(|tag| take(&store, *tag, &quota) == Ok(true)).count();
    assert!((25..55).contains(&decided), "{decided} of 60");
}
