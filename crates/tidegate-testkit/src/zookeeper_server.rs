//! A real ZooKeeper server for tests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::process::{Process, folder, missing, program};
use crate::waiting::{free_port, within};

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
            crate::tcp::answer(self.addr, b"srvr")
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
