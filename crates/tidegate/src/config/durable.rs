//! `durable`: when what a request changes is on disk.
//!
//! A store in memory has no disk. `strict` is refused there: whoever wrote it believes that a restart forgets nothing.

use super::diagnostic::Findings;
use super::node::Node;
use crate::store::Durable;

const STRICT: &str = "strict";

/// The stores that keep nothing on disk.
const FORGETFUL: &[&str] = &["memory"];

/// Reads the word of a policy, or that of `defaults`.
pub(super) fn durable(node: &Node, defaults: Option<&Node>) -> Durable {
    let word = node.get("durable").or_else(|| defaults?.get("durable")).and_then(Node::text);
    if word == Some(STRICT) { Durable::Strict } else { Durable::Interval }
}

/// Refuses a word of a policy, or of `defaults`, that the configured store cannot keep.
///
/// `key` is how the message names it: `durable`, or `defaults.durable`.
pub(super) fn check(node: Option<&Node>, key: &str, file: &Node, findings: &mut Findings) {
    let kind = file.get("store").and_then(|store| store.get("kind")).and_then(Node::text);
    let kind = kind.unwrap_or(FORGETFUL[0]);
    let Some(said) = node.and_then(|node| node.get("durable")) else { return };
    if said.text() == Some(STRICT) && FORGETFUL.contains(&kind) {
        findings.error(
            said.spot,
            format_args!(
                "{key}: {STRICT} needs a store on disk, and `store.kind: {kind}` forgets everything when the process ends; \
                 write durable: interval, or leave it out"
            ),
        );
    }
}
