//! A validated file as it was written, for who adds policies to it.

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{Node, Spot, Value};

/// A validated file as it was written: its tree, as large as the file. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<File>);

#[derive(Debug)]
struct File {
    name: String,
    tree: Node,
    /// Where each policy stands, by its name.
    places: HashMap<String, Spot>,
}

impl Default for File {
    fn default() -> Self {
        let tree = Node { spot: Spot::default(), value: Value::Map(Vec::new()) };
        Self { name: String::new(), tree, places: HashMap::new() }
    }
}

impl Written {
    pub(super) fn of(tree: Node, paths: &[String]) -> Self {
        let list = tree.get("policies").map_or(&[][..], Node::each);
        let places = list.iter().filter_map(|node| Some((node.get("name")?.text()?.to_owned(), node.spot)));
        let places = places.collect();
        Self(Arc::new(File { name: paths.first().cloned().unwrap_or_default(), tree, places }))
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
        let spot = self.0.places.get(policy)?;
        Some(format!("{}:{}:{}", self.0.name, spot.line, spot.column))
    }
}
