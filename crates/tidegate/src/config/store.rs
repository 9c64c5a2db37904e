//! `store`: where counters live.

mod addresses;
mod check;
mod region;

use std::path::PathBuf;
use std::time::Duration;

use super::keys::{AGREE_THROUGH, REGIONS_PREFIX};
use super::node::Node;
use crate::policy::{span, whole_number};
use crate::store::{CapacityError, MemoryStore};
pub(super) use check::{check, has, is_own, kind};

/// Where counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSettings {
    /// What keeps them.
    pub kind: StoreKind,
    /// The most keys held by this process.
    pub keys: usize,
    /// Whether this process keeps keys in full, in twice the memory, and not by their fingerprints.
    pub full_keys: bool,
}

/// What keeps counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a process has a few, made at the start and at reloads")]
pub enum StoreKind {
    /// This process's memory.
    Memory,
    /// This process's memory, written to disk.
    Disk(DiskSettings),
    /// An engine that several nodes share.
    Engine(EngineSettings),
}

/// Counters that survive the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskSettings {
    /// The folder; `None` leaves it to the server.
    pub path: Option<PathBuf>,
    /// How often what has changed is written; `None` leaves it to the store.
    pub flush: Option<Duration>,
    /// Whether the file says that counters are kept on disk. Where it says nothing of a store and there is no folder, memory will do.
    pub stated: bool,
}

/// How an engine is reached. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineSettings {
    /// Which engine.
    pub engine: EngineKind,
    /// Its addresses, one at least.
    pub urls: Vec<String>,
    /// As whom it is asked.
    pub user: Option<String>,
    /// The file with the password; not read here.
    pub password_file: Option<PathBuf>,
    /// The file with the certificates by which it is known; not read here.
    pub ca_file: Option<PathBuf>,
    /// The files with the certificate that it is shown, and with that certificate's private key; not read here.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// What its keys begin with.
    pub prefix: String,
    /// How many nodes share it at most, 1 or more.
    pub nodes: u64,
    /// How long it has to answer.
    pub deadline: Duration,
    /// Whether a node goes by the policies that were put for all nodes ([`crate::cluster::policies`]), once there are some, and not by its file's.
    pub cluster_policies: bool,
    /// The region whose engine it is; `None` where there is one region.
    pub region: Option<RegionSettings>,
}

/// A region among others, each with an engine of its own, that divide the limits: see [`Regional`](crate::store::Regional).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionSettings {
    /// Its name: the same on all its nodes.
    pub name: String,
    /// How many regions there are at most, 1 or more.
    pub most: u64,
    /// How the etcd or ZooKeeper is reached through which the nodes of all regions agree. What it says of nodes, deadlines and policies has no
    /// meaning.
    pub through: Box<EngineSettings>,
}

/// An engine that several nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// Redis or Valkey.
    Redis {
        /// What stands at the addresses.
        topology: Topology,
        /// How full limits start when the engine has lost what was spent.
        after_loss: AfterLoss,
    },
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

impl EngineKind {
    /// Returns the word of the file for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Redis { .. } => "redis",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }
}

/// What stands at the addresses of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Servers that divide the keys among themselves.
    Cluster,
    /// Sentinels, who know which server of a set is the master.
    Sentinel {
        /// The name of the set.
        master: String,
    },
}

/// How full limits start when the engine has lost what was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// Empty: nothing is granted twice, and requests are refused until limits have filled.
    Empty,
    /// Half full.
    #[default]
    Half,
    /// Full, as if nothing had been spent.
    Full,
}

impl StoreSettings {
    /// Makes a store in this process's memory, with room for `keys` in place of its own number where one is named.
    ///
    /// # Errors
    /// [`CapacityError`] for a number out of range, or where the system hands out no memory for so many.
    pub fn memory(&self, keys: Option<usize>) -> Result<MemoryStore, CapacityError> {
        let keys = keys.unwrap_or(self.keys);
        if self.full_keys { MemoryStore::with_full_keys(keys) } else { MemoryStore::with_capacity(keys) }
    }

    /// Says whether a node goes by the policies that were put for all nodes.
    #[must_use]
    pub const fn takes_cluster_policies(&self) -> bool {
        matches!(&self.kind, StoreKind::Engine(engine) if engine.cluster_policies)
    }

    /// Returns the word of the file for what keeps counters.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match &self.kind {
            StoreKind::Memory => "memory",
            StoreKind::Disk(_) => "disk",
            StoreKind::Engine(settings) => settings.engine.word(),
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        // Enough for a day's visitors of a large site, and tens of megabytes at most.
        Self { kind: StoreKind::Disk(DiskSettings::default()), keys: 1_000_000, full_keys: false }
    }
}

fn word<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.get(key)?.text()
}

/// Reads the section; mistakes in it were reported before.
pub(super) fn read(file: &Node) -> StoreSettings {
    let default = StoreSettings::default();
    let Some(node) = file.get("store") else { return default };
    let keys = word(node, "keys").and_then(|text| whole_number(text).ok());
    StoreSettings {
        kind: match kind(file) {
            "disk" => StoreKind::Disk(DiskSettings {
                path: path(node, "path"),
                flush: time(node, "flush"),
                stated: node.get("kind").is_some(),
            }),
            "memory" => StoreKind::Memory,
            engine => StoreKind::Engine(engine_settings(node, engine)),
        },
        keys: keys.and_then(|keys| usize::try_from(keys).ok()).unwrap_or(default.keys),
        full_keys: word(node, "key_form") == Some("full"),
    }
}

fn engine_settings(node: &Node, kind: &str) -> EngineSettings {
    let urls = node.get("url").map_or(&[][..], Node::each);
    EngineSettings {
        engine: match kind {
            "redis" => EngineKind::Redis { topology: topology(node), after_loss: after_loss(node) },
            "etcd" => EngineKind::Etcd,
            _ => EngineKind::ZooKeeper,
        },
        urls: urls.iter().filter_map(Node::text).map(str::to_owned).collect(),
        user: word(node, "user").map(str::to_owned),
        password_file: path(node, "password_file"),
        ca_file: path(node, "ca_file"),
        identity_files: path(node, "cert_file").zip(path(node, "key_file")),
        prefix: word(node, "prefix").unwrap_or("tg").to_owned(),
        nodes: word(node, "nodes").and_then(|text| whole_number(text).ok()).unwrap_or(1),
        deadline: time(node, "deadline").unwrap_or(crate::store::fallback::DEADLINE),
        cluster_policies: word(node, "policies") == Some("cluster"),
        region: node.get("region").map(region_settings),
    }
}

fn region_settings(node: &Node) -> RegionSettings {
    let mut through = engine_settings(node, word(node, "kind").unwrap_or(AGREE_THROUGH[0]));
    word(node, "prefix").unwrap_or(REGIONS_PREFIX).clone_into(&mut through.prefix);
    RegionSettings {
        name: word(node, "name").unwrap_or_default().to_owned(),
        most: word(node, "most").and_then(|text| whole_number(text).ok()).unwrap_or(1),
        through: Box::new(through),
    }
}

fn path(node: &Node, key: &str) -> Option<PathBuf> {
    word(node, key).map(PathBuf::from)
}

fn time(node: &Node, key: &str) -> Option<Duration> {
    word(node, key).and_then(|text| span(text).ok())
}

fn topology(node: &Node) -> Topology {
    match word(node, "topology") {
        Some("cluster") => Topology::Cluster,
        Some("sentinel") => {
            Topology::Sentinel { master: word(node, "master").unwrap_or_default().to_owned() }
        }
        _ => Topology::Single,
    }
}

fn after_loss(node: &Node) -> AfterLoss {
    match word(node, "after_loss") {
        Some("empty") => AfterLoss::Empty,
        Some("full") => AfterLoss::Full,
        _ => AfterLoss::Half,
    }
}

#[cfg(test)]
mod tests;
