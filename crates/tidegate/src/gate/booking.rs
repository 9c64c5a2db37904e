//! Books units that were spent elsewhere: they count here too, whether there is room or not.
//!
//! A protocol that reports afterwards what it let pass cannot be refused. So its units are booked the way a settlement
//! books what was spent beyond a charge: they use up the available room, and the rest is a debt that returning capacity
//! pays first.

use smallvec::SmallVec;
use tidegate_core::{Algorithm as _, Ask, Cost, Finish, Outcome, Quota, Receipt, Tick, Transition};

use super::waits::{Waits, run_without_waiting};
use super::{Check, Gate};
use crate::policy::Plan;
use crate::store::{Charge, Ending, Op, Step, StepClock, StoreError};

impl Gate {
    /// Books what a check of this cost would charge in each limit that it meets, even beyond what the limit has left;
    /// refuses nothing.
    ///
    /// Shadow limits are booked too. Concurrency limits, adaptive limits and breakers are not, since they depend on
    /// calls that enter and leave. If a deny-list, a deadline or a block refuses the request, nothing is booked.
    ///
    /// Takes one step per store and tag. If a step fails, the steps before it have booked.
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
    /// gate.book(Check::of(&request).cost(7))?;
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 3);
    /// gate.book(Check::of(&request).cost(7))?;
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.debt, 4, "it has happened");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn book<'a, 'd: 'a>(&self, check: impl Into<Check<'a, 'd>>) -> Result<(), StoreError> {
        self.book_many(check, 1)
    }

    /// Books like [`Gate::book`] for `requests` requests like this one, each with its cost under each policy. Zero
    /// requests book nothing; more units than the number type holds count as its largest number.
    ///
    /// # Errors
    /// As [`Gate::check`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{CostRule, Limit};
    /// use tidegate::{Cost, Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let mut dear = Policy::new("dear", Limit::new(Quota::per_hour(100).gcra()?, "100/h"));
    /// dear.cost = Some(CostRule::Fixed(Cost::new(5).expect("five units")));
    /// let gate = Gate::in_memory(PolicySet::new(vec![dear])?, 1000)?;
    /// let request = Descriptor::new();
    /// gate.book_many(&request, 3)?;
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 85);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn book_many<'a, 'd: 'a>(
        &self,
        check: impl Into<Check<'a, 'd>>,
        requests: u64,
    ) -> Result<(), StoreError> {
        run_without_waiting(self.book_parts(&check.into(), requests, Waits::No))
    }

    /// Books like [`Gate::book`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// If dropped before completion, some limits may have booked and others not; an engine that is being asked books in
    /// the background.
    pub async fn book_async<'a, 'd: 'a>(&self, check: impl Into<Check<'a, 'd>>) -> Result<(), StoreError> {
        self.book_many_async(check, 1).await
    }

    /// Books like [`Gate::book_many`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// As [`Gate::book_async`].
    pub async fn book_many_async<'a, 'd: 'a>(
        &self,
        check: impl Into<Check<'a, 'd>>,
        requests: u64,
    ) -> Result<(), StoreError> {
        self.book_parts(&check.into(), requests, Waits::Yes).await
    }

    async fn book_parts(&self, check: &Check<'_, '_>, requests: u64, waits: Waits) -> Result<(), StoreError> {
        if check.cost.is_wrong() {
            return Err(StoreError::NotACost);
        }
        if requests == 0 {
            return Ok(());
        }
        let policies = self.undecided(check).keep_policies();
        if policies.refusal(check.request, check.priority, check.among).is_some() {
            return Ok(());
        }
        let mut plan = Plan::default();
        check.plan_into(&policies, &mut plan);
        let at = self.time.now();
        let mut lines: SmallVec<[(usize, u64, usize, Ending); 4]> = SmallVec::new();
        for (place, line) in plan.lines.iter().enumerate().filter(|(_, line)| !line.quota.is_guard()) {
            let Some(receipt) = one_unit(line.quota, at) else { continue };
            let store = self.routes.of(line.share)?;
            let tag = self.routes.tag(store, &plan.keys[line.key.clone()]);
            // The receipt stands for one charged unit, and the ending reports that unit plus the booked units as used;
            // so exactly those are booked.
            let used = line.cost.units().saturating_mul(requests).saturating_add(1);
            let finish = Finish { used, outcome: Outcome::Success };
            lines.push((store, tag, place, Ending::new(receipt, finish)));
        }
        lines.sort_by_key(|(store, tag, place, _)| (*store, *tag, *place));
        for part in lines.chunk_by(|one, next| (one.0, one.1) == (next.0, next.1)) {
            let charges: SmallVec<[Charge<'_>; 4]> =
                part.iter().map(|(_, _, place, _)| plan.charge(&plan.lines[*place])).collect();
            let endings: SmallVec<[Ending; 4]> = part.iter().map(|(_, _, _, ending)| *ending).collect();
            let (store, tag, ..) = part[0];
            let step =
                Step { tag, clock: StepClock::Engine, ..Step::new(at, Op::Finish(&endings), &charges) };
            self.ask(store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))?;
        }
        Ok(())
    }
}

/// Returns the receipt of one unit that a full limit grants at a tick.
fn one_unit(quota: &Quota, at: Tick) -> Option<Receipt> {
    match quota.decide(&quota.fresh(at), Ask::within(at, Cost::ONE, std::time::Duration::MAX)) {
        Transition::Allowed { receipt, .. } => Some(receipt),
        Transition::Denied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Limit, PolicySet};
    use crate::{Descriptor, ManualClock, Policy};

    proptest! {
        /// The model is a single number: the units in use, which may exceed the limit.
        #[test]
        fn what_is_booked_counts_whether_it_fits_or_not(
            steps in proptest::collection::vec((any::<bool>(), 1..9_u64), 1..12),
        ) {
            let ten = || Quota::per_hour(10);
            for quota in [
                ten().gcra(), ten().token_bucket(), ten().interval_bucket(), ten().leaky_bucket(), ten().fixed_window(),
                ten().sliding_window(6), ten().sliding_counter(), ten().sliding_log(),
            ] {
                let quota = quota.unwrap();
                let clock = ManualClock::at(Tick::from_secs(1_800_014_400));
                let all = Policy::new("all", Limit::new(quota.clone(), "10/h"));
                let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 1000).unwrap().with_clock(clock.clone());
                let mut used = 0;
                for (books, units) in &steps {
                    let request = Descriptor::new();
                    let check = Check::of(&request).cost(*units);
                    if *books {
                        gate.book(check).unwrap();
                        used += units;
                    } else if gate.check(check).unwrap().allowed {
                        used += units;
                    }
                    let standing = gate.peek(&request).unwrap().limits[0].decision.standing;
                    prop_assert_eq!(standing.remaining, u64::saturating_sub(10, used), "{:?}", quota);
                    prop_assert_eq!(standing.debt, used.saturating_sub(10), "{:?}", quota);
                    // Shorter than any unit takes to return.
                    clock.advance(Duration::from_millis(1));
                }
            }
        }
    }

    #[test]
    fn any_number_is_booked() {
        let all = Policy::new("all", Limit::new(Quota::per_second(10).gcra().unwrap(), "10/s"));
        let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 1000).unwrap();
        let request = Descriptor::new();
        for _ in 0..3 {
            gate.book(Check::of(&request).cost(u64::MAX)).unwrap();
        }
        assert!(!gate.check(&request).unwrap().allowed);
        assert!(gate.book(Check::of(&request).cost(0)).is_err());
    }
}
