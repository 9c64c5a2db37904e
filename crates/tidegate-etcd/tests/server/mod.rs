//! A real etcd on free ports of the loopback interface, with a folder of its own, that ends with the test.
//!
//! Needs the Debian package `etcd-server`. Where it is missing a test says so and skips, unless `TIDEGATE_REQUIRE_SERVERS=1`: then it fails.

#![allow(dead_code, reason = "each test program uses a part")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_etcd::{Etcd, EtcdOptions};
use tokio::runtime::Runtime;

/// Long enough for a busy machine; a test that passes never waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd of one member.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) dir: tempfile::TempDir,
    prefixes: AtomicU64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts one; `None` where it is not installed.
    pub(crate) fn start(more: &[&str]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            let required = std::env::var("TIDEGATE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "etcd is not installed and TIDEGATE_REQUIRE_SERVERS=1; apt-get install etcd-server"
            );
            eprintln!("SKIPPED: etcd is not installed; apt-get install etcd-server");
            return None;
        }
        Some(Self::started("http", tempfile::tempdir().unwrap(), more))
    }

    /// Starts one that speaks TLS, by a certificate that nobody has signed; returns that too.
    pub(crate) fn start_secure() -> Option<(Self, Vec<u8>)> {
        drop(Self::start(&[])?);
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let (certificate, key) =
            (certificate.to_string_lossy().into_owned(), key.to_string_lossy().into_owned());
        let server = Self::started("https", dir, &["--cert-file", &certificate, "--key-file", &key]);
        Some((server, made.cert.pem().into_bytes()))
    }

    fn started(scheme: &str, dir: tempfile::TempDir, more: &[&str]) -> Self {
        let port = free_port();
        let (url, peers) =
            (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()));
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("etcd")
            .args(["--name", "one", "--initial-cluster", &format!("one={peers}")])
            .args(["--data-dir", &dir.path().join("data").to_string_lossy()])
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(more)
            .env_remove("ETCD_DATA_DIR")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { child, url, dir, prefixes: AtomicU64::new(0) };
        within("etcd listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        server
    }

    /// Options with a prefix that nobody else has.
    pub(crate) fn options(&self) -> EtcdOptions {
        let number = self.prefixes.fetch_add(1, Ordering::Relaxed);
        EtcdOptions::new([self.url.clone()]).prefix(format!("test-{number}/"))
    }

    /// Connects below a prefix of its own.
    pub(crate) fn connect(&self, runtime: &Runtime) -> Etcd {
        runtime.block_on(Etcd::connect(self.options())).unwrap()
    }

    /// What etcd's own client says.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
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
