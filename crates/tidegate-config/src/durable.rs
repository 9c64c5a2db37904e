//! Reads and checks `durable`: when the changes that a request makes are on disk.
//!
//! A store in memory has no disk, and an engine has its own settings for durability. `strict` is refused for both,
//! since its author would wrongly believe that no answer is given before the change is on disk.

use super::diagnostic::Findings;
use super::node::Node;
use super::store;
use tidegate_limits::store::Durable;

const STRICT: &str = "strict";

/// The kind of store with a disk of its own.
const DISK: &str = "disk";

/// Reads the word of a policy, or else of `defaults`.
pub(super) fn durable(node: &Node, defaults: Option<&Node>) -> Durable {
    let word = node.get("durable").or_else(|| defaults?.get("durable")).and_then(Node::text);
    if word == Some(STRICT) { Durable::Strict } else { Durable::Interval }
}

/// Refuses a word of a policy or of `defaults` that the configured store cannot guarantee.
///
/// `key` is the name of the key in messages: `durable` or `defaults.durable`.
pub(super) fn check(node: Option<&Node>, key: &str, file: &Node, findings: &mut Findings) {
    let kind = store::kind(file);
    let Some(said) = node.and_then(|node| node.get("durable")) else { return };
    if said.text() != Some(STRICT) {
        return;
    }
    let stated = file.get("store").is_some_and(|store| store.get("kind").is_some());
    if kind == DISK && !stated {
        // If the file does not set `store.kind`, counters are kept in memory when there is no folder for them.
        findings.error(
            said.spot,
            format_args!("{key}: {STRICT} needs a store that is on disk for certain; write store.kind: disk"),
        );
    }
    if kind != DISK {
        findings.error(
            said.spot,
            format_args!(
                "{key}: {STRICT} needs a store on disk, and `store.kind: {kind}` is none; \
                 write durable: interval, or leave it out"
            ),
        );
    }
}
