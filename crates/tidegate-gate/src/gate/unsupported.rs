//! Finds policies that the stores of a gate cannot decide as configured.

use super::Gate;
use crate::policy::{Limit, PolicySet};
use tidegate_limits::store::{Cell, Durable};

/// A requirement of a policy that its store cannot meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The state of a limit may exceed what the store can hold: some checks would fail with
    /// [`StoreError::CellTooLarge`](tidegate_limits::store::StoreError::CellTooLarge).
    #[error(
        "policy `{policy}`: the state of a key of `{limit}` may take {bytes} bytes, and its store takes {most} at most; choose an \
         algorithm with a smaller state, a lower limit, or `share: local`"
    )]
    TooLarge {
        /// The policy's name.
        policy: String,
        /// The short form of the limit.
        limit: String,
        /// The largest possible state of a key, in bytes.
        bytes: usize,
        /// The largest state that the store can hold, in bytes.
        most: usize,
    },
    /// No store decides the policy's `share` word: every check would fail with
    /// [`StoreError::NoStore`](tidegate_limits::store::StoreError::NoStore).
    #[error(
        "policy `{policy}`: no store here decides `share: {share}`; leave `share` out, or use a store that several nodes have in common"
    )]
    NoStore {
        /// The policy's name.
        policy: String,
        /// The word.
        share: &'static str,
    },
    /// The policy has `durable: strict`, but its store is not on disk.
    #[error(
        "policy `{policy}`: its store is not on disk, and cannot keep `durable: strict`; write `durable: interval`, or leave it out"
    )]
    NotDurable {
        /// The policy's name.
        policy: String,
    },
}

impl Gate {
    /// Returns the requirements of a set's policies that this gate's stores cannot meet, in the order of the policies.
    /// Call it before the set is put in force.
    #[must_use]
    pub fn unfit(&self, policies: &PolicySet) -> Vec<Unfit> {
        let mut unfit = Vec::new();
        for policy in policies.policies() {
            let name = || policy.name.clone();
            let Ok(store) = self.routes.of(policy.share) else {
                let share = policy.share.map_or("", |share| share.word());
                unfit.push(Unfit::NoStore { policy: name(), share });
                continue;
            };
            let caps = self.routes.store(store).caps();
            if policy.durable == Durable::Strict && !caps.later_if_strict {
                unfit.push(Unfit::NotDurable { policy: name() });
            }
            let Some(most) = caps.largest_cell else { continue };
            for terms in policy.limits.iter().chain(&policy.shadow_limit).flat_map(Limit::all_terms) {
                let bytes = terms.quota.as_ref().map_or(0, |quota| Cell::largest(quota));
                if bytes > most {
                    unfit.push(Unfit::TooLarge { policy: name(), limit: terms.label.clone(), bytes, most });
                }
            }
        }
        unfit
    }
}
