//! The errors when no connection can be made.

use crate::server;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use server::Server;
use tidegate_testkit::{free_port, runtime};
use tidegate_zookeeper::{ConnectError, ZooKeeper, ZooKeeperOptions};
use tokio::runtime::Runtime;

#[track_caller]
fn refused(runtime: &Runtime, options: ZooKeeperOptions) -> ConnectError {
    runtime.block_on(ZooKeeper::connect(options)).expect_err("nobody is to connect")
}

#[test]
fn addresses_and_paths_that_are_none_are_told_as_such() {
    let runtime = runtime();
    for (address, part) in [
        ("10.0.0.1", "names no port"),
        ("10.0.0.1:99999", "names no port"),
        ("zk://10.0.0.1:2181", "more than one host and a port"),
        ("a:1,b:1", "more than one host and a port"),
        ("root:hunter2@10.0.0.1:2181", "holds credentials"),
    ] {
        let told = refused(&runtime, ZooKeeperOptions::new([address])).to_string();
        assert!(told.contains(part) && !told.contains("hunter2"), "{address}: {told}");
    }
    assert!(
        refused(&runtime, ZooKeeperOptions::new(Vec::<String>::new())).to_string().contains("none was given")
    );
    for (path, part) in
        [("a", "begin with `/`"), ("/", "empty part"), ("/a//b", "empty part"), ("/zookeeper/a", "own")]
    {
        let told = refused(&runtime, ZooKeeperOptions::new(["127.0.0.1:1"]).path(path)).to_string();
        assert!(told.contains(part), "{path}: {told}");
    }
}

/// Another executor polls it, without a tokio runtime: that is an error and no panic.
#[test]
fn a_connection_lives_on_a_runtime() {
    let connecting = pin!(ZooKeeper::connect(ZooKeeperOptions::new(["127.0.0.1:1"])));
    let polled = connecting.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(ConnectError::NoRuntime))), "{polled:?}");
}

#[test]
fn an_address_where_nobody_is_or_somebody_else_is_named() {
    let runtime = runtime();
    let address = format!("127.0.0.1:{}", free_port());
    let told = refused(&runtime, ZooKeeperOptions::new([address.clone()])).to_string();
    assert!(told.contains(&address) && told.contains("refused"), "{told}");
    // A server that hangs up silently may be a balancer without backends: it counts as unreachable. One that gives
    // another answer is reported as not ZooKeeper.
    for (word, somebody) in [("", false), ("HTTP/1.1 400 Bad Request\r\n\r\n", true)] {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            std::io::Read::read(&mut stream, &mut [0; 4]).unwrap();
            std::io::Write::write_all(&mut stream, word.as_bytes()).unwrap();
        });
        match refused(&runtime, ZooKeeperOptions::new([address.clone()])) {
            ConnectError::NotZooKeeper { address: told } => assert!(somebody && told == address),
            ConnectError::Unreachable { tried } => assert!(!somebody && tried.contains(&address), "{tried}"),
            other => panic!("{other}"),
        }
        answers.join().unwrap();
    }
}

#[test]
fn what_is_another_users_is_told_without_the_password() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let options = server.options().user("node", "hunter2");
    let zookeeper = runtime.block_on(ZooKeeper::connect(options.clone())).unwrap();
    let coordinator = zookeeper.coordinator(Duration::from_secs(4));
    assert!(runtime.block_on(coordinator.join("a", b"")).unwrap() > 0);
    assert!(!format!("{zookeeper:?} {coordinator:?}").contains("hunter2"));
    let told = refused(&runtime, options.user("node", "hunter3")).to_string();
    assert!(told.contains("user `node`") && told.contains("/test-") && !told.contains("hunter3"), "{told}");
}

/// A session longer than the ensemble allows: its node would be dropped earlier than the others expect.
#[test]
fn a_member_that_would_be_forgotten_too_early_does_not_join() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let coordinator = server.connect(&runtime).coordinator(Duration::from_secs(100));
    let told = runtime.block_on(coordinator.join("a", b"")).unwrap_err().to_string();
    assert!(told.contains("maxSessionTimeout"), "{told}");
}
