//! A validated file as it was written, for who adds policies to it.

use std::sync::Arc;

use super::node::{Node, Spot, Value};

/// A validated file as it was written: its tree, as large as the file. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<File>);

#[derive(Debug)]
struct File {
    name: String,
    tree: Node,
}

impl Default for File {
    fn default() -> Self {
        Self { name: String::new(), tree: Node { spot: Spot::default(), value: Value::Map(Vec::new()) } }
    }
}

impl Written {
    pub(super) fn of(tree: Node, paths: &[String]) -> Self {
        Self(Arc::new(File { name: paths.first().cloned().unwrap_or_default(), tree }))
    }

    pub(super) fn tree(&self) -> &Node {
        &self.0.tree
    }

    /// Returns the name of the file, as diagnostics have it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns where a policy stands in the file: `tidegate.yaml:12:5`; `None` where the file has none of this name.
    #[must_use]
    pub fn place(&self, policy: &str) -> Option<String> {
        let list = self.0.tree.get("policies").map_or(&[][..], Node::each);
        let found = list.iter().find(|node| node.get("name").and_then(Node::text) == Some(policy))?;
        Some(format!("{}:{}:{}", self.0.name, found.spot.line, found.spot.column))
    }
}
