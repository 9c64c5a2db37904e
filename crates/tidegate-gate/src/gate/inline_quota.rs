//! Decides where a quota that a check brings applies in place of the limits' own.

use std::sync::Arc;

use tidegate_core::Quota;

use super::{GateDecision, LimitDecision};
use crate::policy::Descriptor;

/// Reports whether a quota that a caller brings applies in place of a limit's own. A guard can only be replaced by a
/// guard of the same kind: a cell that changed from places to units or to a breaker and back would forget the taken
/// places, or that a breaker was open.
pub(super) fn replaces(brought: &Quota, own: &Quota) -> bool {
    match (brought.is_guard(), own.is_guard()) {
        (false, false) => true,
        (true, true) => std::mem::discriminant(brought) == std::mem::discriminant(own),
        _ => false,
    }
}

impl GateDecision {
    /// Returns the quota that applied to a limit for the decided request, and whether the check brought it; `None`:
    /// unlimited. If the policy has tiers or overrides, they are looked up again; otherwise the call costs nothing.
    #[must_use]
    pub fn quota_of(&self, limit: &LimitDecision, request: &Descriptor<'_>) -> Option<(&Arc<Quota>, bool)> {
        let own = self.policies.quota_in_force(limit.policy, limit.limit, request)?;
        let brought = self.brought.as_ref().filter(|brought| replaces(brought, own));
        Some(brought.map_or((own, false), |brought| (brought, true)))
    }
}
