//! A real ZooKeeper server, and connections to it.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_testkit::{FaultyProxy, ZooKeeperServer};
use tidegate_zookeeper::{ZooKeeper, ZooKeeperOptions};
use tokio::runtime::Runtime;

/// A ZooKeeper server, and the number of paths given out.
pub(crate) struct Server {
    zookeeper: ZooKeeperServer,
    paths: AtomicU64,
}

impl Deref for Server {
    type Target = ZooKeeperServer;

    fn deref(&self) -> &ZooKeeperServer {
        &self.zookeeper
    }
}

impl Server {
    /// Starts a server; `None` if ZooKeeper is not installed.
    pub(crate) fn start() -> Option<Self> {
        ZooKeeperServer::start().map(|zookeeper| Self { zookeeper, paths: AtomicU64::new(0) })
    }

    fn path(&self) -> String {
        format!("/test-{}", self.paths.fetch_add(1, Ordering::Relaxed))
    }

    /// Options with a unique path.
    pub(crate) fn options(&self) -> ZooKeeperOptions {
        ZooKeeperOptions::new([self.addr().to_string()]).path(self.path())
    }

    /// The same, through a proxy.
    pub(crate) fn options_through(&self, proxy: &FaultyProxy) -> ZooKeeperOptions {
        ZooKeeperOptions::new([proxy.addr().to_string()]).path(self.path())
    }

    /// Connects under a path of its own.
    pub(crate) fn connect(&self, runtime: &Runtime) -> ZooKeeper {
        runtime.block_on(ZooKeeper::connect(self.options())).unwrap()
    }
}
