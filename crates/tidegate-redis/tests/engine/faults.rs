//! Servers that refuse, hang and end.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate::store::{Charge, DecidedBy, Fallback, Op, Step, StepClock, Store as _, StoreError};
use tidegate_core::{Cost, Quota, Tick};
use tidegate_redis::{AfterLoss, RedisOptions};
use tidegate_testkit::{Fault, FaultyProxy, PATIENCE, charge_under_faults};

use crate::servers::{Server, allowed, connect, left, options, options_through, runtime, take, within};

fn daily() -> Arc<Quota> {
    Arc::new(Quota::per_day(1000).gcra().unwrap())
}

/// Only the calls for which the server did not have the script are sent again: nothing is charged twice.
#[test]
fn a_script_that_is_gone_is_loaded_again() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let taken: usize = (0..20)
        .map(|_| {
            server.ask(&["SCRIPT", "FLUSH"]);
            allowed(&store, b"a", &daily(), 10)
        })
        .sum();
    assert_eq!(taken, 200);
    assert_eq!(left(&store, b"a", &daily()), 800);
    assert_eq!(store.counts().reloads, 20);
}

/// The server has lost the script, and the user may not load it any more: the error says so.
#[test]
fn a_script_that_may_not_be_loaded_is_told_as_that() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    server.ask(&["ACL", "SETUSER", "tide", "on", ">secret", "~*", "+@all"]);
    let url = format!("redis://tide:secret@{}/", server.addr());
    let options = RedisOptions::single(&url).unwrap().after_loss(AfterLoss::Full);
    let store = connect(&runtime, options);
    take(&store, b"a", &daily(), 1).unwrap();
    server.ask(&["ACL", "SETUSER", "tide", "-script|load"]);
    server.ask(&["SCRIPT", "FLUSH"]);
    let error = take(&store, b"a", &daily(), 1).unwrap_err().to_string();
    assert!(error.contains("the script cannot be loaded: NOPERM"), "{error}");
}

#[test]
fn scripts_flushed_under_load_charge_nobody_twice() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let quota = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
    let taken: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (store, quota) = (&store, &quota);
                scope.spawn(move || (0..200).filter(|_| take(store, b"a", quota, 1).unwrap().allowed).count())
            })
            .collect();
        for _ in 0..30 {
            server.ask(&["SCRIPT", "FLUSH"]);
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(taken, 800);
    // Some units of a million a day have been refilled.
    let left = left(&store, b"a", &quota);
    assert!((1_000_000 - 800..1_000_000 - 700).contains(&left), "{left}");
}

#[test]
fn full_memory_is_an_error_that_says_so() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    take(&store, b"a", &daily(), 1).unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = take(&store, b"a", &daily(), 1).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { reason } if reason.contains("OOM")), "{error}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(take(&store, b"a", &daily(), 1).unwrap().allowed);
    assert_eq!(left(&store, b"a", &daily()), 998, "what was refused is not charged");
}

#[test]
fn a_server_that_became_a_replica_says_so() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    take(&store, b"a", &daily(), 1).unwrap();
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = take(&store, b"a", &daily(), 1).unwrap_err().to_string();
    assert!(error.contains("read-only replica") || error.contains("READONLY"), "{error}");
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    within("it decides again", || take(&store, b"a", &daily(), 1).is_ok());
}

/// While another script runs long, the server refuses without executing, and is asked again.
#[test]
fn what_was_not_executed_is_sent_again() {
    let Some(server) = Server::start(&["--busy-reply-threshold", "20"]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).patience(Duration::from_secs(20)));
    take(&store, b"a", &daily(), 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.try_ask(&["EVAL", "while true do end", "0"]));
        within("the server is busy", || server.try_ask(&["PING"]).is_none());
        let taken = scope.spawn(|| take(&store, b"a", &daily(), 1));
        within("it was asked again", || store.counts().retries > 2);
        server.ask(&["SCRIPT", "KILL"]);
        assert!(taken.join().unwrap().unwrap().allowed);
    });
    assert_eq!(left(&store, b"a", &daily()), 998);
}

/// A call that was not answered in time was executed at most once, whatever the server did.
#[test]
fn a_server_that_hangs_is_given_up_and_never_asked_twice() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).timeout(Duration::from_millis(200)));
    take(&store, b"a", &daily(), 1).unwrap();
    server.signal("-STOP");
    let error = take(&store, b"a", &daily(), 1).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    server.signal("-CONT");
    within("it decides again", || take(&store, b"b", &daily(), 1).is_ok());
    let left = left(&store, b"a", &daily());
    assert!(left == 998 || left == 999, "{left}");
}

#[test]
fn a_connection_that_is_cut_is_made_again() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    for _ in 0..5 {
        take(&store, b"a", &daily(), 1).unwrap();
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        within("it decides again", || take(&store, b"b", &daily(), 1).is_ok());
    }
    assert_eq!(left(&store, b"a", &daily()), 995);
    assert_eq!(store.counts().connections, 6);
}

/// A step whose caller gave up while a connection was being made must not be sent later: the caller has already got an
/// error.
#[test]
fn what_is_given_up_while_connecting_is_not_sent() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let options = options_through(&proxy).timeout(PATIENCE);
    let (store, quota) = (connect(&runtime, options), daily());
    assert_eq!(left(&store, b"a", &daily()), 1000);
    proxy.set(Fault::Cut);
    assert!(take(&store, b"a", &daily(), 1).is_err());
    proxy.set(Fault::Stall);
    let made = proxy.connections();
    within("it connects again", || {
        let charges = [Charge::new(b"a", &quota, Cost::ONE)];
        let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, &charges) };
        let mut answers = Vec::new();
        let later = store.execute_each(&[step], &mut answers).unwrap();
        // Cancelled at once or after a moment, as by a deadline.
        let given_up =
            runtime.block_on(async { tokio::time::timeout(Duration::from_millis(20), later).await });
        given_up.is_err() && proxy.connections() > made
    });
    proxy.set(Fault::None);
    assert_eq!(left(&store, b"a", &daily()), 1000, "nothing was charged");
}

/// Under all connection faults, an answered charge is spent; an unanswered one is spent once or not at all. For steps
/// of the script and of the library.
#[test]
fn nothing_is_charged_twice_whatever_connections_do() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let direct = connect(&runtime, options(&server).namespace("faulty"));
    let many = Quota::per_day(1_000_000);
    for (key, quota) in [(b"a", many.fixed_window()), (b"b", many.sliding_window(24))] {
        let quota = Arc::new(quota.unwrap());
        let proxy = FaultyProxy::before(server.addr()).unwrap();
        let options = options_through(&proxy).namespace("faulty").timeout(Duration::from_millis(200));
        let store = connect(&runtime, options);
        let charges = charge_under_faults(&proxy, || take(&store, key, &quota, 1).is_ok());
        let spent = 1_000_000 - left(&direct, key, &quota);
        let most = charges.answered + charges.unanswered;
        assert!((charges.answered..=most).contains(&spent), "{spent} spent of {charges:?}");
    }
}

/// The server has executed the call, but its answer was lost: it is not sent again.
#[test]
fn a_charge_whose_answer_was_lost_is_charged_once() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let proxy = FaultyProxy::before(server.addr()).unwrap();
    let store = connect(&runtime, options_through(&proxy).timeout(Duration::from_millis(200)));
    assert!(take(&store, b"a", &daily(), 1).is_ok());
    proxy.set(Fault::LoseAnswers);
    assert!(take(&store, b"a", &daily(), 1).is_err());
    proxy.set(Fault::None);
    within("it answers again", || take(&store, b"b", &daily(), 1).is_ok());
    assert_eq!(left(&store, b"a", &daily()), 998);
}

/// While the server is gone this node grants its share; afterwards the server decides again.
#[test]
fn a_gone_server_is_stood_in_for() {
    let Some(mut server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let redis = connect(&runtime, options(&server));
    let store =
        Fallback::around(redis, SystemClock::new()).nodes(2).probe_every(Duration::from_millis(50)).build();
    let quota = daily();
    let take = || {
        let charges = [Charge::new(b"a", &quota, Cost::ONE)];
        let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, &charges) };
        store.blocking_execute(&step).unwrap()
    };
    assert_eq!(take().by, DecidedBy::Engine);
    server.kill();
    within("this node decides", || take().by == DecidedBy::Fallback);
    let alone = (0..2000).filter(|_| take().allowed).count();
    assert!((400..=501).contains(&alone), "half of a thousand: {alone}");
    server.start_again();
    within("the server decides", || take().by == DecidedBy::Engine);
}

/// Two nodes at a time, each with a limit that the library decides: the loser decides anew, and every unit is granted
/// once.
#[test]
fn nodes_that_write_the_same_cell_share_it_exactly() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let shared = crate::servers::namespace();
    let nodes = [0, 1].map(|_| connect(&runtime, options(&server).namespace(&shared)));
    let log = Arc::new(Quota::per_day(100).sliding_log().unwrap());
    let taken: usize = std::thread::scope(|scope| {
        let ask = |node: &tidegate_redis::RedisStore| {
            (0..100).filter(|_| take(node, b"a", &log, 1).is_ok_and(|executed| executed.allowed)).count()
        };
        let workers: Vec<_> =
            nodes.iter().flat_map(|node| [node, node]).map(|node| scope.spawn(move || ask(node))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(taken as u64 + left(&nodes[0], b"a", &log), 100);
}
