//! The limits to try, and the errors of trying them.

use std::time::Duration;

use tidegate::limiter::Rate;
use tidegate::policy::{
    Access, ChargeOn, CostErrors, Descriptor, Limit, Mode, OnCostError, Policy, PolicySet, PolicySetError,
};
use tidegate::{Cost, Quota, QuotaError};

use crate::log::{Record, Wanted};
use crate::replay::key_name;

/// A limit to try: `gcra` with this rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How fast capacity returns.
    pub rate: Rate,
    /// The largest cost granted at once, in cost units, 1 or more.
    pub burst: u64,
}

/// Enough for a curve, and a bound on the memory per key.
pub(crate) const MAX_CANDIDATES: usize = 1_024;

/// Why candidates cannot be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// More candidates than 1,024.
    #[error("{count} limits are too many to try at once; use at most {MAX_CANDIDATES}")]
    TooMany {
        /// The number of candidates.
        count: usize,
    },
    /// The rate or the burst is out of range.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A limit that takes about 292 years or more to refill: its levels would not be exact.
    #[error("a burst of {burst} at {count} per {period:?} takes too long to return; use a smaller burst")]
    TooSlow {
        /// The burst.
        burst: u64,
        /// The count of the rate.
        count: u64,
        /// The period of the rate.
        period: Duration,
    },
    /// The policy charges by the outcome of requests, or charges refused ones too.
    #[error(
        "policy \"{policy}\" has charge: on-failure or always; the effect of other limits on it needs a replay of its own"
    )]
    ChargesOtherwise {
        /// The name of the policy.
        policy: String,
    },
    /// The policy is invalid in a set.
    #[error(transparent)]
    Policy(#[from] PolicySetError),
}

/// Finds the key and the cost of a request under the policy whose limits are tried, as a gate does.
#[derive(Debug)]
pub(crate) struct Asking {
    set: PolicySet,
    wanted: Wanted,
    ipv6_prefix: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct RequestCharge {
    /// The bytes of the key, as in stores.
    pub(crate) key: Vec<u8>,
    pub(crate) cost: Cost,
}

impl Asking {
    pub(crate) fn new(policy: &Policy, ipv6_prefix: u8) -> Result<Self, WhatIfError> {
        if policy.charge != ChargeOn::Check {
            return Err(WhatIfError::ChargesOtherwise { policy: policy.name.clone() });
        }
        let mut policy = policy.clone();
        // A placeholder, so that a request has a key.
        policy.limits = vec![Limit::new(Quota::per_second(1).gcra()?, "tried")];
        policy.shadow_limit = None;
        policy.mode = Mode::Enforce;
        policy.share = None;
        policy.on_cost_error = OnCostError::Deny;
        let set = PolicySet::with(vec![policy], Access::default(), ipv6_prefix)?;
        Ok(Self { wanted: Wanted::by(vec![set.named()], false), set, ipv6_prefix })
    }

    pub(crate) fn describe<'r>(&self, record: &'r Record<'_>) -> Descriptor<'r> {
        record.describe_only(&self.wanted)
    }

    /// Finds the key and the cost of a request; `None` if the policy does not match it, a list decides, or its cost
    /// cannot be determined.
    pub(crate) fn find(&self, request: &Descriptor<'_>, cost: Option<Cost>) -> Option<RequestCharge> {
        if self.set.access(request).is_some() {
            return None;
        }
        let plan = self.set.plan(request, cost);
        let line = plan.lines.first().filter(|line| !line.cost_is_unknown())?;
        Some(RequestCharge { key: plan.keys[line.key.clone()].to_vec(), cost: line.cost })
    }

    /// Requests whose cost the policy could not determine.
    pub(crate) fn unknown_costs(&self) -> CostErrors {
        self.set.cost_errors(0)
    }

    pub(crate) fn name(&self, request: &Descriptor<'_>) -> String {
        key_name(&self.set.policies()[0], request, self.ipv6_prefix)
    }
}
