//! The engine with the counters: a real server that is suspended, killed, flushed and replaced.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::{EtcdServer, Fault, FaultyProxy, RedisServer, ZooKeeperServer, within};

/// The kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Etcd,
    ZooKeeper,
}

impl Kind {
    /// Returns its name in `store.kind`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// Says whether nodes agree on their parts of a limit through it.
    pub(crate) const fn coordinates(self) -> bool {
        !matches!(self, Self::Redis)
    }

    /// Returns its URL in a policy file.
    pub(crate) fn url(self, at: SocketAddr) -> String {
        match self {
            Self::Redis => format!("redis://{at}"),
            Self::Etcd => format!("http://{at}"),
            Self::ZooKeeper => format!("zookeeper://{at}"),
        }
    }
}

/// A running engine.
pub(crate) enum Engine {
    Redis(Box<RedisServer>),
    /// A master, and a replica that follows it through a proxy.
    Replicated {
        master: Box<RedisServer>,
        replica: Box<RedisServer>,
        wire: FaultyProxy,
    },
    Etcd(Box<EtcdServer>),
    ZooKeeper(Box<ZooKeeperServer>),
}

impl Engine {
    /// Starts the engine; prints a message and returns `None` if it is not installed. `lag` is the lag of a replica;
    /// with zero there is none.
    pub(crate) fn start(kind: Kind, lag: Duration) -> Option<Self> {
        match kind {
            Kind::Redis if lag.is_zero() => RedisServer::start(&[]).map(|redis| Self::Redis(Box::new(redis))),
            Kind::Redis => Self::replicated(lag),
            Kind::Etcd => EtcdServer::start(&["--unsafe-no-fsync"]).map(|etcd| Self::Etcd(Box::new(etcd))),
            Kind::ZooKeeper => ZooKeeperServer::start().map(|zookeeper| Self::ZooKeeper(Box::new(zookeeper))),
        }
    }

    fn replicated(lag: Duration) -> Option<Self> {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"])?;
        let wire = FaultyProxy::before(master.addr()).expect("a port is free");
        let port = wire.addr().port().to_string();
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port])?;
        within("the replica follows", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        wire.set(Fault::Delay(lag));
        Some(Self::Replicated { master: Box::new(master), replica: Box::new(replica), wire })
    }

    /// Returns the address at which nodes first reach the engine.
    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.addr(),
            Self::Etcd(etcd) => etcd.addr(),
            Self::ZooKeeper(zookeeper) => zookeeper.addr(),
        }
    }

    /// Sends a signal to the engine.
    pub(crate) fn signal(&self, signal: &str) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.signal(signal),
            Self::Etcd(etcd) => etcd.signal(signal),
            Self::ZooKeeper(zookeeper) => zookeeper.signal(signal),
        }
    }

    /// Kills the engine, as in a crash.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.kill(),
            Self::Etcd(etcd) => etcd.kill(),
            Self::ZooKeeper(zookeeper) => zookeeper.kill(),
        }
    }

    /// Starts the engine again with its data on disk; Redis has none. Returns when the engine answers.
    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.start_again(),
            Self::Etcd(etcd) => etcd.start_again(),
            Self::ZooKeeper(zookeeper) => zookeeper.start_again(),
        }
    }

    /// Makes the engine lose all its data.
    ///
    /// # Panics
    /// If no command does that.
    pub(crate) fn flush(&self) {
        match self {
            Self::Redis(_) | Self::Replicated { .. } => self.command(&["FLUSHALL"]),
            Self::Etcd(etcd) => drop(etcd.ctl(&["del", "", "--prefix"])),
            Self::ZooKeeper(_) => panic!("no row of the table flushes it"),
        }
    }

    /// Executes a command on Redis.
    ///
    /// # Panics
    /// If the engine is not Redis, or refuses the command.
    pub(crate) fn command(&self, words: &[&str]) {
        let (Self::Redis(redis) | Self::Replicated { master: redis, .. }) = self else {
            panic!("{words:?} is for Redis")
        };
        let answer = redis.command(words);
        assert!(!answer.starts_with('-'), "{words:?}: {answer}");
    }

    /// Makes the replica a master. Returns its address.
    ///
    /// # Panics
    /// If there is no replica.
    pub(crate) fn promote(&self) -> SocketAddr {
        let Self::Replicated { replica, wire, .. } = self else { panic!("there is no replica") };
        // Data on the way to the replica are lost.
        wire.set(Fault::Cut);
        let answer = replica.command(&["REPLICAOF", "NO", "ONE"]);
        assert!(answer.starts_with('+'), "{answer}");
        replica.addr()
    }
}
