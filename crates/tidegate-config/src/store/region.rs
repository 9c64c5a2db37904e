//! Checks `store.region` as a whole: the region of the store's engine, and the engine through which all regions agree.

use super::addresses;
use crate::diagnostic::Findings;
use crate::keys::AGREE_THROUGH;
use crate::node::Node;

/// Checks the keys of the section against each other.
pub(super) fn check(node: &Node, findings: &mut Findings) {
    // A missing or unknown kind was reported already.
    let Some(kind) = node.get("kind").and_then(Node::text).filter(|word| AGREE_THROUGH.contains(word)) else {
        return;
    };
    for (key, said) in addresses::TLS_FILES.iter().filter_map(|key| Some((key, node.get(key)?))) {
        if kind == "zookeeper" {
            findings.error(
                said.spot,
                format_args!(
                    "store.region.{key} has no effect with `store.region.kind: zookeeper`; it is for etcd"
                ),
            );
        }
    }
    if node.get("url").is_some() {
        addresses::check(node, "store.region", kind, findings);
    }
    addresses::secrets(node, "store.region", kind, findings);
}
