//! The errors when no connection can be made.

use crate::server;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use server::Server;
use tidegate::store::{Charge, Op, Step, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_testkit::{free_port, runtime, within};
use tidegate_zookeeper::{ConnectError, ZooKeeper, ZooKeeperOptions};
use tokio::runtime::Runtime;
use zookeeper_client::{Acls, Client, Connector, CreateMode};

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

/// Makes a session of the user `node` with each of these passwords.
async fn session(server: &Server, passwords: &[&str]) -> Client {
    let log_in = |connector: Connector, password: &&str| {
        connector.with_auth("digest", format!("node:{password}").as_bytes())
    };
    passwords.iter().fold(Client::connector(), log_in).connect(&server.addr().to_string()).await.unwrap()
}

/// Gives all nodes of a path to the user `node` with these passwords.
async fn give(server: &Server, path: &str, passwords: &[&str]) {
    let mut acls = Vec::new();
    for password in passwords {
        let client = session(server, &[password]).await;
        let own = CreateMode::Ephemeral.with_acls(Acls::creator_all());
        client.create("/own", &[], &own).await.unwrap();
        acls.extend(client.get_acl("/own").await.unwrap().0);
        client.delete("/own", None).await.unwrap();
    }
    let client = session(server, &["hunter2", "hunter3", "hunter4"]).await;
    let mut nodes = vec![path.to_owned()];
    while let Some(node) = nodes.pop() {
        client.set_acl(&node, &acls, None).await.unwrap();
        nodes
            .extend(client.list_children(&node).await.unwrap().iter().map(|child| format!("{node}/{child}")));
    }
}

/// Returns how many cells a password does not open.
async fn closed(server: &Server, password: &str) -> usize {
    let client = session(server, &[password]).await;
    let mut closed = 0;
    for bucket in client.list_children("/ours/1/cells").await.unwrap() {
        let bucket = format!("/ours/1/cells/{bucket}");
        for cell in client.list_children(&bucket).await.unwrap_or_default() {
            closed += usize::from(client.get_data(&format!("{bucket}/{cell}")).await.is_err());
        }
    }
    closed
}

/// Regression: the password of the start was used for ever, so nodes that were given to another one were lost until the
/// process was started again.
#[test]
fn a_password_may_change_while_a_connection_is_in_use() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let options = server.options().path("/ours");
    let file = Arc::new(Mutex::new(Ok("hunter2".to_owned())));
    let (read, like) = (Arc::clone(&file), options.clone());
    let renew = move || read.lock().unwrap().clone().map(|password| like.clone().user("node", password));
    let with = |password: &str| options.clone().user("node", password);
    let zookeeper = runtime.block_on(ZooKeeper::connect(with("hunter2").renewed_by(renew))).unwrap();
    let fixed = runtime.block_on(ZooKeeper::connect(with("hunter2"))).unwrap().store();
    let (store, coordinator) = (zookeeper.store(), zookeeper.coordinator(Duration::from_secs(10)));
    let joined = runtime.block_on(coordinator.join("a", b"")).unwrap();
    assert!(runtime.block_on(coordinator.replace("shares", 0, b"one".to_vec())).unwrap().is_some());
    let quota = Arc::new(Quota::per_day(1000).gcra().unwrap());
    let take = |store: &dyn Store, key: u8| {
        let key = [key];
        let charges = [Charge::new(&key, &quota, Cost::ONE)];
        let taken = store.blocking_execute(&Step::new(Tick::from_secs(1_000_000), Op::Take, &charges));
        taken.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!((take(&store, 1), take(&fixed, 2)), (Ok(()), Ok(())));
    // As it should be done: nodes for both passwords, the file, nodes for the new one alone.
    runtime.block_on(give(&server, "/ours", &["hunter2", "hunter3"]));
    *file.lock().unwrap() = Ok("hunter3".to_owned());
    let mut key = 3;
    within("new cells belong to the new one", || {
        let before = runtime.block_on(closed(&server, "hunter3"));
        key += 1;
        assert_eq!((take(&store, 1), take(&store, key)), (Ok(()), Ok(())), "no step is lost");
        runtime.block_on(closed(&server, "hunter3")) == before
    });
    runtime.block_on(coordinator.renew(b"b")).unwrap();
    runtime.block_on(give(&server, "/ours", &["hunter3"]));
    assert_eq!((take(&store, 1), take(&store, key)), (Ok(()), Ok(())));
    let told = take(&fixed, 1).unwrap_err();
    assert!(told.contains("ZooKeeper") && !told.contains("hunter"), "{told}");
    // The nodes change first: the next step finds the file.
    *file.lock().unwrap() = Err("password: No such file".to_owned());
    runtime.block_on(give(&server, "/ours", &["hunter4"]));
    let told = take(&store, 1).unwrap_err();
    assert!(told.contains("nothing to log in with: password: No such file"), "{told}");
    *file.lock().unwrap() = Ok("hunter4".to_owned());
    within("it logs in with the new one", || take(&store, 1).is_ok());
    within("its member does", || runtime.block_on(coordinator.renew(b"c")).is_ok());
    assert_eq!(runtime.block_on(coordinator.join("a", b"c")).unwrap(), joined, "it has stayed a member");
    let document = runtime.block_on(coordinator.read("shares")).unwrap();
    assert_eq!(document.bytes.as_deref(), Some(&b"one"[..]));
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
