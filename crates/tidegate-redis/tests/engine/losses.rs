//! Servers that forget: flushed, restarted, evicting.

use std::sync::Arc;

use tidegate_core::Quota;
use tidegate_redis::AfterLoss;

use crate::servers::{Server, allowed, connect, left, namespace, options, runtime, take, within};

fn daily() -> Arc<Quota> {
    Arc::new(Quota::per_day(100).gcra().unwrap())
}

/// After everything was lost, the share that is granted again is none, half or all.
#[test]
fn a_flush_is_noticed() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let daily_windows = Arc::new(Quota::per_day(100).fixed_window().unwrap());
    let log = Arc::new(Quota::per_day(100).sliding_log().unwrap());
    for (after_loss, most) in [(AfterLoss::Empty, 0), (AfterLoss::Half, 50), (AfterLoss::Full, 100)] {
        let store = connect(&runtime, options(&server).after_loss(after_loss));
        // Only with `Empty` do shards that were never used count as lost; get that over with first.
        let quotas = [daily(), Arc::clone(&daily_windows), Arc::clone(&log)];
        for (key, quota) in quotas.iter().enumerate() {
            let first = allowed(&store, &[key as u8], quota, 100);
            assert_eq!(
                first,
                if after_loss == AfterLoss::Empty { 0 } else { 100 },
                "{after_loss:?} {quota:?}"
            );
        }
        server.ask(&["FLUSHALL"]);
        for (key, quota) in quotas.iter().enumerate() {
            assert_eq!(allowed(&store, &[key as u8], quota, 100), most, "{after_loss:?} {quota:?}");
            assert_eq!(allowed(&store, &[key as u8], quota, 100), 0, "once");
        }
        // A key that was never used cannot be told from a lost one, so it counts as lost too.
        assert_eq!(left(&store, b"new", &daily()), most as u64);
    }
}

#[test]
fn a_loss_is_over_when_time_has_given_everything_back() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let fast = Arc::new(Quota::per_second(50).burst(10).gcra().unwrap());
    let store = connect(&runtime, options(&server).after_loss(AfterLoss::Empty).shards(1));
    take(&store, b"a", &fast, 1).unwrap();
    within("the limit is full again", || left(&store, b"a", &fast) == 10);
    // New keys are decided in one round trip again, without replacing any cell.
    let before = store.counts();
    assert!(take(&store, b"b", &fast, 10).unwrap().allowed);
    assert_eq!(store.counts().by_library, before.by_library);
}

/// A server that restarts after a crash has lost what it had not persisted.
#[test]
fn a_restart_is_noticed() {
    let Some(mut server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).after_loss(AfterLoss::Half));
    assert_eq!(allowed(&store, b"a", &daily(), 80), 80);
    server.kill();
    assert!(take(&store, b"a", &daily(), 1).is_err(), "nobody answers");
    server.start_again();
    within("the store is connected again", || take(&store, b"a", &daily(), 101).is_ok());
    assert_eq!(allowed(&store, b"a", &daily(), 100), 50);
}

/// A server that kept everything looks like one that did not: it counts as having lost cells, once.
#[test]
fn what_came_through_a_restart_counts_where_it_says_less() {
    let Some(mut server) = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).after_loss(AfterLoss::Half));
    assert_eq!(allowed(&store, b"a", &daily(), 80), 80);
    assert_eq!(allowed(&store, b"b", &daily(), 10), 10);
    server.kill();
    server.start_again();
    within("the store is connected again", || take(&store, b"a", &daily(), 101).is_ok());
    assert_eq!(allowed(&store, b"a", &daily(), 100), 20, "what was spent is known");
    assert_eq!(allowed(&store, b"b", &daily(), 100), 50, "the half that is sure");
}

#[test]
fn an_eviction_is_noticed() {
    let Some(server) = Server::start(&["--maxmemory-policy", "allkeys-random"]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server).after_loss(AfterLoss::Half).shards(1));
    assert_eq!(store.eviction_policy(), "allkeys-random");
    assert_eq!(allowed(&store, b"a", &daily(), 100), 100);
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    within("it has evicted", || {
        server.info("evicted_keys") != "0" || server.try_ask(&["SET", "x", "y"]).is_none()
    });
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(allowed(&store, b"a", &daily(), 100), 50);
}

/// A flush also deletes the key that distinguishes a first use from a loss. The next node that started used to mark all
/// shards that were not used since as complete, so their limits were full again.
#[test]
fn a_node_that_starts_after_a_flush_takes_no_shard_for_a_new_one() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let shared = namespace();
    let node = || connect(&runtime, options(&server).namespace(&shared).after_loss(AfterLoss::Half));
    let first = node();
    assert!((0..40).all(|key| allowed(&first, &[key], &daily(), 100) == 100));
    server.ask(&["FLUSHALL"]);
    // The loss of one shard is detected.
    take(&first, &[0], &daily(), 1).unwrap();
    let used = format!("tg:1:{{{shared}:0}}:used");
    assert_eq!(
        server.text(&["GET", &used]),
        "shards=16",
        "whoever notices it says again that the namespace is used"
    );
    // The same if the node that detected it did not get to write the key.
    server.ask(&["DEL", &used]);
    let second = node();
    for key in 1..40 {
        let again = allowed(&second, &[key], &daily(), 100);
        assert!(again <= 50, "{again} of key {key}");
    }
}
