//! The laws of stores and of coordinators, over a real etcd.

use crate::server;

use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::cluster;
use tidegate::store::{ByteMap as _, CasStore, StoreError, Write, Written, conformance};
use tidegate_etcd::Etcd;
use tidegate_testkit::{runtime, within};

#[test]
fn the_store_conforms() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    conformance::run(|| server.connect(&runtime).store(), &conformance::quotas(), 200);
}

#[test]
fn the_coordinator_conforms() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let options = server.options();
    let connect = || {
        let etcd = runtime.block_on(Etcd::connect(options.clone())).unwrap();
        etcd.coordinator(Duration::from_secs(2))
    };
    cluster::conformance::run(&connect, &|_| ());
}

/// Shares that move, and policies that reach three nodes.
#[test]
fn nodes_agree() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let options = server.options();
    let connect = || {
        let etcd = runtime.block_on(Etcd::connect(options.clone())).unwrap();
        etcd.coordinator(Duration::from_secs(2))
    };
    cluster::conformance::agreement(&connect);
}

/// Cells that were written one after the other share few leases and are deleted when these end. Cells without an end
/// stay.
#[test]
fn cells_are_deleted_when_their_time_is_over() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let etcd = server.connect(&runtime);
    let map = etcd.map();
    let write = |key: u8, keep| {
        let key: Arc<[u8]> = vec![key].into();
        let write = Write { key, version: 0, value: Some(vec![1]), keep };
        assert_eq!(runtime.block_on(map.write_if_unchanged(0, vec![write])).unwrap(), Written::All);
    };
    for key in 0..50 {
        write(key, Some(Duration::from_secs(1)));
    }
    write(200, None);
    write(201, Some(Duration::from_secs(3600)));
    let leases = server.ctl(&["lease", "list"]).lines().skip(1).count();
    assert!((2..=5).contains(&leases), "{leases} leases");
    let count = || server.ctl(&["get", "test-", "--prefix", "--keys-only"]).split_whitespace().count();
    within("the short ones are gone", || count() == 2);
}

/// Another client revokes the cells' lease: the next write gets a new one, and is executed once.
#[test]
fn a_lease_that_is_gone_is_granted_again() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let map = server.connect(&runtime).map();
    let key: Arc<[u8]> = b"key".as_slice().into();
    let write = |version| {
        let write = Write {
            key: Arc::clone(&key),
            version,
            value: Some(vec![1]),
            keep: Some(Duration::from_secs(3600)),
        };
        runtime.block_on(map.write_if_unchanged(0, vec![write])).unwrap() == Written::All
    };
    assert!(write(0));
    let leases = server.ctl(&["lease", "list"]);
    server.ctl(&["lease", "revoke", leases.lines().nth(1).unwrap()]);
    let read = runtime.block_on(map.read(0, &[Arc::clone(&key)])).unwrap();
    assert_eq!(read.values[0].value, None, "the cell went with its lease");
    assert!(write(0));
    assert!(!write(0));
}

/// A server that stops answering causes an error in time, not a hang; the store continues when the server does.
#[test]
fn a_silent_server_is_an_error_in_time() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let options = server.options().timeout(Duration::from_millis(500));
    let etcd = runtime.block_on(Etcd::connect(options)).unwrap();
    let map = etcd.map();
    let key: Arc<[u8]> = b"key".as_slice().into();
    server.signal("-STOP");
    let answer = runtime.block_on(map.read(0, &[Arc::clone(&key)]));
    server.signal("-CONT");
    let Err(StoreError::Unavailable { reason }) = answer else { panic!("{answer:?}") };
    assert_eq!(reason, "etcd: no answer within 500 ms");
    within("it answers again", || runtime.block_on(map.read(0, &[Arc::clone(&key)])).is_ok());
    drop(CasStore::new(map));
}

/// Its lease lived on, so the node believed that it was a member, while the others did not see it any more.
#[test]
fn a_member_whose_key_was_deleted_is_told_so() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let node = server.connect(&runtime).coordinator(Duration::from_secs(60));
    runtime.block_on(node.join("node", b"says")).unwrap();
    runtime.block_on(node.renew(b"says")).unwrap();
    let keys = server.ctl(&["get", "test-", "--prefix", "--keys-only"]);
    assert!(keys.contains("/1/members/"), "{keys}");
    server.ctl(&["del", "test-", "--prefix"]);
    let renewed = runtime.block_on(node.renew(b"says"));
    assert!(matches!(renewed, Err(cluster::CoordinatorError::Forgotten(_))), "{renewed:?}");
    runtime.block_on(node.join("node", b"says")).unwrap();
    assert_eq!(runtime.block_on(node.members()).unwrap().len(), 1);
}
