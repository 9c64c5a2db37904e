//! The laws of stores and of coordinators, over a real ZooKeeper.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::cluster;
use tidegate::store::{ByteMap as _, StoreError, Write, Written, conformance};
use tidegate_testkit::{runtime, within};
use tidegate_zookeeper::ZooKeeper;

#[test]
fn the_store_conforms() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    conformance::run(|| server.connect(&runtime).store(), &conformance::quotas(), 200);
}

#[test]
fn the_coordinator_conforms() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let options = server.options();
    let connect = || {
        let zookeeper = runtime.block_on(ZooKeeper::connect(options.clone())).unwrap();
        zookeeper.coordinator(Duration::from_secs(4))
    };
    cluster::conformance::run(&connect, &|_| ());
}

/// Shares that move, and policies that reach three nodes.
#[test]
fn nodes_agree() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let options = server.options();
    let connect = || {
        let zookeeper = runtime.block_on(ZooKeeper::connect(options.clone())).unwrap();
        zookeeper.coordinator(Duration::from_secs(4))
    };
    cluster::conformance::agreement(&connect);
}

fn write(key: &Arc<[u8]>, version: u64, value: Option<u8>, keep: Option<Duration>) -> Vec<Write> {
    vec![Write { key: Arc::clone(key), version, value: value.map(|value| vec![value]), keep }]
}

/// A version read before a cell was deleted and made again must not allow a write, although ZooKeeper's own counter
/// starts at zero again.
#[test]
fn a_cell_that_was_made_again_is_another_one() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let map = server.connect(&runtime).map();
    let key: Arc<[u8]> = b"key".as_slice().into();
    let read = || runtime.block_on(map.read(0, &[Arc::clone(&key)])).unwrap().values.remove(0);
    let replace = |version, value| {
        runtime.block_on(map.write_if_unchanged(0, write(&key, version, value, None))).unwrap()
            == Written::All
    };
    let absent = read().version;
    assert!(replace(absent, Some(1)));
    let old = read();
    assert!(replace(old.version, None));
    assert_eq!(read().value, None);
    assert!(replace(read().version, Some(2)));
    assert!(!replace(old.version, Some(3)), "its version was the same number");
    assert!(!replace(absent, Some(3)));
    assert_eq!(read().value, Some(vec![2]));
}

#[test]
fn cells_are_deleted_when_their_time_is_over() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    // Enough nodes share the work that all buckets are scanned in a few seconds.
    let options = server.options();
    let nodes: Vec<_> =
        (0..64).map(|_| runtime.block_on(ZooKeeper::connect(options.clone())).unwrap().map()).collect();
    let map = &nodes[0];
    let keys: Vec<Arc<[u8]>> = (0u8..20).map(|key| vec![key].into()).collect();
    let values = || {
        let read = runtime.block_on(map.read(0, &keys)).unwrap();
        read.values.into_iter().filter(|held| held.value.is_some()).count()
    };
    for (at, key) in keys.iter().enumerate() {
        let keep = match at {
            0 => None,
            1 => Some(Duration::from_secs(3600)),
            _ => Some(Duration::from_secs(1)),
        };
        let version = runtime.block_on(map.read(0, &[Arc::clone(key)])).unwrap().values[0].version;
        assert!(
            runtime.block_on(map.write_if_unchanged(0, write(key, version, Some(1), keep))).unwrap()
                == Written::All
        );
    }
    within("the short ones are gone", || values() == 2);
}

/// A server that stops answering causes an error in time, not a hang; the store continues when the server does.
#[test]
fn a_silent_server_is_an_error_in_time() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let options = server.options().timeout(Duration::from_millis(1500));
    let map = runtime.block_on(ZooKeeper::connect(options)).unwrap().map();
    let key: Arc<[u8]> = b"key".as_slice().into();
    server.signal("-STOP");
    let answer = runtime.block_on(map.read(0, &[Arc::clone(&key)]));
    server.signal("-CONT");
    let Err(StoreError::Unavailable { reason }) = answer else { panic!("{answer:?}") };
    assert!(reason.starts_with("ZooKeeper: no answer within 1500 ms"), "{reason}");
    within("it answers again", || runtime.block_on(map.read(0, &[Arc::clone(&key)])).is_ok());
}
