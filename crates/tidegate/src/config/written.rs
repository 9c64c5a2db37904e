//! Keeps a validated file as it was written, as the base for added policies.

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{Node, Spot, Value};

/// A validated file as it was written: its tree, which is as large as the file. Clones share the tree.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<File>);

#[derive(Debug)]
struct File {
    name: String,
    tree: Node,
    /// The place of each policy, by its name.
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

    /// Returns the name of the file, as diagnostics print it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the place of a policy in the file, such as `tidegate.yaml:12:5`; `None` if the file has no policy of
    /// this name.
    #[must_use]
    pub fn place(&self, policy: &str) -> Option<String> {
        let spot = self.0.places.get(policy)?;
        Some(format!("{}:{}:{}", self.0.name, spot.line, spot.column))
    }
}
