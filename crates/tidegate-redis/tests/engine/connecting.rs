//! The errors when a store cannot be connected; TLS; users with limited permissions.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tidegate_core::Quota;
use tidegate_redis::{AfterLoss, ConnectError, RedisOptions, RedisStore};

use crate::servers::{Server, connect, free_port, options, runtime, take, within};

fn error(options: RedisOptions) -> ConnectError {
    let error = runtime().block_on(RedisStore::connect(options)).map(|_| ()).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("s3cret") && !text.contains("bob"), "{text}");
    error
}

fn single(url: &str) -> RedisOptions {
    RedisOptions::single(url).unwrap().timeout(Duration::from_secs(5))
}

#[test]
fn secrets_are_shown_by_nothing() {
    let options = RedisOptions::single("redis://bob:s3cret@host:6379/2").unwrap();
    let shown = format!("{options:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("bob") && shown.contains("host:6379"), "{shown}");
    for wrong in ["http://bob:s3cret@host", "redis://bob:s3cret@host:port", "", "bob:s3cret@"] {
        let error = RedisOptions::single(wrong).map(|_| ()).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret") && text.contains("redis://host:port/db"), "{text}");
    }
}

#[test]
fn options_out_of_range_are_named() {
    let of = |options: RedisOptions| error(options).to_string();
    assert!(of(single("redis://host").namespace("a b")).contains("`namespace`: `a b`"));
    assert!(of(single("redis://host").shards(0)).contains("`shards`: 0"));
    assert!(of(single("redis://host").timeout(Duration::ZERO)).contains("`timeout`"));
    assert!(RedisOptions::cluster(&[]).is_err());
}

#[test]
fn nobody_at_the_address() {
    let found = error(single(&format!("redis://bob:s3cret@127.0.0.1:{}/", free_port())));
    assert!(matches!(found, ConnectError::Unreachable { .. }), "{found}");
}

#[test]
fn wrong_credentials_and_wrong_databases() {
    let Some(server) = Server::start(&["--requirepass", "s3cret"]) else { return };
    let at = |login: &str, rest: &str| single(&format!("redis://{login}127.0.0.1:{}/{rest}", server.port));
    for login in ["", ":wrong@", "bob:s3cret-too@"] {
        let found = error(at(login, ""));
        assert!(matches!(found, ConnectError::Credentials { .. }), "{login}: {found}");
    }
    let found = error(at(":s3cret@", "99"));
    assert!(matches!(found, ConnectError::Database { database: 99, .. }), "{found}");
    let store = runtime().block_on(RedisStore::connect(at(":s3cret@", "3"))).unwrap();
    assert!(!format!("{store:?}").contains("s3cret"));
}

/// Regression: the password of the start was used for ever, so a store whose password had changed was gone with its next
/// connection, until the process was started again.
#[test]
fn a_password_may_change_while_a_store_is_in_use() {
    let Some(server) = Server::start(&[]) else { return };
    server.ask(&["ACL", "SETUSER", "bob", "on", ">s3cret-1", "~*", "+@all"]);
    let file = Arc::new(Mutex::new(Ok("s3cret-1".to_owned())));
    let (read, port) = (Arc::clone(&file), server.port);
    let login = move || {
        let password: String = read.lock().unwrap().clone()?;
        Ok(single(&format!("redis://bob:{password}@127.0.0.1:{port}/")))
    };
    let options = login().unwrap().namespace("rotate").renewed_by(login);
    let runtime = runtime();
    let store = runtime.block_on(RedisStore::connect(options)).unwrap();
    let quota = Arc::new(Quota::per_day(5).gcra().unwrap());
    assert!(take(&store, b"a", &quota, 1).unwrap().allowed);
    let error = |store: &RedisStore| {
        within("the connection is lost", || take(store, b"b", &quota, 1).is_err());
        take(store, b"b", &quota, 1).unwrap_err().to_string()
    };
    let kill = || server.ask(&["CLIENT", "KILL", "USER", "bob"]);
    server.ask(&["ACL", "SETUSER", "bob", "resetpass", ">s3cret-2"]);
    assert!(take(&store, b"a", &quota, 1).unwrap().allowed, "a connection stays");
    kill();
    let text = error(&store);
    assert!(text.contains("check user and password") && !text.contains("s3cret"), "{text}");
    *file.lock().unwrap() = Err("password: No such file".to_owned());
    within("the file is missed", || error(&store).contains("nothing to log in to"));
    *file.lock().unwrap() = Ok("s3cret-2".to_owned());
    within("it logs in with the new one", || take(&store, b"c", &quota, 1).is_ok());
    // A server that deletes the user and makes it anew closes the connection.
    server.ask(&["ACL", "DELUSER", "bob"]);
    server.ask(&["ACL", "SETUSER", "bob", "on", ">s3cret-3", "~*", "+@all"]);
    *file.lock().unwrap() = Ok("s3cret-3".to_owned());
    within("it logs in with the third one", || take(&store, b"d", &quota, 1).is_ok());
}

#[test]
fn replicas_and_nodes_of_clusters_are_told_apart() {
    let Some(server) = Server::start(&["--replicaof", "127.0.0.1 1"]) else { return };
    let found = error(single(&server.url()));
    assert!(matches!(found, ConnectError::ReadOnly { .. }), "{found}");
    let node = Server::start(&["--cluster-enabled", "yes"]).unwrap();
    let found = error(single(&node.url()));
    assert!(matches!(found, ConnectError::Mode { is_cluster: true, .. }), "{found}");
    let plain = Server::start(&[]).unwrap();
    let found = error(RedisOptions::cluster(&[&plain.url()]).unwrap());
    assert!(matches!(found, ConnectError::Mode { is_cluster: false, .. }), "{found}");
}

/// A user with just the permissions that the error message asks for, on the store's keys only.
#[test]
fn a_user_needs_few_rights() {
    let Some(server) = Server::start(&[]) else { return };
    let rights = ["+@read", "+@write", "+@hash", "+@scripting", "+time", "+info", "+ping", "+cluster|slots"];
    let user = |name: &str, rights: &[&str], keys: &str| {
        let words = [&["ACL", "SETUSER", name, "on", ">s3cret", "resetkeys", keys, "-@all"], rights].concat();
        server.ask(&words);
        single(&format!("redis://{name}:s3cret@127.0.0.1:{}/", server.port)).namespace("acl")
    };
    let quota = Arc::new(Quota::per_day(5).gcra().unwrap());
    let runtime = runtime();
    let store = runtime.block_on(RedisStore::connect(user("bob", &rights, "~tg:1:{acl:*"))).unwrap();
    assert!(take(&store, b"a", &quota, 1).unwrap().allowed);
    let found = error(user("bobby", &["+@read", "+info"], "~tg:1:{acl:*"));
    assert!(matches!(found, ConnectError::Permission { .. }), "{found}");
    let found = error(user("bobbie", &rights, "~other:*"));
    assert!(matches!(found, ConnectError::Permission { .. }), "{found}");
}

#[test]
fn a_store_lives_on_a_runtime() {
    let connected = crate::servers::wait(RedisStore::connect(single("redis://127.0.0.1:1/")));
    assert_eq!(connected.map(|_| ()).unwrap_err(), ConnectError::NoRuntime);
}

#[test]
fn tls_with_a_certificate_of_ones_own() {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::<String>::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_certificate = root.self_signed(&root_key).unwrap();
    let issuer = Issuer::from_params(&root, &root_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let files = [
        file("root.pem", root_certificate.pem()),
        file("server.pem", certificate.pem()),
        file("key.pem", key.serialize_pem()),
    ];
    let port = free_port().to_string();
    let options_of_server = [
        "--tls-port",
        &port,
        "--tls-ca-cert-file",
        &files[0],
        "--tls-cert-file",
        &files[1],
        "--tls-key-file",
        &files[2],
        "--tls-auth-clients",
        "no",
    ];
    let Some(server) = Server::start(&options_of_server) else { return };
    let url = format!("rediss://localhost:{port}/");
    assert!(server.port > 0);
    let trusted = single(&url).root_certificates(root_certificate.pem().into_bytes());
    let runtime = runtime();
    let store = runtime.block_on(RedisStore::connect(trusted)).unwrap();
    let quota = Arc::new(Quota::per_day(5).gcra().unwrap());
    assert!(take(&store, b"a", &quota, 1).unwrap().allowed);
    let found = error(single(&url));
    assert!(matches!(found, ConnectError::Tls { .. }), "{found}");

    // Each port is addressed with the other one's protocol: it closes the connection, or waits for more bytes.
    let plain = RedisOptions::single(&format!("redis://127.0.0.1:{port}/")).unwrap();
    let found = error(plain.timeout(Duration::from_secs(1)));
    assert!(matches!(found, ConnectError::Unreachable { .. }), "{found:?}");
    assert!(
        found.to_string().ends_with("; it may want TLS: then write `rediss://` in its address"),
        "{found}"
    );
    let encrypted = RedisOptions::single(&format!("rediss://127.0.0.1:{}/", server.port)).unwrap();
    let encrypted = encrypted.root_certificates(root_certificate.pem().into_bytes());
    let found = error(encrypted.timeout(Duration::from_secs(1)));
    assert!(matches!(found, ConnectError::Unreachable { .. }), "{found:?}");
    let hint = "; it may not speak TLS, which `rediss://` asks for: then write `redis://` in its address";
    assert!(found.to_string().ends_with(hint), "{found}");
    let found = error(single(&format!("redis://127.0.0.1:{}/", free_port())));
    assert!(!found.to_string().contains("TLS"), "nobody listens: {found}");

    // The default of Redis: each client has to present a certificate of its own.
    server.ask(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    let trusted = || single(&url).root_certificates(root_certificate.pem().into_bytes());
    let found = error(trusted());
    assert!(matches!(found, ConnectError::Tls { .. }), "{found}");
    assert!(found.to_string().contains("this node's own where the server wants one"), "{found}");
    let own = KeyPair::generate().unwrap();
    let mut node = CertificateParams::new(Vec::<String>::new()).unwrap();
    // A name of its own: a certificate with its issuer's name would be taken for a self-signed one.
    node.distinguished_name.push(DnType::CommonName, "node");
    let certificate = node.signed_by(&own, &issuer).unwrap();
    let shown =
        trusted().client_certificate(certificate.pem().into_bytes(), own.serialize_pem().into_bytes());
    let store = runtime.block_on(RedisStore::connect(shown)).unwrap();
    assert!(take(&store, b"b", &quota, 1).unwrap().allowed);
}

/// Another server's answer used to be reported as bytes and offsets, and taken for an unreachable server.
#[test]
fn a_server_of_another_kind_is_named_as_that() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut wire, _) = listener.accept().unwrap();
        let mut asked = [0; 1024];
        assert!(wire.read(&mut asked).unwrap() > 0);
        wire.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let found = error(single(&format!("redis://{addr}/")));
    assert!(matches!(found, ConnectError::Answer { .. }), "{found}");
    assert!(
        found
            .to_string()
            .ends_with("does not answer as a Redis server does: something else than the protocol")
    );
    server.join().unwrap();
}

/// Two numbers of shards would be two separate limits, without any notice.
#[test]
fn nodes_of_a_namespace_have_the_same_number_of_shards() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    for after_loss in [AfterLoss::Empty, AfterLoss::Half, AfterLoss::Full] {
        let options = || options(&server).namespace(&format!("same-{after_loss:?}")).after_loss(after_loss);
        drop(connect(&runtime, options().shards(16)));
        drop(connect(&runtime, options()));
        let other = runtime.block_on(RedisStore::connect(options().shards(17))).unwrap_err();
        let said = other.to_string();
        assert!(said.contains("shards=16") && said.contains("17") && said.contains(":used"), "{said}");
    }
}
