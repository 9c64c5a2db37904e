//! Keys for people, hidden unless asked for.
//!
//! A key holds addresses and account names, and answers end up in tickets and screenshots. So a key is shown as a digest
//! under a secret of the process: the same key has the same digest until the restart, and nobody can try addresses against
//! it. `?reveal=true` shows it to whoever may use the server at all.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tidegate::policy::{Descriptor, Policy, PolicySet};

use tidegate::explain::key_text;

/// Hides values, always in the same way.
#[derive(Clone, Debug, Default)]
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

    /// Returns the key of a request under a policy of this set; hidden, it is the digest that the list of top keys shows.
    pub(crate) fn key(
        &self,
        set: &PolicySet,
        policy: &Policy,
        request: &Descriptor<'_>,
        reveal: bool,
    ) -> String {
        self.text(&key_text(set, policy, request), reveal)
    }
}
