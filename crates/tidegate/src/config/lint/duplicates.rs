//! Finds policies for the same requests and the same keys that should be one policy: they do the same, or each has a law
//! that moves its limit, and the laws would react to each other.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::law_conflicts::{self, Laws};
use crate::config::diagnostic::Findings;
use crate::config::node::Spot;
use crate::config::policies::BuiltPolicy;
use crate::policy::Policy;
use crate::visible::excerpt;

/// How many earlier policies with the same match and key a policy is compared with.
const LOOKED_AT: usize = 16;

/// The policies that were compared so far, by their match and key.
#[derive(Default)]
pub(super) struct Alike {
    /// The indices of policies by the hash of match and key. Comparing all pairs of a long file would take too long.
    likely: HashMap<u64, Vec<usize>>,
    laws: Laws,
    /// The subject of each policy.
    subjects: Vec<String>,
    found: Vec<DuplicatePolicy>,
}

/// A policy that should be one with an earlier policy.
struct DuplicatePolicy {
    spot: Spot,
    subject: String,
    /// The subject of the earlier policy.
    other: String,
    message: String,
}

impl Alike {
    /// Compares a policy with the `earlier` ones, and remembers it as the next of them.
    pub(super) fn add(&mut self, earlier: &[BuiltPolicy<'_>], built: &BuiltPolicy<'_>, subject: &str) {
        let (policy, spot) = (&built.policy, built.node.spot);
        let mut hasher = DefaultHasher::new();
        (&policy.matching, &policy.by).hash(&mut hasher);
        let likely = self.likely.entry(hasher.finish()).or_default();
        let twin =
            likely.iter().take(LOOKED_AT).copied().find(|at| {
                earlier[*at].policy.name != policy.name && are_twins(&earlier[*at].policy, policy)
            });
        let rival = self.laws.add(earlier, policy);
        let found = match twin {
            Some(twin) => {
                let name = excerpt(&earlier[twin].policy.name);
                let what = "charges the same requests under the same limits as";
                Some((twin, format!("{what} \"{name}\"; one is enough")))
            }
            None => rival.map(|rival| (rival.at, rival.message)),
        };
        if let Some((other, message)) = found {
            let (subject, other) = (subject.to_owned(), self.subjects[other].clone());
            self.found.push(DuplicatePolicy { spot, subject, other, message });
        }
        if law_conflicts::adaptive_limits(policy) > 1 {
            let message =
                "has several adaptive limits; each law would react to the others' refusals, so keep one"
                    .to_owned();
            self.found.push(DuplicatePolicy {
                spot,
                subject: subject.to_owned(),
                other: subject.to_owned(),
                message,
            });
        }
        likely.push(earlier.len());
        self.subjects.push(subject.to_owned());
    }

    /// Warns of what was found. Called last: a policy with a mistake may only look like another one, since what is mistaken
    /// is left out.
    pub(super) fn tell(self, findings: &mut Findings) {
        for DuplicatePolicy { spot, subject, other, message } in self.found {
            if !findings.errs(&subject) && !findings.errs(&other) {
                findings.subject = subject;
                findings.warn(spot, message);
            }
        }
    }
}

/// Returns whether two policies without costs differ in nothing but their names.
fn are_twins(a: &Policy, b: &Policy) -> bool {
    // All fields are named, so that a new one cannot be forgotten here.
    let Policy {
        name: _,
        matching,
        direction,
        when,
        by,
        absent,
        limits,
        shadow_limit,
        cost,
        caller_cost: _,
        settle,
        charge,
        mode,
        deny,
        shed,
        access,
        near_limit,
        // Both have no cost.
        on_cost_error: _,
        on_store_error,
        durable,
        share,
        deadline,
        over,
    } = a;
    (cost.is_none() && b.cost.is_none() && settle.is_none() && b.settle.is_none())
        && (matching, direction, when, by, absent) == (&b.matching, &b.direction, &b.when, &b.by, &b.absent)
        && (limits, shadow_limit, charge, mode) == (&b.limits, &b.shadow_limit, &b.charge, &b.mode)
        && (deny, shed, access, deadline, over) == (&b.deny, &b.shed, &b.access, &b.deadline, &b.over)
        && (near_limit, on_store_error) == (&b.near_limit, &b.on_store_error)
        && (durable, share) == (&b.durable, &b.share)
}
