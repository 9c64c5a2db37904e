//! Access to the words of a limit, and the facts about its policy that a limit needs.

use std::time::Duration;

use tidegate_core::QuotaError;

use super::node::Node;
use tidegate_gate::policy::{WrittenRate, span, whole_number};
use tidegate_limits::visible::excerpt;

/// The facts about a policy that its limits need.
#[derive(Clone, Copy)]
pub(super) struct PolicyFacts<'a> {
    /// The names of the policy's key.
    pub(super) by: &'a [String],
    /// The largest cost that one request is known to have.
    pub(super) cost: Option<u64>,
}

/// The words of a limit, with those of a base limit as defaults.
pub(super) struct Words<'n> {
    pub(super) node: &'n Node,
    pub(super) base: Option<&'n Node>,
}

impl<'n> Words<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.node.get(key).or_else(|| self.base?.get(key))
    }

    pub(super) fn text(&self, key: &str) -> Option<&'n str> {
        self.get(key)?.text()
    }

    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        whole_number(self.text(key)?).ok()
    }

    pub(super) fn span(&self, key: &str) -> Option<Duration> {
        span(self.text(key)?).ok()
    }

    /// Words an error of the core crate about the value of a key as the file writes both.
    pub(super) fn error_text(&self, key: &str, error: &QuotaError) -> String {
        match (error, self.text(key)) {
            (QuotaError::Parameter { want, .. }, Some(written)) => {
                format!("{key} {} {want}", excerpt(written.trim()))
            }
            _ => error.to_string(),
        }
    }

    pub(super) fn rate(&self, key: &str) -> Option<WrittenRate> {
        self.text(key)?.parse().ok()
    }
}
