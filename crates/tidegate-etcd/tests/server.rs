//! A real etcd server, and connections to it.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_etcd::{Etcd, EtcdOptions};
use tidegate_testkit::{EtcdServer, FaultyProxy};
use tokio::runtime::Runtime;

/// An etcd server, and the number of prefixes given out.
pub(crate) struct Server {
    etcd: EtcdServer,
    prefixes: AtomicU64,
}

impl Deref for Server {
    type Target = EtcdServer;

    fn deref(&self) -> &EtcdServer {
        &self.etcd
    }
}

impl Server {
    /// Starts a server; `None` if etcd is not installed.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        EtcdServer::start(options).map(Self::of)
    }

    /// Starts a server that speaks TLS with a self-signed certificate; returns the certificate too.
    pub(crate) fn start_secure() -> Option<(Self, Vec<u8>)> {
        EtcdServer::start_secure().map(|(etcd, certificate)| (Self::of(etcd), certificate))
    }

    fn of(etcd: EtcdServer) -> Self {
        Self { etcd, prefixes: AtomicU64::new(0) }
    }

    fn prefix(&self) -> String {
        format!("test-{}", self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    /// Options with a unique prefix.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions::new([self.url()]).prefix(self.prefix())
    }

    /// The same, through a proxy.
    pub(crate) fn options_through(&self, proxy: &FaultyProxy) -> EtcdOptions {
        EtcdOptions::new([format!("http://{}", proxy.addr())]).prefix(self.prefix())
    }

    /// Connects under a prefix of its own.
    pub(crate) fn connect(&self, runtime: &Runtime) -> Etcd {
        runtime.block_on(Etcd::connect(self.options())).unwrap()
    }
}
