//! The answer to one request, and each limit's part in it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Priority, Quota, Retry, Tick};

use crate::policy::{Descriptor, PolicySet, Refusal};
use tidegate_limits::store::{DecidedBy, StoreError};

/// One limit's part in a [`GateDecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// Index of the policy in [`GateDecision::policies`].
    pub policy: usize,
    /// Index of the limit within the policy: its own limits, then its shadow limit, then that of its canary
    /// ([`Policy::is_canary`](crate::Policy::is_canary)), which stands in the place of the first.
    pub limit: usize,
    /// Whether a refusal by this limit refuses the request: `false` for shadow limits and in shadow mode.
    pub binding: bool,
    /// Whether the policy charges failures only: a later report of the outcome decides whether the charge stays.
    pub on_failure: bool,
    /// Whether the limit may delay the request.
    pub delays: bool,
    /// The units or places asked of this limit.
    pub cost: Cost,
    /// The units or places that the limit keeps back from this request, for others of higher priority.
    pub kept_back: u64,
    /// What this limit decided by itself, and its standing afterwards.
    pub decision: Decision,
}

impl LimitDecision {
    /// Returns how much a request of this priority may still take at once: what remains, minus what is kept back from
    /// it. For a limit that may delay requests, nothing is subtracted, because the units kept back may be ones that a
    /// request waits for. While a fallback store decides in place of an engine for one of several nodes, the number may
    /// be less than what this node could take.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> u64 {
        let remaining = self.decision.standing.remaining;
        if self.delays { remaining } else { remaining.saturating_sub(self.kept_back) }
    }

    /// Reports whether the policy could not determine what the request costs, and refuses it for that
    /// ([`OnCostError::Deny`](crate::policy::OnCostError::Deny)). No request costs this much otherwise.
    #[must_use]
    pub fn cost_is_unknown(&self) -> bool {
        self.cost == crate::policy::UNKNOWN_COST
    }
}

/// The answer to one request.
#[derive(Clone, Debug)]
#[must_use = "a decision has no effect unless the caller follows it"]
pub struct GateDecision {
    /// Whether the request may pass, now or after [`GateDecision::wait`].
    pub allowed: bool,
    /// How long to delay the request; only queues delay.
    pub wait: Duration,
    /// Every limit that matched and was checked, in the order of the policies. If one store refuses, later stores are
    /// not asked.
    pub limits: SmallVec<[LimitDecision; 4]>,
    /// Index into `limits` of the limit that binds: after a denial, the one whose refusal lasts longest; otherwise the
    /// one with least remaining. `None` if no limit that can refuse was checked, or if only another check of the same
    /// call refuses.
    pub binding: Option<usize>,
    /// The refusal by a deny-list, a deadline or a block; in that case no limit was checked.
    pub refusal: Option<Box<Refusal>>,
    /// What policies with [`ChargeOn::Always`](crate::policy::ChargeOn::Always) were charged although a limit refused;
    /// `None` if there was nothing of the kind to charge.
    pub anyway: Option<Box<ChargedAnyway>>,
    /// The priority that the request was decided for: the check's own, or the one that demoting policies lowered it to
    /// ([`GateDecision::over`]).
    pub priority: Priority,
    /// The quota that the check brought, which applied in place of the limits' own; see
    /// [`Check::quota`](field@super::Check::quota).
    pub brought: Option<Arc<Quota>>,
    /// The tick of the decision, by the clock that decided.
    pub at: Tick,
    /// Who decided. If several stores decided, the one furthest from the caller is named; if one of them was a
    /// fallback, the fallback.
    pub by: DecidedBy,
    /// The policies that applied.
    pub policies: InForce,
}

/// What policies with [`ChargeOn::Always`](crate::policy::ChargeOn::Always) were charged although a limit refused.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChargedAnyway {
    /// The limits that were charged: the index of the policy in [`GateDecision::policies`], the index of the limit within
    /// the policy, and the units.
    pub lines: Vec<(usize, usize, Cost)>,
    /// The error of a store that did not charge its limits; those are not in `lines`.
    pub error: Option<StoreError>,
}

/// The policies in force at one moment; dereferences to an `Arc<PolicySet>`.
///
/// A check holds the set by a lease rather than a reference count, since all threads would write to that count. A clone
/// holds a reference count. Leases are meant for the duration of a request: to keep the policies longer, clone the
/// `Arc`.
#[derive(Debug)]
pub struct InForce(pub(super) Guard<Arc<PolicySet>>);

impl Deref for InForce {
    type Target = Arc<PolicySet>;

    fn deref(&self) -> &Arc<PolicySet> {
        &self.0
    }
}

impl Clone for InForce {
    fn clone(&self) -> Self {
        Self(Guard::from_inner(Arc::clone(&self.0)))
    }
}

impl GateDecision {
    /// Replaces the lease on the policies by a reference count and returns the policies; for decisions that are
    /// awaited. A thread has eight cheap leases, which are left to checks that are not awaited.
    pub(super) fn keep_policies(&mut self) -> InForce {
        let kept = self.policies.clone();
        self.policies = kept.clone();
        kept
    }

    /// Returns the index of the policy that binds, or that refused before any limit was checked; `None` if no limit
    /// binds, and if a deny-list or a block for all policies refuses.
    #[must_use]
    pub fn policy(&self) -> Option<usize> {
        match &self.refusal {
            Some(refusal) => refusal.policy,
            None => self.binding.map(|at| self.limits[at].policy),
        }
    }

    /// Returns the name of the policy at [`GateDecision::policy`]; `None` as there.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.policy().map(|at| self.policies.policies()[at].name.as_str())
    }

    /// Returns when the same request is worth repeating: a zero wait if it was allowed, the end of a block, never after a
    /// deny-list or a deadline, unknown if only another check of the same call refuses.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.binding {
            _ if self.allowed => Retry::After(Duration::ZERO),
            Some(binding) => self.limits[binding].decision.retry(),
            // A deny-list refuses, and waiting does not change that.
            None if let Some(refusal) = &self.refusal => match &refusal.block {
                Some(block) => Retry::After(block.until.since(self.at)),
                None => Retry::Never,
            },
            // Not all limits were checked, because another check of the same call refuses.
            None => Retry::Unknown,
        }
    }

    /// Returns the quota that applied to a limit for the decided request, and whether the check brought it; `None`:
    /// unlimited. If the policy has tiers or overrides, they are looked up again; otherwise the call costs nothing.
    #[must_use]
    pub fn quota_of(&self, limit: &LimitDecision, request: &Descriptor<'_>) -> Option<(&Arc<Quota>, bool)> {
        let own = self.policies.quota_in_force(limit.policy, limit.limit, request)?;
        let brought = self.brought.as_ref().filter(|brought| replaces(brought, own));
        Some(brought.map_or((own, false), |brought| (brought, true)))
    }

    /// Returns the limits that refuse, without shadow limits.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitDecision> {
        self.limits.iter().filter(|limit| limit.binding && !limit.decision.is_allowed())
    }
}

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
