//! An admission that is finished by what its work told: each policy makes units of its own of it.

use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::Outcome;

use super::{Admission, Gate};
use crate::policy::{RealCost, Usage};
use crate::store::StoreError;

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Ends it by what the work told, as `llm.output`: each policy settles what it makes of that
    /// ([`Policy::real_cost`](crate::Policy::real_cost)), under the policies by which it was admitted, and those that learn their estimate
    /// learn it. What was charged stands where nothing was told that a policy goes by, or where that makes no cost; whether a name is one
    /// that policies go by says [`PolicySet::check_usage`](crate::PolicySet::check_usage).
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it; see [A store that fails](Admission#a-store-that-fails). Nothing was learnt then.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Entry;
    /// use tidegate::policy::{Limit, SettleBy, SettleRule, Usage};
    /// use tidegate::{Cost, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let requests = Policy::new("requests", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// let gate = Gate::in_memory(PolicySet::new(vec![requests, tokens])?, 1000).with_clock(ManualClock::default());
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new())? else { panic!("a full limit") };
    /// call.finish_by(Outcome::Success, &Usage::default().with("llm.output", 300))?;
    /// let left = |limit: usize| gate.peek(&Descriptor::new()).unwrap().limits[limit].decision.standing.remaining;
    /// assert_eq!([left(0), left(1)], [59, 700]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish_by(self, outcome: Outcome, usage: &Usage<'_>) -> Result<(), StoreError> {
        let policies = Arc::clone(&self.policies);
        let real = |name: &str| {
            let (at, policy) = policies.find(name)?;
            match policy.real_cost(usage) {
                RealCost::Units(units) => Some((at, units)),
                RealCost::AsCharged | RealCost::Unknown(_) => None,
            }
        };
        let used = |line: &super::ChargedLine<'_>| real(line.policy).map(|(_, units)| units);
        self.finish_and_tell(outcome, used, |finished| {
            // Limits of one policy stand together and learn once.
            for lines in finished.chunk_by(|one, next| one.policy == next.policy) {
                if let Some((at, units)) = lines.first().and_then(|line| real(line.policy)) {
                    policies.learn(at, units);
                }
            }
        })
    }
}
