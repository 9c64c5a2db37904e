//! Real servers for tests: Redis, etcd and ZooKeeper.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Process, folder, free_port, missing, program, within};

// A real Redis server for tests.

/// Replaces the call by which Redis reads the time.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    char text[32] = {0};
    int file = open(getenv("TEST_CLOCK"), O_RDONLY), told = syscall(SYS_gettimeofday, time, zone);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) time->tv_sec += atol(text);
        close(file);
    }
    return told;
}
"#;

/// A Redis on a loopback port and on the Unix socket `socket` in its folder. Without other options it keeps nothing on
/// disk.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    port: u16,
}

impl RedisServer {
    /// Starts a server with command-line options; `None` to skip the test, because Redis is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(options: &[&str]) -> Option<Self> {
        Self::started(folder(), &[], options)
    }

    /// Starts a server whose clock [`RedisServer::set_clock`] sets; `None` to skip the test, because Redis or a C
    /// compiler is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with_clock(options: &[&str]) -> Option<Self> {
        let compiler = program("cc", "gcc")?;
        let folder = folder();
        let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        std::fs::write(&source, CLOCK).expect("the folder is the test's own");
        let made =
            Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(made.is_ok_and(|status| status.success()), "the clock does not compile");
        let offset = folder.path().join("clock");
        let envs = [("LD_PRELOAD", library), ("TEST_CLOCK", offset)];
        Self::started(folder, &envs, options)
    }

    /// Sets the clock of a server started with [`RedisServer::start_with_clock`]: by so many seconds from the machine's.
    ///
    /// # Panics
    /// If its folder cannot be written.
    pub fn set_clock(&self, seconds: i64) {
        let (new, offset) = (self.folder().join("clock.new"), self.folder().join("clock"));
        std::fs::write(&new, seconds.to_string()).expect("the folder is the test's own");
        std::fs::rename(new, offset).expect("the folder is the test's own");
    }

    fn started(folder: TempDir, envs: &[(&str, std::path::PathBuf)], options: &[&str]) -> Option<Self> {
        let program = program("redis-server", "redis-server")?;
        let port = free_port();
        let mut command = Command::new(program);
        command.envs(envs.iter().map(|(name, value)| (name, value)));
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
        command.arg(folder.path()).arg("--unixsocket").arg(folder.path().join("socket")).args(options);
        let server = Self { process: Process::start(command, folder), port };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        within("Redis answers", || {
            // A server that wants a password is up as well.
            crate::process::tcp_answer(self.addr(), b"PING\r\n")
                .is_some_and(|answer| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
        });
    }

    /// Starts it again after [`RedisServer::kill`].
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a command over a connection of its own, and returns the first 4 kB of the raw answer. No word may contain
    /// spaces.
    ///
    /// # Panics
    /// If there is no answer.
    pub fn command(&self, words: &[&str]) -> String {
        let line = format!("{}\r\n", words.join(" "));
        let answer = crate::process::tcp_answer(self.addr(), line.as_bytes());
        String::from_utf8_lossy(&answer.unwrap_or_else(|| panic!("no answer to {words:?}"))).into_owned()
    }

    /// Sends it a signal; see [`Process::signal`].
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Returns its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }
}

// A real etcd server for tests.

/// An etcd of one member on a port of loopback.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    addr: SocketAddr,
    url: String,
}

impl EtcdServer {
    /// Starts a server with command-line options; `None` to skip the test, because etcd is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(options: &[&str]) -> Option<Self> {
        Self::started("http", folder(), options)
    }

    /// Starts a server that speaks TLS with a self-signed certificate, and returns the certificate too, in PEM.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_secure() -> Option<(Self, Vec<u8>)> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a name");
        let folder = folder();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).expect("the folder is the test's own");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("the folder is the test's own");
        let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
        let options = ["--cert-file", &*certificate, "--key-file", &*key];
        let server = Self::started("https", folder, &options)?;
        Some((server, made.cert.pem().into_bytes()))
    }

    fn started(scheme: &str, folder: TempDir, options: &[&str]) -> Option<Self> {
        let program = program("etcd", "etcd-server")?;
        let addr: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let (url, peers) = (format!("{scheme}://{addr}"), format!("http://127.0.0.1:{}", free_port()));
        let mut command = Command::new(program);
        command
            .args(["--name", "one", "--initial-cluster", &format!("one={peers}"), "--data-dir"])
            .arg(folder.path().join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(options)
            .env_remove("ETCD_DATA_DIR");
        let server = Self { process: Process::start(command, folder), addr, url };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        within("etcd listens", || TcpStream::connect(self.addr).is_ok());
    }

    /// Starts it again after [`EtcdServer::kill`], with its data on disk.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns its address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns its URL for clients.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the output of `etcdctl`.
    ///
    /// # Panics
    /// If the command fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url]).args(arguments);
        let output = command.output().expect("etcdctl comes with etcd: apt-get install etcd-client");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends it a signal; see [`Process::signal`].
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }
}

// A real ZooKeeper server for tests.

/// The program; its manifest names the libraries that it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// A ZooKeeper of one server on a loopback port, with ticks of 200 ms, which allow the short sessions that tests need.
#[derive(Debug)]
pub struct ZooKeeperServer {
    process: Process,
    addr: SocketAddr,
}

impl ZooKeeperServer {
    /// Starts a server; `None` to skip the test, because ZooKeeper is not installed.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start() -> Option<Self> {
        if !Path::new(JAR).exists() {
            missing("ZooKeeper", "zookeeper");
            return None;
        }
        let (java, folder, port) = (program("java", "default-jre-headless")?, folder(), free_port());
        let config = folder.path().join("zoo.cfg");
        let settings = format!(
            "tickTime=200\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             minSessionTimeout=400\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n",
            folder.path().join("data").display()
        );
        std::fs::write(&config, settings).expect("the folder is the test's own");
        let mut command = Command::new(java);
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", JAR])
            .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
            .arg(&config);
        let server = Self { process: Process::start(command, folder), addr: ([127, 0, 0, 1], port).into() };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        within("ZooKeeper answers", || {
            crate::process::tcp_answer(self.addr, b"srvr")
                .is_some_and(|answer| answer.starts_with(b"Zookeeper version"))
        });
    }

    /// Starts it again after [`ZooKeeperServer::kill`], with its data on disk.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.until_up();
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns its address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends it a signal; see [`Process::signal`].
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }
}
