//! Shows keys to people, as digests unless asked otherwise.
//!
//! A key contains addresses and account names, and answers end up in tickets and screenshots. So a key is shown as a
//! digest under a secret of the process. The same key has the same digest until the restart, and nobody can find an
//! address by trying. `?reveal=true` shows the key to any caller that may use the route.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use tidegate::policy::{Descriptor, Policy, PolicySet};

use tidegate::explain::key_text;

/// Replaces values by digests, consistently.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redact {
    hasher: RandomState,
}

impl Redact {
    /// Returns a text in full, or its digest.
    pub(crate) fn text(&self, text: &str, reveal: bool) -> String {
        if reveal || text == "(all)" {
            return text.to_owned();
        }
        format!("#{:016x}", self.hasher.hash_one(text))
    }

    /// Returns the key of a request under a policy of this set; if hidden, the same digest as in the list of top keys.
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
