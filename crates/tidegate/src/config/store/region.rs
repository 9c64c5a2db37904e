//! `store.region`: the region whose engine the store is, and through what all regions agree.

use super::{EngineSettings, addresses, engine_settings, word};
use crate::config::diagnostic::Findings;
use crate::config::keys::{AGREE_THROUGH, REGIONS_PREFIX};
use crate::config::node::Node;
use crate::policy::whole_number;

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

/// Reads the section; mistakes in it were reported before.
pub(super) fn read(node: &Node) -> RegionSettings {
    let mut through = engine_settings(node, word(node, "kind").unwrap_or(AGREE_THROUGH[0]));
    word(node, "prefix").unwrap_or(REGIONS_PREFIX).clone_into(&mut through.prefix);
    RegionSettings {
        name: word(node, "name").unwrap_or_default().to_owned(),
        most: word(node, "most").and_then(|text| whole_number(text).ok()).unwrap_or(1),
        through: Box::new(through),
    }
}

/// Checks what its keys mean together.
pub(super) fn check(node: &Node, findings: &mut Findings) {
    // Without a kind, or with another word, it was reported that one is missing.
    let Some(kind) = word(node, "kind").filter(|word| AGREE_THROUGH.contains(word)) else { return };
    if let Some(said) = node.get("ca_file")
        && kind == "zookeeper"
    {
        findings.error(
            said.spot,
            "store.region.ca_file says nothing about `store.region.kind: zookeeper`; it is for etcd",
        );
    }
    if node.get("url").is_some() {
        addresses::check(node, "store.region", kind, findings);
    }
    addresses::secrets(node, "store.region", kind, findings);
}
