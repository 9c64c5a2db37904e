//! Policies whose limits do not fit the store that decides them.

use super::Gate;
use crate::policy::{Limit, PolicySet};
use crate::store::Cell;

/// A limit whose state may grow larger than its store takes: some checks of it would be refused with
/// [`crate::store::StoreError::CellTooLarge`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy `{policy}`: the state of a key of `{limit}` may take {bytes} bytes, and its store takes {most} at most; choose an algorithm \
     with a smaller state, a lower limit, or `share: local`"
)]
#[non_exhaustive]
pub struct Unfit {
    /// The policy's name.
    pub policy: String,
    /// The limit, in the words of the file.
    pub limit: String,
    /// The most that a key may take, in bytes.
    pub bytes: usize,
    /// What the store takes.
    pub most: usize,
}

impl Gate {
    /// Returns the limits of a policy set that do not fit this gate's stores, in the order of the policies: to be asked before the set is
    /// put in force. Policies whose `share:` word has no store are left out; every check of them fails.
    #[must_use]
    pub fn unfit(&self, policies: &PolicySet) -> Vec<Unfit> {
        let mut unfit = Vec::new();
        for policy in policies.policies() {
            let Ok(store) = self.routes.of(policy.share) else { continue };
            let Some(most) = self.routes.store(store).caps().largest_cell else { continue };
            for terms in policy.limits.iter().chain(&policy.shadow_limit).flat_map(Limit::all_terms) {
                let bytes = terms.quota.as_ref().map_or(0, |quota| Cell::largest(quota));
                if bytes > most {
                    let (policy, limit) = (policy.name.clone(), terms.label.clone());
                    unfit.push(Unfit { policy, limit, bytes, most });
                }
            }
        }
        unfit
    }
}
