//! Reads `store`: where counters are stored.

mod addresses;
mod check;
mod region;

use std::path::PathBuf;
use std::time::Duration;

use super::grammars::{keys_held, master};
use super::keys::{AGREE_THROUGH, REGIONS_PREFIX};
use super::node::Node;
pub(super) use check::{check, has, is_own, kind};
use tidegate_gate::policy::{span, whole_number};
use tidegate_limits::store::{AfterLoss, CapacityError, MemoryStore};

/// Where counters are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSettings {
    /// The kind of store.
    pub kind: StoreKind,
    /// The most keys that this process holds.
    pub keys: usize,
    /// Whether this process stores full keys, in twice the memory, instead of their fingerprints.
    pub full_keys: bool,
}

/// The kind of store.
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

/// Settings of a store on disk, whose counters survive the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskSettings {
    /// The folder; `None`: the server chooses it.
    pub path: Option<PathBuf>,
    /// Whether the file sets `store.kind: disk`. If it does not and there is no folder, the server uses memory.
    pub stated: bool,
}

/// How to connect to an engine. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineSettings {
    /// Which engine.
    pub engine: EngineKind,
    /// The addresses of the engine, at least one.
    pub urls: Vec<String>,
    /// The user name at the engine.
    pub user: Option<String>,
    /// The file with the password; not read here.
    pub password_file: Option<PathBuf>,
    /// The file with the certificates that the engine's certificate is checked against; not read here.
    pub ca_file: Option<PathBuf>,
    /// The files with the client certificate for the engine and with its private key; not read here.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// The prefix of all keys in the engine.
    pub prefix: String,
    /// The most nodes that share the engine, 1 or more.
    pub nodes: u64,
    /// How long the engine has to answer.
    pub deadline: Duration,
    /// Whether a node uses the policies that were put for all nodes ([`tidegate_cluster::policies`]) instead of those of
    /// its file, once there are some.
    pub cluster_policies: bool,
    /// The region to which the engine belongs; `None` if there is only one region.
    pub region: Option<RegionSettings>,
}

/// One of several regions that divide the limits, each with an engine of its own: see
/// [`Regional`](tidegate_cluster::Regional).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionSettings {
    /// The name of the region, the same on all its nodes.
    pub name: String,
    /// The most regions there are, 1 or more.
    pub most: u64,
    /// How to connect to the etcd or ZooKeeper through which the nodes of all regions agree. Its `nodes`, `deadline`
    /// and `cluster_policies` have no meaning.
    pub through: Box<EngineSettings>,
}

/// An engine that several nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// Redis or Valkey.
    Redis {
        /// What kind of servers the addresses belong to.
        topology: Topology,
        /// How full limits start if the engine has lost what was spent.
        after_loss: AfterLoss,
    },
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

impl EngineKind {
    /// Returns the word for the engine in the file.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Redis { .. } => "redis",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }
}

/// What kind of servers the addresses of Redis belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Servers of a cluster that divides the keys among them.
    Cluster,
    /// Sentinels, which know the master of a set of servers.
    Sentinel {
        /// The name of the set.
        master: String,
    },
}

impl StoreSettings {
    /// Creates a store in this process's memory, with room for `keys` keys, or for the configured number if `None`.
    ///
    /// # Errors
    /// [`CapacityError`] if the number is out of range or the system cannot allocate the memory.
    pub fn memory(&self, keys: Option<usize>) -> Result<MemoryStore, CapacityError> {
        let keys = keys.unwrap_or(self.keys);
        if self.full_keys { MemoryStore::with_full_keys(keys) } else { MemoryStore::with_capacity(keys) }
    }

    /// Reports whether a node uses the policies that were put for all nodes.
    #[must_use]
    pub const fn takes_cluster_policies(&self) -> bool {
        matches!(&self.kind, StoreKind::Engine(engine) if engine.cluster_policies)
    }

    /// Returns the word for the kind of store in the file.
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
        // Enough for a day's visitors of a large site, in tens of megabytes at most.
        Self { kind: StoreKind::Disk(DiskSettings::default()), keys: 1_000_000, full_keys: false }
    }
}

fn word<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.get(key)?.text()
}

/// Reads the section. Its mistakes were reported before.
pub(super) fn read(file: &Node) -> StoreSettings {
    let default = StoreSettings::default();
    let Some(node) = file.get("store") else { return default };
    let held = word(node, "keys").and_then(keys_held);
    StoreSettings {
        kind: match kind(file) {
            "disk" => {
                StoreKind::Disk(DiskSettings { path: path(node, "path"), stated: node.get("kind").is_some() })
            }
            "memory" => StoreKind::Memory,
            engine => StoreKind::Engine(engine_settings(node, engine)),
        },
        keys: held.and_then(|(keys, _)| usize::try_from(keys).ok()).unwrap_or(default.keys),
        full_keys: held.is_some_and(|(_, full)| full),
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
        deadline: time(node, "deadline").unwrap_or(tidegate_cluster::fallback::DEADLINE),
        cluster_policies: word(node, "policies") == Some("cluster"),
        region: node.get("region").map(region_settings),
    }
}

fn region_settings(node: &Node) -> RegionSettings {
    let mut through = engine_settings(node, word(node, "kind").unwrap_or(AGREE_THROUGH[0]));
    word(node, "prefix").unwrap_or(REGIONS_PREFIX).clone_into(&mut through.prefix);
    RegionSettings {
        name: word(node, "name").unwrap_or_default().to_owned(),
        most: word(node, "max").and_then(|text| whole_number(text).ok()).unwrap_or(1),
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
        Some(text) if let Some(name) = master(text) => Topology::Sentinel { master: name.to_owned() },
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
