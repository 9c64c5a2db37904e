//! Keys for people, with the values hidden unless asked for.
//!
//! A key holds addresses and account names, and answers end up in tickets and screenshots. So values are shown as a digest
//! under a secret of the process: the same key has the same digest until the restart, and nobody can try addresses against
//! it. `?reveal=true` shows the values to whoever may use the server at all.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tidegate::policy::{Descriptor, Policy};

/// Hides values, always in the same way.
#[derive(Debug, Default)]
pub(crate) struct Redact {
    hasher: RandomState,
}

impl Redact {
    /// Returns a text, or its digest.
    pub(crate) fn text(&self, text: &str, reveal: bool) -> String {
        if reveal || text == "(all)" {
            return text.to_owned();
        }
        format!("#{:016x}", self.hasher.hash_one(text))
    }

    /// Returns the key of a request under a policy: names as they are, values as a digest each.
    pub(crate) fn key(&self, policy: &Policy, request: &Descriptor<'_>, reveal: bool) -> String {
        let parts = policy.key_values(request).map(|(name, value)| match value {
            Some(value) => format!("{name}={}", self.text(value, reveal)),
            None => format!("{name} absent"),
        });
        let key = parts.collect::<Vec<_>>().join(", ");
        if key.is_empty() { "(all)".to_owned() } else { key }
    }
}
