//! Units that come back without the charge that they came from: somebody says that so many were not spent after all.
//!
//! Who has what was charged settles it ([`Gate::finish`]), once and exactly. A protocol that only says "minus three" cannot, so its caller is
//! believed: the units count as charged now, and undone at once. A limit is never fuller by that than full, and a limit that has not
//! as many in use gives back what it has.

use std::time::Duration;

use tidegate_core::{Algorithm as _, Ask, Cost, Finish, Quota, Receipt, Tick, Transition};

use super::waits::{Waits, now};
use super::{Check, Gate};
use crate::policy::Plan;
use crate::store::{Ending, Op, Step, StepClock, StoreError};

impl Gate {
    /// Gives back what a check of this cost charges now, to each limit that it meets; refuses nothing.
    ///
    /// At most what is in use comes back, and what somebody else has spent is as good as the caller's own: let only those ask for it who
    /// are trusted with the whole limit. A limit whose charges are kept apart, one by one (`sliding-log`), gives back the latest. Places and
    /// breakers are left alone; they go by their charges.
    ///
    /// One step of a store for each limit: where one fails, those before it have given back.
    ///
    /// # Errors
    /// As [`Gate::check`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::Limit;
    /// use tidegate::{Check, Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_hour(10).gcra()?, "10/h"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(Check::of(&request).cost(7))?.allowed);
    /// gate.give_back(Check::of(&request).cost(4))?;
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 7);
    /// gate.give_back(Check::of(&request).cost(1000))?;
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 10, "never fuller than full");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_back<'a, 'd: 'a>(&self, check: impl Into<Check<'a, 'd>>) -> Result<(), StoreError> {
        now(self.give_back_parts(&check.into(), Waits::No))
    }

    /// Gives back like [`Gate::give_back`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// If dropped before it ends, some limits may have given back and others not; an engine that is being asked gives back in the background.
    pub async fn give_back_async<'a, 'd: 'a>(
        &self,
        check: impl Into<Check<'a, 'd>>,
    ) -> Result<(), StoreError> {
        self.give_back_parts(&check.into(), Waits::Yes).await
    }

    async fn give_back_parts(&self, check: &Check<'_, '_>, waits: Waits) -> Result<(), StoreError> {
        if check.cost.is_wrong() {
            return Err(StoreError::NotACost);
        }
        let policies = self.undecided(check).keep_policies();
        if policies.refusal(check.request, check.among).is_some() {
            return Ok(());
        }
        let mut plan = Plan::default();
        check.plan_into(&policies, &mut plan);
        let at = self.time.now();
        for line in &plan.lines {
            let Some(receipt) = receipt(line.quota, line.cost, at) else { continue };
            let store = self.routes.of(line.share)?;
            let (charges, endings) = ([plan.charge(line)], [Ending::new(receipt, Finish::UNDONE)]);
            let tag = self.routes.tag(store, charges[0].key);
            let clock = StepClock::Engine;
            let step = Step { tag, clock, ..Step::new(at, Op::Finish(&endings), &charges) };
            self.ask(store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))?;
        }
        Ok(())
    }
}

/// Returns the receipt of a charge that is made now; of more than a full limit grants, that of a full limit. `None` for guards.
fn receipt(quota: &Quota, cost: Cost, at: Tick) -> Option<Receipt> {
    if quota.is_guard() {
        return None;
    }
    let fresh = quota.fresh(at);
    let most = Cost::new(quota.standing(&fresh, at).limit)?;
    match quota.decide(&fresh, Ask::within(at, cost.min(most), Duration::MAX)) {
        Transition::Allowed { receipt, .. } => Some(receipt),
        Transition::Denied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Limit, PolicySet};
    use crate::{Descriptor, ManualClock, Policy};

    #[test]
    fn probe() {
        let q: Vec<(&str, Quota)> = vec![
            ("gcra", Quota::per_hour(10).gcra().unwrap()),
            ("token", Quota::per_hour(10).token_bucket().unwrap()),
            ("fixed", Quota::per_hour(10).fixed_window().unwrap()),
            ("sliding_counter", Quota::per_hour(10).sliding_counter().unwrap()),
            ("sliding_log", Quota::per_hour(10).sliding_log().unwrap()),
        ];
        for (name, quota) in q {
            let clock = ManualClock::at(Tick::from_secs(1_800_014_400));
            let all = Policy::new("all", Limit::new(quota, "10/h"));
            let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 1000).unwrap().with_clock(clock.clone());
            let request = Descriptor::new();
            let left = || gate.peek(&request).unwrap().limits[0].decision.standing.remaining;
            for cost in [2, 3, 2] {
                assert!(gate.check(Check::of(&request).cost(cost)).unwrap().allowed);
                clock.advance(Duration::from_secs(1));
            }
            let mut seen = vec![left()];
            for cost in [4, 1, 100] {
                gate.give_back(Check::of(&request).cost(cost)).unwrap();
                seen.push(left());
                clock.advance(Duration::from_secs(1));
            }
            eprintln!("{name}: {seen:?}");
        }
    }
}
