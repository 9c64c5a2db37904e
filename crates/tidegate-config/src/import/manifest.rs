//! Finds the configurations in a file: each of its documents, and what Kubernetes manifests hold.
//!
//! A configuration mostly lives in a cluster, so people have it as a ConfigMap with the text under `data`, as a
//! `kind: Limitador` with the limits under `spec.limits`, or as a list of such; programs write one document for each
//! domain.

use super::super::diagnostic::Findings;
use super::super::node::{Name, Node, Spot, Value};
use super::super::read;
use super::super::{budget, foreign_files};
use tidegate_limits::visible::excerpt;

/// Returns the configurations in a text, with their places in it. Reports manifests that hold none.
pub(super) fn configurations(is_limitador: bool, text: &str, findings: &mut Findings) -> Vec<Node> {
    let Some(documents) = read::read_documents(text, findings) else { return Vec::new() };
    if documents.is_empty() {
        findings.error(Spot { text: 0, line: 1, column: 1 }, "the file is empty");
    }
    let mut finder = Finder { is_limitador, text, findings, found: Vec::new(), room: budget::NODES };
    let mut skipped = Vec::new();
    for node in documents {
        finder.document(node, &mut skipped);
    }
    let Finder { findings, found, .. } = finder;
    for (spot, kind) in skipped {
        let what = format!("kind: {kind} holds no configuration of a rate limiter; it is left out");
        if found.is_empty() && !findings.refused() {
            findings.error(
                spot,
                format_args!(
                    "{what}, and there is nothing else; give a ConfigMap, a Limitador, or the text itself"
                ),
            );
        } else {
            findings.warn(spot, what);
        }
    }
    found
}

struct Finder<'f> {
    /// Whether limits of Limitador are looked for, and not configurations of envoyproxy/ratelimit.
    is_limitador: bool,
    text: &'f str,
    findings: &'f mut Findings,
    found: Vec<Node>,
    /// How many values the texts in manifests may still have.
    room: usize,
}

impl Finder<'_> {
    /// Adds what a document is or holds; a manifest that holds nothing goes to `skipped`.
    fn document(&mut self, node: Node, skipped: &mut Vec<(Spot, String)>) {
        let Some(kind) = foreign_files::kind(&node) else {
            self.found.push(node);
            return;
        };
        let found = self.found.len();
        match (kind, self.is_limitador) {
            ("ConfigMap", _) => {
                for (key, text) in node.get("data").map_or(&[][..], Node::entries) {
                    self.held(key, text);
                }
                if self.found.len() == found {
                    skipped.push((node.spot, excerpt(kind)));
                }
            }
            ("Limitador", true) => match node.get("spec").and_then(|spec| spec.get("limits")) {
                Some(limits) => self.found.push(limits.clone()),
                None => self.findings.error(node.spot, "kind: Limitador has no limits under spec.limits"),
            },
            ("Limitador", false) => {
                self.findings.error(node.spot, "this is a file of Limitador; read it with --from-limitador");
            }
            ("List", _) => {
                let spot = node.spot;
                let Value::Map(entries) = node.value else { return };
                let items = entries.into_iter().find(|(name, _)| name.text == "items");
                let items = items.map_or_else(Vec::new, |(_, items)| match items.value {
                    Value::List(items) => items,
                    _ => Vec::new(),
                });
                if items.is_empty() {
                    skipped.push((spot, excerpt("List")));
                }
                for item in items {
                    self.document(item, skipped);
                }
            }
            (kind, _) => skipped.push((node.spot, excerpt(kind))),
        }
    }

    /// Adds the documents of a text in a ConfigMap.
    fn held(&mut self, key: &Name, value: &Node) {
        if self.findings.beyond {
            return;
        }
        let Some(text) = value.text() else {
            self.findings.error(
                value.spot,
                format_args!("data.{} is a text, found {}", excerpt(&key.text), value.kind()),
            );
            return;
        };
        let block = Block::at(key.spot, self.text);
        let place = |spot: Spot| block.map_or(value.spot, |block| block.place(spot));
        let mut inner = Findings::default();
        let documents = read::read_documents(text, &mut inner);
        for one in inner.finish() {
            let spot = place(Spot { text: 0, line: one.line, column: one.column });
            self.findings.error(spot, format_args!("data.{}: {}", excerpt(&key.text), one.message));
        }
        for mut node in documents.unwrap_or_default() {
            if read::beyond(&node, budget::DEPTH, &mut self.room).is_some()
                || self.found.len() >= budget::DOCUMENTS
            {
                let (nodes, documents) = (budget::NODES, budget::DOCUMENTS);
                self.findings.beyond(
                    key.spot,
                    format_args!("the file has more than {nodes} values or {documents} texts"),
                );
                return;
            }
            node.move_to(&place);
            self.found.push(node);
        }
    }
}

/// A block of literal text (`|`) in the file, whose lines are lines of the file.
#[derive(Clone, Copy)]
struct Block {
    /// The line of the file above the text's first.
    above: usize,
    indent: usize,
}

impl Block {
    /// Returns the block that follows a key; `None` if the text is written otherwise.
    fn at(key: Spot, text: &str) -> Option<Self> {
        let mut lines = text.lines().skip(key.line.checked_sub(1)?);
        let head = lines.next()?.split(" #").next()?.trim_end();
        let head = head.trim_end_matches(|sign: char| sign.is_ascii_digit() || matches!(sign, '+' | '-'));
        if !head.ends_with('|') {
            return None;
        }
        let first = lines.find(|line| !line.trim().is_empty())?;
        Some(Self { above: key.line, indent: first.len() - first.trim_start_matches(' ').len() })
    }

    fn place(self, spot: Spot) -> Spot {
        Spot { line: spot.line.max(1) + self.above, column: spot.column.max(1) + self.indent, ..spot }
    }
}
