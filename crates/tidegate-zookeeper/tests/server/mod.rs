//! A real ZooKeeper on a free port of the loopback interface, with a folder of its own, that ends with the test.
//!
//! Needs the Debian package `zookeeper`. Where it is missing a test says so and skips, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

#![allow(dead_code, reason = "each test program uses a part")]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_zookeeper::{ZooKeeper, ZooKeeperOptions};
use tokio::runtime::Runtime;

/// Long enough for a busy machine; a test that passes never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program; its manifest names the libraries it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// A ZooKeeper of one server.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    _dir: tempfile::TempDir,
    paths: AtomicU64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts one; `None` where it is not installed.
    pub(crate) fn start() -> Option<Self> {
        if !Path::new(JAR).exists() || Command::new("java").arg("-version").output().is_err() {
            let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "ZooKeeper is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install zookeeper"
            );
            eprintln!("SKIPPED: ZooKeeper is not installed; apt-get install zookeeper");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = dir.path().join("zoo.cfg");
        // Ticks of a fifth of a second, so that sessions may be as short as tests want them.
        let settings = format!(
            "tickTime=200\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             minSessionTimeout=400\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n",
            dir.path().join("data").display()
        );
        std::fs::write(&config, settings).unwrap();
        let child = Command::new("java")
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", JAR])
            .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server =
            Self { child, address: format!("127.0.0.1:{port}"), _dir: dir, paths: AtomicU64::new(0) };
        let runtime = runtime();
        within("ZooKeeper answers", || runtime.block_on(ZooKeeper::connect(server.options())).is_ok());
        Some(server)
    }

    /// Options with a path that nobody else has.
    pub(crate) fn options(&self) -> ZooKeeperOptions {
        let number = self.paths.fetch_add(1, Ordering::Relaxed);
        ZooKeeperOptions::new([self.address.clone()]).path(format!("/test-{number}"))
    }

    /// Connects below a path of its own.
    pub(crate) fn connect(&self, runtime: &Runtime) -> ZooKeeper {
        runtime.block_on(ZooKeeper::connect(self.options())).unwrap()
    }

    /// Stops its process without ending it, or lets it go on.
    pub(crate) fn signal(&self, signal: &str) {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Asks until something holds.
#[track_caller]
pub(crate) fn within(what: &str, mut holds: impl FnMut() -> bool) {
    #[allow(clippy::disallowed_methods, reason = "real processes take their own time; the wait is bounded")]
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}
