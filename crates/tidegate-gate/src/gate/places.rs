//! Returns the standing of the policies' limits on requests in flight, for metrics and for people.

use tidegate_core::{Quota, Standing, Tick};

use super::Gate;
use crate::policy::PolicySet;
use tidegate_limits::store::{Executed, Execution, Op, Step, StepClock};

/// The standing of one limit on requests in flight: how many may be in flight, and how many are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacesStanding {
    /// The index of the policy in the set.
    pub policy: usize,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The standing. The places in use are `limit` minus `remaining` plus `debt`.
    pub standing: Standing,
}

impl PlacesStanding {
    /// Returns the number of places in use.
    #[must_use]
    pub const fn in_use(&self) -> u64 {
        let Standing { limit, remaining, debt, .. } = self.standing;
        limit.saturating_sub(remaining).saturating_add(debt)
    }
}

impl Gate {
    /// Returns the standings of the concurrency and adaptive limits of every policy in force that has a single key for
    /// all requests. Leaves out policies whose `by` makes many keys, and those whose store would have to be awaited.
    /// Asks the store once per limit of such a policy.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let at_once = Quota::concurrency(50, Duration::from_secs(30))?;
    /// let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("reports", Limit::new(at_once, "50"))])?, 1000)?;
    /// let admission = gate.admit(&Descriptor::new()).now()?.admitted().expect("nobody is inside");
    /// let places = gate.places();
    /// assert_eq!((places[0].standing.limit, places[0].in_use()), (50, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn places(&self) -> Vec<PlacesStanding> {
        let (policies, now) = (self.policies(), self.now());
        let mut places = Vec::new();
        for (at, policy) in policies.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty())
        {
            if !policy.limits.iter().any(|limit| limit.terms.quota.as_deref().is_some_and(has_places)) {
                continue;
            }
            let Some(standings) = self.standings(&policies, at, now) else { continue };
            let counting = standings.into_iter().filter(|one| {
                let quota = policy.limits.get(one.limit).and_then(|limit| limit.terms.quota.as_deref());
                quota.is_some_and(has_places)
            });
            places.extend(counting);
        }
        places
    }

    /// Returns the standings of the limits of a policy without `by`; `None` if an engine would have to be awaited.
    pub(super) fn standings(
        &self,
        policies: &PolicySet,
        policy: usize,
        now: Tick,
    ) -> Option<Vec<PlacesStanding>> {
        let plan = policies.plan_of_one_key(policy);
        let mut standings = Vec::with_capacity(plan.lines.len());
        for line in &plan.lines {
            let store = self.routes.of(line.rules.share).ok()?;
            let charge = plan.charge(line);
            let tag = self.routes.tag(store, charge.key);
            let charges = std::slice::from_ref(&charge);
            let step =
                Step { receipts: false, tag, clock: StepClock::Engine, ..Step::new(now, Op::Peek, charges) };
            let mut executed = Executed::default();
            let Execution::Done(Ok(())) = self.routes.store(store).execute_into(&step, &mut executed) else {
                return None;
            };
            let standing = executed.lines.first()?.decision.standing;
            standings.push(PlacesStanding { policy, limit: line.limit, standing });
        }
        Some(standings)
    }
}

/// Reports whether a limit counts requests in flight.
const fn has_places(quota: &Quota) -> bool {
    matches!(quota, Quota::Concurrency(_) | Quota::Adaptive(_))
}
