//! The figures of one run, written as one line of JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::pair::Pair;

/// Named numbers, in nanoseconds unless the name gives another unit. Figures named `pair` are millions of checks per
/// second.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    found: BTreeMap<String, f64>,
    unclean: Vec<String>,
}

impl Figures {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.found.insert(name.into(), value);
    }

    /// Records the figures of two threads, and whether each had its core to itself.
    pub(crate) fn set_pair(&mut self, name: impl Into<String>, pair: &Pair) {
        let name = name.into();
        if !pair.clean {
            self.unclean.push(name.clone());
        }
        self.set(name, pair.mops);
    }

    /// Adds all figures of `part`, with `prefix` before their names.
    pub(crate) fn take(&mut self, prefix: &str, part: Self) {
        self.found.extend(part.found.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
        self.unclean.extend(part.unclean.into_iter().map(|name| format!("{prefix}{name}")));
    }

    pub(crate) fn line(&self, workload: &str, contender: &str) -> Value {
        json!({"workload": workload, "contender": contender, "figures": self.found, "unclean": self.unclean})
    }
}
