//! The errors when no connection can be made.

use crate::server;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use server::Server;
use tidegate_etcd::{ConnectError, Etcd, EtcdOptions, Tls};
use tidegate_testkit::{free_port, runtime};
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

#[test]
fn credentials_that_do_not_fit_are_told_without_them() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
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
