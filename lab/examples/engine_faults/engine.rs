//! The engine with the counters: a real server that is suspended, killed, flushed and replaced.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::{EtcdServer, Fault, FaultyProxy, RedisServer, ZooKeeperServer, within};

use super::act::{Member, Members};
use super::regions::{Regions, region_of};

/// The kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Etcd,
    ZooKeeper,
    /// A Redis in each of several regions, which agree through an etcd.
    Regions,
}

impl Kind {
    /// Returns its name.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
            Self::Regions => "regions",
        }
    }

    /// Says whether nodes or regions agree on their parts of a limit through it.
    pub(crate) const fn coordinates(self) -> bool {
        !matches!(self, Self::Redis)
    }

    /// Returns its URL in a policy file.
    pub(crate) fn url(self, at: SocketAddr) -> String {
        match self {
            Self::Redis | Self::Regions => format!("redis://{at}"),
            Self::Etcd => format!("http://{at}"),
            Self::ZooKeeper => format!("zookeeper://{at}"),
        }
    }
}

/// The options of each member of etcd.
const ETCD: [&str; 1] = ["--unsafe-no-fsync"];

/// A running engine.
pub(crate) enum Engine {
    Redis(Box<RedisServer>),
    /// A master, and a replica that follows it through a proxy.
    Replicated {
        master: Box<RedisServer>,
        replica: Box<RedisServer>,
        wire: FaultyProxy,
    },
    /// All members; those in the second list are killed or suspended.
    Etcd(Vec<EtcdServer>, Vec<Away>),
    ZooKeeper(Vec<ZooKeeperServer>, Vec<Away>),
    Regions(Box<Regions>),
}

/// A member that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Away {
    member: usize,
    killed: bool,
}

impl Engine {
    /// Starts the engine; prints a message and returns `None` if it is not installed. `lag` is the lag of a replica;
    /// with zero there is none.
    pub(crate) fn start(kind: Kind, lag: Duration, members: Members) -> Option<Self> {
        match kind {
            Kind::Redis if lag.is_zero() => RedisServer::start(&[]).map(|redis| Self::Redis(Box::new(redis))),
            Kind::Redis => Self::replicated(lag),
            Kind::Etcd => {
                let etcd = match members {
                    Members::Three => EtcdServer::start_three(&ETCD).map(Vec::from),
                    _ => EtcdServer::start(&ETCD).map(|etcd| vec![etcd]),
                };
                etcd.map(|etcd| Self::Etcd(etcd, Vec::new()))
            }
            Kind::ZooKeeper => {
                let zookeeper = match members {
                    Members::Three => ZooKeeperServer::start_three().map(Vec::from),
                    _ => ZooKeeperServer::start().map(|zookeeper| vec![zookeeper]),
                };
                zookeeper.map(|zookeeper| Self::ZooKeeper(zookeeper, Vec::new()))
            }
            Kind::Regions => Regions::start().map(|regions| Self::Regions(Box::new(regions))),
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

    /// Returns the addresses at which a node first reaches the engine.
    pub(crate) fn addrs(&self, node: usize) -> Vec<SocketAddr> {
        match self {
            Self::Regions(regions) => vec![regions.redis(region_of(node))],
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => vec![redis.addr()],
            Self::Etcd(etcd, _) => etcd.iter().map(EtcdServer::addr).collect(),
            Self::ZooKeeper(zookeeper, _) => zookeeper.iter().map(ZooKeeperServer::addr).collect(),
        }
    }

    /// Sends a signal to the engine.
    pub(crate) fn signal(&self, signal: &str) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.signal(signal),
            Self::Etcd(etcd, _) => etcd.iter().for_each(|etcd| etcd.signal(signal)),
            Self::ZooKeeper(zookeeper, _) => zookeeper.iter().for_each(|zookeeper| zookeeper.signal(signal)),
            Self::Regions(_) => panic!("regions have several engines"),
        }
    }

    /// Kills the engine, as in a crash.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.kill(),
            Self::Etcd(etcd, _) => etcd.iter_mut().for_each(EtcdServer::kill),
            Self::ZooKeeper(zookeeper, _) => zookeeper.iter_mut().for_each(ZooKeeperServer::kill),
            Self::Regions(_) => panic!("regions have several engines"),
        }
    }

    /// Starts the engine again with its data on disk; Redis has none. Returns when the engine answers.
    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Redis(redis) | Self::Replicated { master: redis, .. } => redis.start_again(),
            Self::Etcd(etcd, _) => etcd.iter_mut().for_each(EtcdServer::start_again),
            Self::ZooKeeper(zookeeper, _) => zookeeper.iter_mut().for_each(ZooKeeperServer::start_again),
            Self::Regions(_) => panic!("regions have several engines"),
        }
    }

    /// Kills or suspends a member.
    ///
    /// # Panics
    /// If the engine has one member only.
    pub(crate) fn take_away(&mut self, which: Member, killed: bool) {
        let member = self.number(which);
        let how = Away { member, killed };
        match self {
            Self::ZooKeeper(zookeeper, away) if killed => (zookeeper[member].kill(), away.push(how)).1,
            Self::ZooKeeper(zookeeper, away) => (zookeeper[member].signal("-STOP"), away.push(how)).1,
            _ => {
                let Some((etcd, away)) = self.etcd() else { return };
                away.push(how);
                match killed {
                    true => etcd[member].kill(),
                    false => etcd[member].signal("-STOP"),
                }
            }
        }
    }

    /// Adds a member, then removes another.
    ///
    /// # Panics
    /// If the engine is not etcd.
    pub(crate) fn replace(&mut self, which: Member) {
        let number = self.number(which);
        let Self::Etcd(etcd, _) = self else { panic!("{which:?} can be replaced in etcd only") };
        let other = usize::from(number == 0);
        let added = etcd[other].add(&ETCD);
        etcd[other].remove(&etcd[number]);
        etcd.push(added);
    }

    /// Returns which member that is now.
    ///
    /// # Panics
    /// If the engine has one member only, or no leader.
    fn number(&mut self, which: Member) -> usize {
        let leads: Vec<bool> = match self {
            Self::ZooKeeper(zookeeper, _) => zookeeper.iter().map(ZooKeeperServer::leads).collect(),
            _ => {
                let (etcd, _) =
                    self.etcd().unwrap_or_else(|| panic!("{which:?} is for an engine of three members"));
                etcd.iter().map(|etcd| etcd.leader() == Some(true)).collect()
            }
        };
        let member = match which {
            Member::Leader => leads.iter().position(|leads| *leads),
            Member::Follower => leads.iter().position(|leads| !leads),
            Member::Number(member) => Some(member),
        };
        member.expect("the members have elected a leader")
    }

    /// Starts the members that were killed, and resumes those that were suspended.
    pub(crate) fn bring_back(&mut self) {
        if let Self::ZooKeeper(zookeeper, away) = self {
            away.drain(..).for_each(|Away { member, killed }| match killed {
                true => zookeeper[member].start_again(),
                false => zookeeper[member].signal("-CONT"),
            });
        } else if let Some((etcd, away)) = self.etcd() {
            away.drain(..).for_each(|Away { member, killed }| match killed {
                true => etcd[member].start_again(),
                false => etcd[member].signal("-CONT"),
            });
        }
    }

    /// Returns the members of the etcd, and those that are away, if there is one.
    fn etcd(&mut self) -> Option<(&mut [EtcdServer], &mut Vec<Away>)> {
        match self {
            Self::Etcd(etcd, away) => Some((etcd, away)),
            Self::Regions(regions) => {
                let regions = &mut **regions;
                Some((&mut regions.etcd, &mut regions.away))
            }
            _ => None,
        }
    }

    /// Returns the engines of regions.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn regions(&mut self) -> &mut Regions {
        match self {
            Self::Regions(regions) => regions,
            _ => panic!("there are no regions"),
        }
    }

    /// Makes the engine lose all its data.
    ///
    /// # Panics
    /// If no command does that.
    pub(crate) fn flush(&self) {
        match self {
            Self::Redis(_) | Self::Replicated { .. } => self.command(&["FLUSHALL"]),
            Self::Etcd(etcd, _) => drop(etcd[0].ctl(&["del", "", "--prefix"])),
            Self::ZooKeeper(..) | Self::Regions(_) => panic!("no row of the table flushes it"),
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
