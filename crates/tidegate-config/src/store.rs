//! Reads `store`: where counters are stored.

mod check;

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
    /// The most keys that this process holds, 1 to 2³².
    pub keys: usize,
    /// Whether this process stores full keys, in twice the memory, instead of their fingerprints.
    pub full_keys: bool,
    /// The policy file of a former store, whose counters this one takes over ([`Successor`](tidegate_cluster::Successor));
    /// not read here. `None`: there is none.
    pub from: Option<PathBuf>,
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
    /// The user name at the engine; `None`: none is sent.
    pub user: Option<String>,
    /// The file with the password, in its first line; not read here. `None`: none is sent.
    pub password_file: Option<PathBuf>,
    /// The file with the certificates that the engine's certificate is checked against; not read here. `None`: those of
    /// the system.
    pub ca_file: Option<PathBuf>,
    /// The files with the client certificate for the engine and with its private key; not read here. `None`: no
    /// certificate is shown.
    pub identity_files: Option<(PathBuf, PathBuf)>,
    /// The prefix of all keys in the engine, the same on all nodes that share limits.
    pub prefix: String,
    /// The most nodes that share the engine, 1 to 32,768.
    pub nodes: u64,
    /// How long the engine has to answer, 1 ms to 60 s; then `on_store_error` of each policy decides.
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
    /// The most regions there are, 1 to 32,768.
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
        Self { kind: StoreKind::Disk(DiskSettings::default()), keys: 1_000_000, full_keys: false, from: None }
    }
}

/// Reads the section. Its mistakes were reported before.
pub(super) fn read(file: &Node) -> StoreSettings {
    let default = StoreSettings::default();
    let Some(node) = file.get("store") else { return default };
    let held = node.text_of("keys").and_then(keys_held);
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
        from: path(node, "from"),
    }
}

fn engine_settings(node: &Node, kind: &str) -> EngineSettings {
    let urls = node.each_of("url");
    EngineSettings {
        engine: match kind {
            "redis" => EngineKind::Redis { topology: topology(node), after_loss: after_loss(node) },
            "etcd" => EngineKind::Etcd,
            _ => EngineKind::ZooKeeper,
        },
        urls: urls.iter().filter_map(Node::text).map(str::to_owned).collect(),
        user: node.text_of("user").map(str::to_owned),
        password_file: path(node, "password_file"),
        ca_file: path(node, "ca_file"),
        identity_files: path(node, "cert_file").zip(path(node, "key_file")),
        prefix: node.text_of("prefix").unwrap_or("tg").to_owned(),
        nodes: node.text_of("nodes").and_then(|text| whole_number(text).ok()).unwrap_or(1),
        deadline: time(node, "deadline").unwrap_or(tidegate_cluster::fallback::DEADLINE),
        cluster_policies: node.text_of("policies") == Some("cluster"),
        region: node.get("region").map(region_settings),
    }
}

fn region_settings(node: &Node) -> RegionSettings {
    let mut through = engine_settings(node, node.text_of("kind").unwrap_or(AGREE_THROUGH[0]));
    node.text_of("prefix").unwrap_or(REGIONS_PREFIX).clone_into(&mut through.prefix);
    RegionSettings {
        name: node.text_of("name").unwrap_or_default().to_owned(),
        most: node.text_of("max").and_then(|text| whole_number(text).ok()).unwrap_or(1),
        through: Box::new(through),
    }
}

fn path(node: &Node, key: &str) -> Option<PathBuf> {
    node.text_of(key).map(PathBuf::from)
}

fn time(node: &Node, key: &str) -> Option<Duration> {
    node.text_of(key).and_then(|text| span(text).ok())
}

fn topology(node: &Node) -> Topology {
    match node.text_of("topology") {
        Some("cluster") => Topology::Cluster,
        Some(text) if let Some(name) = master(text) => Topology::Sentinel { master: name.to_owned() },
        _ => Topology::Single,
    }
}

fn after_loss(node: &Node) -> AfterLoss {
    match node.text_of("after_loss") {
        Some("empty") => AfterLoss::Empty,
        Some("full") => AfterLoss::Full,
        _ => AfterLoss::Half,
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the section `store`: its valid forms, and the messages for its mistakes.

    use super::super::{Config, Format};
    use super::*;

    fn parse(store: &str) -> Result<StoreSettings, String> {
        let text = format!(
            "version: 1\nstore: {store}\npolicies:\n  - {{name: all, by: [user.id], limit: {{rate: 1/s, burst: 1}}}}\n"
        );
        let read = Config::parse(&text, "f", Format::Yaml).map(|(config, _)| config.store);
        read.map_err(|mistakes| {
            mistakes.iter().map(|mistake| mistake.message.clone()).collect::<Vec<_>>().join("; ")
        })
    }

    #[test]
    fn a_disk_has_a_folder() {
        let read = parse("{kind: disk, path: /var/lib/tidegate}").unwrap();
        let disk = DiskSettings { path: Some("/var/lib/tidegate".into()), stated: true };
        assert_eq!((read.word(), read.kind), ("disk", StoreKind::Disk(disk)));
        let told = parse("{kind: disk, flush: 1ms}").unwrap_err();
        assert!(told.contains("the store, which writes every 200ms"), "{told}");
    }

    #[test]
    fn an_engine_has_addresses_without_secrets() {
        let read =
            parse("{kind: redis, url: [redis://a:1, redis://b:2], topology: cluster, nodes: 3}").unwrap();
        let StoreKind::Engine(engine) = read.kind else { panic!("{read:?}") };
        assert_eq!((engine.urls.len(), engine.nodes, &*engine.prefix), (2, 3, "tg"));
        let kind = EngineKind::Redis { topology: Topology::Cluster, after_loss: AfterLoss::Half };
        assert_eq!(engine.engine, kind);
        let secret = parse("{kind: redis, url: 'redis://me:hunter2@a:1'}").unwrap_err();
        assert!(secret.contains("store.password_file") && !secret.contains("hunter2"), "{secret}");
        let other = parse("{kind: etcd, url: 'redis://me:hunter2@a:1'}").unwrap_err();
        assert!(other.contains("http:// or https://") && !other.contains("hunter2"), "{other}");
    }

    #[test]
    fn what_says_nothing_about_a_kind_is_refused_by_name() {
        for (store, said) in [
            (
                "{kind: memory, path: /tmp}",
                "store.path has no effect with `store.kind: memory`; it is for disk",
            ),
            ("{kind: redis, nodes: 2}", "`store.kind: redis` needs store.url, as redis://127.0.0.1:6379"),
            (
                "{kind: etcd, nodes: 2, url: 'http://'}",
                "store.url: \"http://\" names no host; write http://HOST:2379",
            ),
            (
                "{kind: zookeeper, nodes: 2, url: 'zookeeper://a:x'}",
                "store.url: \"zookeeper://a:x\" has no port from 1 to 65535 after its colon",
            ),
            (
                "{kind: redis, nodes: 2, url: 'redis://a', topology: sentinel}",
                "store.topology: \"sentinel\" is not single, cluster, or sentinel with the name that the sentinels have for the master, as sentinel mymaster",
            ),
        ] {
            assert_eq!(parse(store).unwrap_err(), said);
        }
    }

    /// Regression: the name of the master had 55 bytes at most.
    #[test]
    fn the_name_of_a_master_may_be_as_long_as_any() {
        let of = |bytes: usize| {
            parse(&format!(
                "{{kind: redis, nodes: 2, url: 'redis://a', topology: sentinel {}}}",
                "m".repeat(bytes)
            ))
        };
        of(128).unwrap();
        assert!(of(129).unwrap_err().ends_with("has 138 bytes; use at most 137"));
    }

    /// Without `nodes`, each node assumed that it was the only one: three nodes that split a limit let through three times as much.
    #[test]
    fn an_engine_is_told_how_many_nodes_share_it() {
        for (kind, url) in [("redis", "redis://a"), ("etcd", "http://a"), ("zookeeper", "zookeeper://a")] {
            let told = parse(&format!("{{kind: {kind}, url: '{url}'}}")).unwrap_err();
            assert!(told.starts_with(&format!("`store.kind: {kind}` needs store.nodes, ")), "{told}");
            let read = parse(&format!("{{kind: {kind}, url: '{url}', nodes: 3}}")).unwrap();
            assert!(matches!(read.kind, StoreKind::Engine(engine) if engine.nodes == 3));
        }
    }

    /// Formerly each of these was accepted and had no effect.
    #[test]
    fn words_that_would_be_lost_are_refused() {
        for (store, said) in [
            (
                "{kind: redis, nodes: 2, url: 'redis://a', user: me}",
                "store.user has no effect without store.password_file",
            ),
            (
                "{kind: etcd, nodes: 2, url: 'http://a', password_file: p}",
                "store.password_file has no effect with `store.kind: etcd`",
            ),
            (
                "{kind: redis, nodes: 2, url: 'redis://a', ca_file: c}",
                "store.ca_file has no effect on addresses that begin with redis://; write rediss://",
            ),
            (
                "{kind: etcd, nodes: 2, url: 'http://a', ca_file: c}",
                "store.ca_file has no effect on addresses that begin with http://; write https://",
            ),
            (
                "{kind: redis, nodes: 2, url: 'redis://a', cert_file: c, key_file: k}",
                "store.cert_file has no effect on addresses that begin with redis://; write rediss://",
            ),
            (
                "{kind: etcd, nodes: 2, url: 'https://a', cert_file: c}",
                "store.cert_file has no effect without store.key_file; write both, or neither",
            ),
            (
                "{kind: redis, nodes: 2, url: 'rediss://a', key_file: k}",
                "store.key_file has no effect without store.cert_file; write both, or neither",
            ),
            (
                "{kind: redis, nodes: 2, url: [redis://a, redis://b]}",
                "store.url: several addresses are for `store.topology: cluster` or `sentinel`",
            ),
            (
                "{kind: redis, nodes: 2, url: [rediss://a, redis://b], topology: sentinel m}",
                "store.url: some addresses begin with rediss:// and some with redis://; write one for all",
            ),
            (
                "{kind: redis, nodes: 2, url: [redis://a/1, redis://b/2], topology: sentinel m}",
                "store.url: the addresses name different databases; write one for all",
            ),
        ] {
            let told = parse(store).unwrap_err();
            assert!(told.starts_with(said), "{told}");
        }
        for good in [
            "{kind: redis, nodes: 2, url: 'redis://a', password_file: p}",
            "{kind: redis, nodes: 2, url: 'rediss://a', user: me, password_file: p, ca_file: c}",
            "{kind: etcd, nodes: 2, url: 'https://a', ca_file: c, cert_file: c, key_file: k}",
            "{kind: redis, nodes: 2, url: [rediss://a/1, rediss://b/1], topology: sentinel m}",
        ] {
            parse(good).unwrap();
        }
    }

    #[test]
    fn a_region_names_itself_and_through_what_regions_agree() {
        let of =
            |region: &str| parse(&format!("{{kind: redis, url: 'redis://a', nodes: 2, region: {region}}}"));
        let read = of("{name: eu, max: 3, kind: etcd, url: ['http://e1:2379', 'http://e2:2379']}").unwrap();
        let StoreKind::Engine(engine) = read.kind else { panic!("{read:?}") };
        let region = engine.region.unwrap();
        assert_eq!((&*region.name, region.most, region.through.engine.word()), ("eu", 3, "etcd"));
        assert_eq!((region.through.urls.len(), &*region.through.prefix), (2, "tg-regions"));
        for (region, said) in [
            ("{name: eu, max: 3, kind: etcd}", "store.region has no url"),
            ("{name: eu, kind: etcd, url: 'http://e'}", "store.region has no max"),
            (
                "{name: eu, max: 3, kind: redis, url: 'redis://a'}",
                "store.region.kind: unknown word \"redis\"; possible are etcd, zookeeper",
            ),
            (
                "{name: eu, max: 3, kind: etcd, url: 'http://'}",
                "store.region.url: \"http://\" names no host; write http://HOST:2379",
            ),
            (
                "{name: eu, max: 3, kind: zookeeper, url: 'zookeeper://a', user: me}",
                "store.region.user has no effect without store.region.password_file; write both, or neither",
            ),
            (
                "{name: eu, max: 3, kind: zookeeper, url: 'zookeeper://a', ca_file: x.pem}",
                "store.region.ca_file has no effect with `store.region.kind: zookeeper`; it is for etcd",
            ),
            (
                "{name: eu, max: 3, kind: etcd, url: 'https://e', key_file: x.pem}",
                "store.region.key_file has no effect without store.region.cert_file; write both, or neither",
            ),
        ] {
            let told = of(region).unwrap_err();
            assert!(told.starts_with(said), "{region}: {told}");
        }
        let other = parse(
            "{kind: etcd, url: 'http://a', nodes: 2, region: {name: eu, max: 3, kind: etcd, url: 'http://e'}}",
        );
        assert_eq!(other.unwrap_err(), "store.region has no effect with `store.kind: etcd`; it is for redis");
    }

    /// Limits that the engine of a region decides must be divided, so those that cannot be divided are refused.
    #[test]
    fn a_region_has_limits_that_can_be_divided() {
        let of = |policy: &str| {
            let text = format!(
                "version: 1\nstore: {{kind: redis, url: 'redis://a', nodes: 2, region: {{name: eu, max: 3, kind: etcd, url: 'http://e'}}}}\n\
             policies:\n  - {{name: all, by: [user.id], {policy}}}\n"
            );
            match Config::parse(&text, "f", Format::Yaml) {
                Ok((_, warnings)) => {
                    warnings.iter().map(|said| said.message.clone()).collect::<Vec<_>>().join("; ")
                }
                Err(mistakes) => {
                    mistakes.iter().map(|said| said.message.clone()).collect::<Vec<_>>().join("; ")
                }
            }
        };
        for policy in [
            "limit: {rate: 100/s}",
            "share: central, limit: {rate: 100/s}",
            "share: local, limit: {algorithm: fixed-window, rate: 6/day, calendar: UTC}",
        ] {
            assert_eq!(of(policy), "", "{policy}");
        }
        for (policy, said) in [
            (
                "share: split, limit: {rate: 100/s}",
                "split divides a limit among nodes, and store.region among regions",
            ),
            (
                "limit: {algorithm: fixed-window, rate: 6/day, calendar: UTC}",
                "its windows are those of the calendar",
            ),
            ("limit: {rate: 50/s}", "less than one unit of"),
        ] {
            assert!(of(policy).contains(said), "{policy}: {}", of(policy));
        }
    }
}
