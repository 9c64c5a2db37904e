//! Counters move under load from disk to Redis, to etcd and to another disk, one server after the other. Nothing is
//! granted twice, and nothing is lost.
//!
//! Needs redis-server and etcd. If one is missing, the test prints a message and is skipped; with
//! `TIDEGATE_REQUIRE_SERVERS=1` it fails.

#![cfg(feature = "engines")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use tidegate_testkit::{EtcdServer, Process, RedisServer, built, folder, free_port, within};

/// What each key is granted in a day, by each of the limits.
const LIMIT: u64 = 40;
const LIMITS: [(&str, &str); 3] = [("/smooth", "gcra"), ("/window", "fixed-window"), ("/log", "sliding-log")];
const KEYS: usize = 20;

/// The requests between two starts of a server, and how many of them come at once.
const REQUESTS: usize = 300;
const THREADS: usize = 4;

/// Units granted, by limit and key.
type Granted = Mutex<BTreeMap<(usize, usize), u64>>;

struct Server {
    addr: SocketAddr,
    process: Process,
}

impl Server {
    fn start(file: &Path) -> Self {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut command = Command::new(built("tidegate"));
        command.arg("serve").arg("-c").arg(file).arg("--http").arg(addr.to_string());
        let process = Process::start(command, folder());
        within("tidegate serve", || TcpStream::connect(addr).is_ok());
        Self { addr, process }
    }

    /// Asks for a unit of a key.
    fn ask(&self, limit: usize, key: usize, granted: &Granted) -> bool {
        let path = LIMITS[limit].0;
        let body =
            format!("{{\"attributes\": {{\"request.path\": \"{path}\", \"user.id\": \"user {key}\"}}}}");
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let answer = agent.post(&format!("http://{}/v1/check", self.addr)).send(body).unwrap();
        let status = answer.status().as_u16();
        assert!(status == 200 || status == 429, "{status}");
        if status == 200 {
            *granted.lock().unwrap().entry((limit, key)).or_default() += 1;
        }
        status == 200
    }

    fn load(&self, seed: usize, granted: &Granted) {
        thread::scope(|scope| {
            for at in 0..THREADS {
                scope.spawn(move || {
                    for request in 0..REQUESTS / THREADS {
                        let number = seed * 7 + at * 31 + request * 13;
                        self.ask(number % LIMITS.len(), number / LIMITS.len() % KEYS, granted);
                    }
                });
            }
        });
    }

    fn stop(mut self) {
        self.process.stop();
    }
}

/// Writes the file of a store, and the same with a former one.
fn files(folder: &Path, number: usize, store: &str) -> (PathBuf, PathBuf) {
    let policy = |(path, algorithm): &(&str, &str)| {
        let name = &path[1..];
        format!(
            "  - name: {name}\n    match: {{ path: {path} }}\n    by: [user.id]\n    on_store_error: deny\n    limit: {{ algorithm: {algorithm}, rate: {LIMIT}/day }}\n"
        )
    };
    let policies: String = LIMITS.iter().map(policy).collect();
    let write = |name: String, from: &str| {
        let path = folder.join(name);
        let text = format!("version: 1\nstore: {{ {store}{from} }}\npolicies:\n{policies}");
        std::fs::write(&path, text).unwrap();
        path
    };
    let from = folder.join(format!("{}.yaml", number.saturating_sub(1)));
    let from = if number == 0 { String::new() } else { format!(", from: {}", from.display()) };
    (write(format!("{number}.yaml"), ""), write(format!("{number}-from.yaml"), &from))
}

#[test]
fn counters_move_from_store_to_store_under_load() {
    let Some(redis) = RedisServer::start(&[]) else { return };
    let Some(etcd) = EtcdServer::start(&["--unsafe-no-fsync"]) else { return };
    let folder = folder();
    let disk = |name: &str| format!("kind: disk, path: {}", folder.path().join(name).display());
    // A slow answer of a busy machine must not count as an engine that is gone.
    let engine = |kind, url| format!("kind: {kind}, url: '{url}', nodes: 1, deadline: 10s");
    let stores = [
        disk("one"),
        engine("redis", format!("redis://{}", redis.addr())),
        engine("etcd", etcd.url().to_owned()),
        disk("two"),
    ];
    let granted = Granted::default();
    let mut last = None;
    for (number, store) in stores.iter().enumerate() {
        let (_, file) = files(folder.path(), number, store);
        // Started again, a server takes over what it has not yet, and nothing twice.
        for time in 0..2 {
            let server = Server::start(&file);
            server.load(number * 2 + time, &granted);
            server.stop();
        }
        last = Some(file);
    }
    let server = Server::start(&last.unwrap());
    for limit in 0..LIMITS.len() {
        for key in 0..KEYS {
            while server.ask(limit, key, &granted) {}
        }
    }
    server.stop();
    let granted = granted.into_inner().unwrap();
    let wrong: Vec<_> = granted.iter().filter(|(_, units)| **units != LIMIT).collect();
    assert!(wrong.is_empty(), "limit and key, units: {wrong:?}");
    assert_eq!(granted.len(), LIMITS.len() * KEYS);
}
