//! Shows keys to people, as digests unless asked otherwise.
//!
//! A key contains addresses and account names, and answers end up in tickets and screenshots. So a key is shown as a
//! digest under a secret that follows from the ticket key: nobody can find an address by trying, and all nodes with the
//! same ticket key show the same digest, before and after a restart. `?reveal=true` shows the key to any caller that may
//! use the route.

use sha2::{Digest as _, Sha256};

use tidegate::policy::{Descriptor, Policy, PolicySet};

use tidegate::explain::key_text;

/// Replaces values by digests, consistently.
#[derive(Clone)]
pub(crate) struct Redact {
    secret: [u8; 32],
}

impl std::fmt::Debug for Redact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redact")
    }
}

impl Redact {
    /// Makes digests under a secret.
    pub(crate) const fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    /// Returns a text in full, or its digest.
    pub(crate) fn text(&self, text: &str, reveal: bool) -> String {
        if reveal || text == "(all)" {
            return text.to_owned();
        }
        let digest = Sha256::new().chain_update(self.secret).chain_update(text).finalize();
        let short = digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        format!("#{short:016x}")
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
