//! Finds the link for a shard: the only one, or that to the master of the shard's slot.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::RwLock;
use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::Notify;

use crate::connect::{self, Find, PAUSE, Ready, at, text};
use crate::counts::add;
use crate::link::{Common, Link};
use crate::options::{ConnectError, Servers, address, addresses};

const SLOTS: u16 = 16_384;

/// The most links to masters that hold no slots yet.
const MOST_WITHOUT_SLOTS: usize = 16;

#[derive(Debug)]
pub(crate) enum Route {
    One(Link),
    Cluster(Box<Cluster>),
}

impl Route {
    pub(crate) async fn connect(common: &Arc<Common>) -> Result<(Self, Ready), ConnectError> {
        let find = match common.dialer.options.servers.clone() {
            Servers::One(server) => Find::Named(server),
            Servers::Sentinels(sentinels, name, master) => Find::Sentinels { sentinels, name, master },
            Servers::Nodes(nodes) => {
                let (cluster, ready) = Cluster::connect(common, nodes).await?;
                return Ok((Self::Cluster(Box::new(cluster)), ready));
            }
        };
        let mut first = find.clone();
        let ready = first.connect(&common.dialer).await?;
        add(&common.counters.connections, 1);
        let link = Link::start(Arc::clone(common), first, Some(ready.clone()));
        Ok((Self::One(link), ready))
    }

    pub(crate) fn link(&self, shard: u32) -> Option<Link> {
        match self {
            Self::One(link) => Some(link.clone()),
            Self::Cluster(cluster) => cluster.link(shard),
        }
    }

    /// Returns the link to the server that an `ASK` answer names, in its last word.
    pub(crate) fn named(&self, reason: &str) -> Option<Link> {
        let Self::Cluster(cluster) = self else { return None };
        let name = reason.split_whitespace().next_back()?;
        let info = info(&cluster.seed, name)?;
        // A master without slots is not in the slot table: the next refresh drops links that it does not need.
        let mut map = cluster.map.write();
        if !map.links.contains_key(name) && map.links.len() >= map.ranges.len() + MOST_WITHOUT_SLOTS {
            return None;
        }
        let start = || Link::start(Arc::clone(&cluster.common), Find::Named(info), None);
        Some(map.links.entry(name.to_owned()).or_insert_with(start).clone())
    }

    pub(crate) fn look_again(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.stale.notify_one();
        }
    }
}

/// The masters of a cluster. A task refreshes the slot table when slots have moved, until the cluster is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    map: Arc<RwLock<Map>>,
    stale: Arc<Notify>,
    slot_table: tokio::task::AbortHandle,
    slots: Vec<u16>,
    common: Arc<Common>,
    seed: ConnectionInfo,
}

/// Which master holds which slots.
#[derive(Debug, Default)]
struct Map {
    /// By address, as the cluster writes it.
    links: HashMap<String, Link>,
    /// The first and last slot, and the address of the master; sorted.
    ranges: Vec<(u16, u16, String)>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.slot_table.abort();
    }
}

impl Cluster {
    async fn connect(
        common: &Arc<Common>,
        nodes: Vec<ConnectionInfo>,
    ) -> Result<(Self, Ready), ConnectError> {
        let seed = nodes.first().cloned().ok_or_else(|| ConnectError::Option {
            option: "nodes",
            value: "an empty list".to_owned(),
            wanted: "name one at least",
        })?;
        let (map, stale) = (Arc::new(RwLock::new(Map::default())), Arc::new(Notify::new()));
        let mut slot_table = SlotTable { common: Arc::clone(common), seeds: nodes, map: Arc::clone(&map) };
        slot_table.refresh().await?;
        // One of the masters is checked like a single server.
        let first = map.read().ranges.first().map(|(_, _, name)| name.clone());
        let info = first.and_then(|name| slot_table.info(&name));
        let info = info.ok_or_else(|| slot_table.unreachable("no master holds a slot".to_owned()))?;
        let ready = common.dialer.ready(&info).await?;
        let stop = Arc::clone(&stale);
        let task = tokio::spawn(async move {
            loop {
                stop.notified().await;
                match AssertUnwindSafe(slot_table.refresh()).catch_unwind().await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "the cluster's slots cannot be read"),
                    Err(_) => tracing::error!("a mistake in the Redis store kept it from reading the slots"),
                }
                // Limits the rate of refreshes, however many callers request one.
                tokio::time::sleep(PAUSE / 4).await;
            }
        });
        let slots = (0..common.names.shards()).map(|shard| slot(common.names.hash(shard))).collect();
        let common = Arc::clone(common);
        Ok((Self { map, stale, slot_table: task.abort_handle(), slots, common, seed }, ready))
    }

    fn link(&self, shard: u32) -> Option<Link> {
        let slot = *self.slots.get(shard as usize)?;
        let map = self.map.read();
        let after = map.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, name) = map.ranges.get(after.checked_sub(1)?)?;
        map.links.get(name).filter(|_| slot <= *last).cloned()
    }
}

/// Returns the slot of a key, which is that of the part within braces.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

struct SlotTable {
    common: Arc<Common>,
    seeds: Vec<ConnectionInfo>,
    map: Arc<RwLock<Map>>,
}

impl SlotTable {
    /// Reads which master holds which slots, and starts links to new ones.
    async fn refresh(&mut self) -> Result<(), ConnectError> {
        let known: Vec<String> = self.map.read().links.keys().cloned().collect();
        let known: Vec<ConnectionInfo> = known.iter().filter_map(|name| self.info(name)).collect();
        let mut last = self.unreachable("none was asked".to_owned());
        for node in known.into_iter().chain(self.seeds.clone()) {
            match self.ranges(&node).await {
                Ok(ranges) if ranges.is_empty() => last = self.unreachable("no slot has a master".to_owned()),
                Ok(ranges) => {
                    self.take(ranges);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn take(&self, ranges: Vec<(u16, u16, String)>) {
        let mut map = self.map.write();
        let mut links = HashMap::new();
        for (_, _, name) in &ranges {
            if let (false, Some(info)) = (links.contains_key(name), self.info(name)) {
                let old = map.links.remove(name);
                let start = || Link::start(Arc::clone(&self.common), Find::Named(info), None);
                links.insert(name.clone(), old.unwrap_or_else(start));
            }
        }
        *map = Map { links, ranges };
    }

    async fn ranges(&self, node: &ConnectionInfo) -> Result<Vec<(u16, u16, String)>, ConnectError> {
        let dialer = &self.common.dialer;
        let mut connection = dialer.plain(node).await?;
        let mut ask = Cmd::new();
        ask.arg("CLUSTER").arg("SLOTS");
        let told = connect::ask(&mut connection, &ask).await;
        let told = told.map_err(|error| match error.detail() {
            Some(detail) if detail.contains("cluster support disabled") => {
                ConnectError::Mode { address: address(node.addr()), is_cluster: false }
            }
            _ => dialer.error(node, &error),
        })?;
        let unexpected = || dialer.unexpected_answer(node, "CLUSTER SLOTS of another form");
        let Value::Array(told) = told else { return Err(unexpected()) };
        let mut ranges = Vec::new();
        for range in told {
            ranges.push(range_of(range, node).ok_or_else(unexpected)?);
        }
        ranges.sort_unstable();
        Ok(ranges)
    }

    fn info(&self, name: &str) -> Option<ConnectionInfo> {
        info(self.seeds.first()?, name)
    }

    fn unreachable(&self, reason: String) -> ConnectError {
        ConnectError::Unreachable { address: addresses(&self.seeds), reason }
    }
}

fn info(seed: &ConnectionInfo, name: &str) -> Option<ConnectionInfo> {
    let (host, port) = name.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
    Some(at(seed, host.to_owned(), port.parse().ok()?))
}

/// Decodes a range: its first and last slot, and its master as `host:port`. A node that does not know its own host is
/// the one asked.
fn range_of(range: Value, asked: &ConnectionInfo) -> Option<(u16, u16, String)> {
    let Value::Array(parts) = range else { return None };
    let mut parts = parts.into_iter();
    let slot = |value: Option<Value>| match value {
        Some(Value::Int(slot)) => u16::try_from(slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let (first, last) = (slot(parts.next())?, slot(parts.next())?);
    let Some(Value::Array(master)) = parts.next() else { return None };
    let mut master = master.into_iter();
    let host = master.next().and_then(text).filter(|host| !host.is_empty() && host != "?");
    let host = host.or_else(|| match asked.addr() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => {
            Some(host.clone())
        }
        _ => None,
    })?;
    let Some(Value::Int(port)) = master.next() else { return None };
    Some((first, last, format!("{host}:{port}")))
}
