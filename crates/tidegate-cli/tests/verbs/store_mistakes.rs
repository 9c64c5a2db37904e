//! Errors about a store that the file describes wrongly, or whose data were overwritten.
#![cfg(feature = "redis")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use crate::verbs::Desk;
use crate::verbs::serve::{Serving, until};
use crate::verbs::stores::{Redis, policies};

/// Overwrites each hash of cells with text.
fn write_over_hashes(redis: &Redis) {
    let mut wire = BufReader::new(TcpStream::connect((redis.host, redis.port)).unwrap());
    for shard in 0..16 {
        let mut said = String::new();
        wire.get_mut().write_all(format!("SET tg:1:{{tg:{shard}}}:h text\r\n").as_bytes()).unwrap();
        wire.read_line(&mut said).unwrap();
        assert_eq!(said, "+OK\r\n");
    }
}

/// A CA file without certificates, and an empty password file, must be refused; the reason must be printed once.
#[test]
fn files_that_the_store_names_are_looked_at_before_the_engine_is() {
    let desk = Desk::new();
    desk.write("words", "not a certificate\n");
    desk.write("empty", "\n");
    desk.write("cert.pem", "-----BEGIN CERTIFICATE-----\n");
    for (keys, said) in [
        ("ca_file: words", "store.ca_file: words holds no certificate in PEM; one begins with the line"),
        ("cert_file: words, key_file: words", "store.cert_file: words holds no certificate in PEM"),
        ("cert_file: cert.pem, key_file: words", "store.key_file: words holds no private key in PEM"),
        ("password_file: empty", "store.password_file: empty has an empty first line"),
        ("password_file: none", "store.password_file: none cannot be read: No such file"),
    ] {
        let store = format!("{{ kind: redis, url: 'rediss://127.0.0.1:1', nodes: 2, {keys} }}");
        desk.write("p.yaml", policies(&store, "share: central"));
        let refused = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]).code(1);
        assert!(refused.err.contains(said), "{keys}: {refused:?}");
        assert_eq!(refused.err.matches("cannot be read").count(), usize::from(keys.ends_with("none")));
    }
}

/// Overwritten keys must be reported: each node then grants only its own part.
#[test]
fn keys_of_the_store_that_somebody_has_written_over_are_told_of() {
    let desk = Desk::new();
    let Some(redis) = Redis::start(&desk, "127.0.0.27") else { return };
    until("it listens", || TcpStream::connect((redis.host, redis.port)).is_ok());
    // The error must use the terms of the policy file.
    let cluster = redis.store().replace("nodes: 2", "nodes: 2, topology: cluster");
    desk.write("p.yaml", policies(&cluster, "share: central"));
    let refused = desk.run(&["serve", "-c", "p.yaml", "--http", "127.0.0.1:0"]).code(1);
    assert!(refused.err.contains("leave out store.topology: cluster"), "{refused:?}");

    desk.write("p.yaml", policies(&redis.store(), "share: central"));
    let node = Serving::start(&desk, &["-c", "p.yaml"]);
    assert_eq!(node.statuses("203.0.113.1", 1), [200]);
    write_over_hashes(&redis);
    assert_eq!(node.statuses("203.0.113.1", 4), [200, 200, 200, 429], "half of six, by this node alone");
    node.hears("the store cannot settle a key; on_store_error decides its requests");
    node.hears("the stored state of a key cannot be read");
    assert_eq!(node.stop(), Some(0));
}
