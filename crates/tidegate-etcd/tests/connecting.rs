//! The errors when no connection can be made.

use crate::server;

use std::io::Write as _;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use server::Server;
use tidegate::store::{Charge, Op, Step, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_etcd::{ConnectError, Etcd, EtcdOptions, Tls};
use tidegate_testkit::{free_port, runtime, within};
use tokio::runtime::Runtime;

#[track_caller]
fn refused(runtime: &Runtime, options: EtcdOptions) -> ConnectError {
    runtime.block_on(Etcd::connect(options)).expect_err("nobody is to connect")
}

#[test]
fn addresses_that_are_none_are_told_as_such() {
    let runtime = runtime();
    for (address, part) in [
        ("10.0.0.1:2379", "neither `http://` nor `https://`"),
        ("http://10.0.0.1", "names no port"),
        ("http://10.0.0.1:2379/v3", "has a path"),
        ("http://root:hunter2@10.0.0.1:2379", "holds credentials"),
        ("http://10.0.0.1:99999", "names no port"),
    ] {
        let told = refused(&runtime, EtcdOptions::new([address])).to_string();
        assert!(told.contains(part) && !told.contains("hunter2"), "{address}: {told}");
    }
    assert!(refused(&runtime, EtcdOptions::new(Vec::<String>::new())).to_string().contains("none was given"));
}

/// Another executor polls it, without a tokio runtime: that is an error and no panic.
#[test]
fn a_connection_lives_on_a_runtime() {
    let connecting = pin!(Etcd::connect(EtcdOptions::new(["http://127.0.0.1:1"])));
    let polled = connecting.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(ConnectError::NoRuntime))), "{polled:?}");
}

#[test]
fn an_address_where_nobody_is_is_named() {
    let runtime = runtime();
    let url = format!("http://127.0.0.1:{}", free_port());
    let told = refused(&runtime, EtcdOptions::new([url.clone()])).to_string();
    assert!(told.contains(&url) && told.contains("refused"), "{told}");
    // A server that accepts connections and stays silent may be a balancer without backends: it counts as unreachable.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || other.incoming().for_each(drop));
    let told = refused(&runtime, EtcdOptions::new([format!("http://{address}")]));
    assert!(
        matches!(&told, ConnectError::Unreachable { tried } if tried.contains("does not answer")),
        "{told}"
    );
}

#[test]
fn plain_text_and_tls_are_told_apart() {
    let Some(plain) = Server::start(&[]) else { return };
    let Some((secure, certificate)) = Server::start_secure() else { return };
    let runtime = runtime();
    let url = plain.url().replace("http://", "https://");
    assert_eq!(refused(&runtime, EtcdOptions::new([url.clone()])), ConnectError::PlainText { address: url });
    let url = secure.url().replace("https://", "http://");
    assert_eq!(refused(&runtime, EtcdOptions::new([url.clone()])), ConnectError::WantsTls { address: url });
    // A certificate from an unknown authority.
    let told = refused(&runtime, secure.options()).to_string();
    assert!(told.starts_with(&format!("no TLS with etcd at {}", secure.url())), "{told}");
    let tls = Tls { authorities: certificate, ..Tls::default() };
    let etcd = runtime.block_on(Etcd::connect(secure.options().tls(tls))).unwrap();
    drop(etcd.store());
}

/// Demands a login: of `root`, who may do everything, of `node`, who may use keys below `ours/`, and of `guest`.
fn demand_login(server: &Server) {
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "add", "node:hunter2"],
        &["user", "add", "guest:hunter2"],
        &["role", "add", "tidegate"],
        &["role", "grant-permission", "tidegate", "--prefix=true", "readwrite", "ours/"],
        &["user", "grant-role", "node", "tidegate"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        server.ctl(arguments);
    }
}

#[test]
fn credentials_that_do_not_fit_are_told_without_them() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    demand_login(&server);
    let options = || server.options().prefix("ours/");
    let told = refused(&runtime, options()).to_string();
    assert!(told.contains("authentication on"), "{told}");
    let told = refused(&runtime, options().user("node", "hunter3")).to_string();
    assert!(told.contains("`node`") && !told.contains("hunter3"), "{told}");
    let told = refused(&runtime, options().user("guest", "hunter2")).to_string();
    assert!(told.contains("user `guest`") && told.contains("`ours/1/`"), "{told}");
    let etcd = runtime.block_on(Etcd::connect(options().user("node", "hunter2"))).unwrap();
    let coordinator = etcd.coordinator(Duration::from_secs(2));
    assert!(runtime.block_on(coordinator.join("a", b"")).unwrap() > 0);
    assert!(!format!("{etcd:?} {coordinator:?}").contains("hunter2"));
}

/// Regression: the password of the start was used for ever, so after a change a store was gone until its process was
/// started again.
#[test]
fn a_password_may_change_while_a_connection_is_in_use() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    demand_login(&server);
    let options = |password: &str| server.options().prefix("ours/").user("node", password);
    let set = |password: &str| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", server.url(), "--user", "root:secret"]);
        command.args(["user", "passwd", "node", "--interactive=false"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
        assert!(child.wait().unwrap().success());
    };
    let file = Arc::new(Mutex::new(Ok("hunter2".to_owned())));
    let (read, like) = (Arc::clone(&file), options(""));
    let renew = move || read.lock().unwrap().clone().map(|password| like.clone().user("node", password));
    let etcd = runtime.block_on(Etcd::connect(options("hunter2").renewed_by(renew))).unwrap();
    let fixed = runtime.block_on(Etcd::connect(options("hunter2"))).unwrap().store();
    let (store, coordinator) = (etcd.store(), etcd.coordinator(Duration::from_secs(60)));
    let joined = runtime.block_on(coordinator.join("a", b"")).unwrap();
    let quota = Arc::new(Quota::per_day(1000).gcra().unwrap());
    let take = |store: &dyn Store| {
        let charges = [Charge::new(b"key", &quota, Cost::ONE)];
        let taken = store.blocking_execute(&Step::new(Tick::from_secs(1_000_000), Op::Take, &charges));
        taken.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!((take(&store), take(&fixed)), (Ok(()), Ok(())));
    // The file changes first.
    *file.lock().unwrap() = Ok("hunter3".to_owned());
    assert_eq!(take(&store), Ok(()), "a connection stays");
    set("hunter3");
    assert_eq!(take(&store), Ok(()), "no step is lost");
    let told = take(&fixed).unwrap_err();
    assert!(told.contains("authentication failed") && !told.contains("hunter"), "{told}");
    // etcd changes first.
    set("hunter4");
    let told = take(&store).unwrap_err();
    assert!(told.contains("authentication failed"), "{told}");
    *file.lock().unwrap() = Err("password: No such file".to_owned());
    let told = take(&store).unwrap_err();
    assert!(told.contains("nothing to log in with: password: No such file"), "{told}");
    *file.lock().unwrap() = Ok("hunter4".to_owned());
    within("it logs in with the new one", || take(&store).is_ok());
    runtime.block_on(coordinator.renew(b"b")).unwrap();
    assert_eq!(runtime.block_on(coordinator.join("a", b"b")).unwrap(), joined, "it has stayed a member");
}
