//! Checks the keys of `store` against each other.

use std::time::Duration;

use tidegate_core::spelling::nearest;

use super::{addresses, region};
use crate::diagnostic::Findings;
use crate::foreign_words::same_word;
use crate::keys::{KINDS, OWN};
use crate::node::Node;
use tidegate_gate::policy::span;

/// The keys of `store` that apply to some kinds only, with those kinds.
const ONLY: [(&str, &[&str]); 14] = [
    ("path", &["disk"]),
    ("url", &["redis", "etcd", "zookeeper"]),
    ("topology", &["redis"]),
    ("user", &["redis", "etcd", "zookeeper"]),
    ("password_file", &["redis", "etcd", "zookeeper"]),
    ("ca_file", &["redis", "etcd"]),
    ("cert_file", &["redis", "etcd"]),
    ("key_file", &["redis", "etcd"]),
    ("prefix", &["redis", "etcd", "zookeeper"]),
    ("nodes", &["redis", "etcd", "zookeeper"]),
    ("deadline", &["redis", "etcd", "zookeeper"]),
    ("after_loss", &["redis"]),
    ("policies", &["etcd", "zookeeper"]),
    ("region", &["redis"]),
];

/// Reports whether a key of `store` applies to a kind of store.
pub(crate) fn has(kind: &str, key: &str) -> bool {
    ONLY.iter().find(|(name, _)| *name == key).is_none_or(|(_, kinds)| kinds.contains(&kind))
}

/// Returns the kind of store of a file: `store.kind` or the default; for a word that is none, the one that is meant, so that
/// its error is the only one.
pub(crate) fn kind(file: &Node) -> &str {
    let said = file.get("store").and_then(|store| store.get("kind")).and_then(Node::text);
    let meant = |word: &str| {
        let known = KINDS.iter().copied().find(|known| *known == word);
        known.or_else(|| same_word(word)).or_else(|| nearest(word, KINDS.iter().copied()))
    };
    said.and_then(meant).filter(|word| KINDS.contains(word)).unwrap_or(KINDS[0])
}

/// Reports whether the store of a file belongs to this process alone.
pub(crate) fn is_own(file: &Node) -> bool {
    KINDS[..OWN].contains(&kind(file))
}

/// Checks the keys of `store` against each other.
pub(crate) fn check(file: &Node, findings: &mut Findings) {
    let Some(node) = file.get("store") else { return };
    let kind = kind(file);
    for (key, kinds) in ONLY {
        if let Some(said) = node.get(key)
            && !kinds.contains(&kind)
        {
            let of = kinds.join(", ");
            findings.error(
                said.spot,
                format_args!("store.{key} has no effect with `store.kind: {kind}`; it is for {of}"),
            );
        }
    }
    if KINDS[..OWN].contains(&kind) {
        return;
    }
    within(node, "deadline", Duration::from_millis(1), Duration::from_secs(60), findings);
    addresses::check(node, "store", kind, findings);
    addresses::secrets(node, "store", kind, findings);
    if let Some(region) = node.get("region").filter(|_| has(kind, "region")) {
        region::check(region, findings);
    }
    if node.get("nodes").is_none() {
        findings.error(
            node.spot,
            format_args!(
                "`store.kind: {kind}` needs store.nodes, the largest number of nodes that share the engine: while the engine is gone, \
                 each node grants a limit divided by it"
            ),
        );
    }
}

fn within(node: &Node, key: &str, least: Duration, most: Duration, findings: &mut Findings) {
    let Some(said) = node.get(key) else { return };
    if let Some(Ok(read)) = said.text().map(span)
        && !(least..=most).contains(&read)
    {
        findings.error(
            said.spot,
            format_args!("store.{key}: {read:?} is out of range; use {least:?} to {most:?}"),
        );
    }
}
