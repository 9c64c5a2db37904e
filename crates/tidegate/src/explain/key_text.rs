//! The key of a request as people read it.

use crate::policy::{Descriptor, Policy};

/// Returns the key of a request under a policy, for people: `client.ip=203.0.113.9`, or `(all)`.
#[must_use]
pub fn key_text(policy: &Policy, request: &Descriptor<'_>) -> String {
    let pairs = policy.key_values(request).map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name} absent"),
    });
    let text = pairs.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "(all)".to_owned() } else { text }
}
