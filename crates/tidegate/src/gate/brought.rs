//! The quota that a check brings in place of the limits' own, and where it holds.

use std::sync::Arc;

use tidegate_core::Quota;

use super::{GateDecision, LimitDecision};
use crate::policy::Descriptor;

/// Says whether a quota that a caller brings holds in place of a limit's own. A guard is replaced by a guard of its kind only: a cell that goes
/// from places to units, or to a breaker, and back forgets the places that are taken, and that a breaker was open.
pub(super) fn holds_in_place_of(brought: &Quota, own: &Quota) -> bool {
    match (brought.is_guard(), own.is_guard()) {
        (false, false) => true,
        (true, true) => std::mem::discriminant(brought) == std::mem::discriminant(own),
        _ => false,
    }
}

impl GateDecision {
    /// Returns the quota that held for a limit of the request that was decided, and whether the check brought it; `None` where nothing limits
    /// it. Looks a tier or an override up again where the policy has some; else costs nothing.
    #[must_use]
    pub fn quota_of(&self, limit: &LimitDecision, request: &Descriptor<'_>) -> Option<(&Arc<Quota>, bool)> {
        let own = self.policies.quota_in_force(limit.policy, limit.limit, request)?;
        let brought = self.brought.as_ref().filter(|brought| holds_in_place_of(brought, own));
        Some(brought.map_or((own, false), |brought| (brought, true)))
    }
}
