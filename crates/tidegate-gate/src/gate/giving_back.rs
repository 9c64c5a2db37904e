//! Gives back units without the charge that they came from: a caller reports that a number of units was not spent after
//! all.
//!
//! A caller that holds the charge settles it exactly and once ([`Gate::finish`]). A protocol that only says "minus
//! three" cannot do that, so its caller is trusted: the units count as charged now and undone at once. This never makes
//! a limit more than full, and a limit with fewer units in use gives back only those.

use std::time::Duration;

use tidegate_core::{Algorithm as _, Ask, Cost, Finish, Quota, Receipt, Tick, Transition};

use super::waits::Waits;
use super::{Check, Gate};
use crate::policy::{Line, Plan};
use tidegate_limits::store::{Charge, Ending, Op, Step, StepClock, StoreError};

impl Gate {
    /// Gives back for a caller that waits for engines, or cannot.
    pub(super) async fn give_back_parts(
        &self,
        check: &Check<'_, '_>,
        waits: Waits,
    ) -> Result<(), StoreError> {
        if check.cost.is_wrong() {
            return Err(StoreError::NotACost);
        }
        let policies = self.undecided(check).keep_policies();
        // A deny-list refuses both the charge and its return. A block may be younger than the charge, whose return must
        // still go through.
        if policies.refusal(check.request, check.priority, check.among).is_some() {
            return Ok(());
        }
        let mut plan = Plan::default();
        check.plan_into(&policies, &mut plan);
        let at = self.time.now();
        // What is not known is not given back: a caller that leaves a number out would empty the limit's books.
        let is_known = |line: &Line<'_>| {
            let policy = &policies.policies()[line.policy];
            let stated = policy.caller_cost && check.stated_cost().is_some();
            stated || policy.cost.as_ref().is_none_or(|rule| rule.cost(check.request).is_ok())
        };
        for line in plan.lines.iter().filter(|line| can_give_back(line.quota) && is_known(line)) {
            let store = self.routes.of(line.rules.share)?;
            let charges = [plan.charge(line)];
            let (tag, clock) = (self.routes.tag(store, charges[0].key), StepClock::Engine);
            let look = Step { tag, clock, ..Step::new(at, Op::Peek, &charges) };
            let looked = self.ask(store, &look, waits).await.unwrap_or(Err(StoreError::MustWait))?;
            let Some(standing) = looked.lines.first().map(|line| line.decision.standing) else { continue };
            // More units than are in use would count as a charge with later charges behind it, and less would be given
            // back.
            let in_use = standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt);
            let Some(cost) = Cost::new(line.cost.units().min(in_use)) else { continue };
            let receipt = if counts_by_window(line.quota) {
                receipt(line.quota, cost, looked.at.max(at))
            } else {
                // The most recently charged units: one more unit is charged, however long it would wait, and undone
                // together with the units before it.
                let last = [Charge { cost: Cost::ONE, max_wait: Duration::MAX, kept_back: 0, ..charges[0] }];
                let step = Step { tag, clock, ..Step::new(at, Op::Take, &last) };
                let taken = self.ask(store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))?;
                let cost = Cost::new(cost.units().saturating_add(1)).unwrap_or(Cost::MAX);
                taken.lines.first().and_then(|line| line.receipt).map(|receipt| Receipt { cost, ..receipt })
            };
            let Some(receipt) = receipt else { continue };
            let endings = [Ending::new(receipt, Finish::UNDONE)];
            let step = Step { tag, clock, ..Step::new(at, Op::Finish(&endings), &charges) };
            self.ask(store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))?;
        }
        Ok(())
    }
}

/// Reports whether a limit can give back units without the charge that they came from.
const fn can_give_back(quota: &Quota) -> bool {
    !quota.is_guard() && !matches!(quota, Quota::SlidingLog(_))
}

/// Reports whether a limit counts what was spent in a window, rather than as a sequence of charges.
const fn counts_by_window(quota: &Quota) -> bool {
    matches!(quota, Quota::FixedWindow(_) | Quota::SlidingWindow(_) | Quota::SlidingCounter(_))
}

/// Returns the receipt of a charge made at `at`. It may be for more than a full limit grants, since such a charge may have
/// been booked as a debt.
fn receipt(quota: &Quota, cost: Cost, at: Tick) -> Option<Receipt> {
    let fresh = quota.fresh(at);
    let most = Cost::new(quota.standing(&fresh, at).limit)?;
    match quota.decide(&fresh, Ask::within(at, cost.min(most), Duration::MAX)) {
        Transition::Allowed { receipt, .. } => Some(Receipt { cost, ..receipt }),
        Transition::Denied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Block, CostRule, Limit, OnCostError, PolicySet};
    use crate::{Descriptor, Policy};
    use tidegate_limits::{Clock as _, ManualClock};

    fn gate(quota: Quota) -> (Gate, ManualClock) {
        let clock = ManualClock::at(Tick::from_secs(1_800_014_400));
        let all = Policy::new("all", Limit::new(quota, "10/h"));
        let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 1000).unwrap();
        (gate.with_clock(clock.clone()), clock)
    }

    fn left(gate: &Gate) -> u64 {
        gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision.standing.remaining
    }

    proptest! {
        /// The model is a single number: the units in use, which may be a debt.
        #[test]
        fn what_is_given_back_is_there_again_and_never_more(
            steps in proptest::collection::vec((0..3, 1..35_u64), 1..20),
        ) {
            let ten = || Quota::per_hour(10);
            for quota in [
                ten().gcra(), ten().token_bucket(), ten().interval_bucket(), ten().aligned_bucket(),
                ten().leaky_bucket(), ten().fixed_window(), ten().sliding_window(6), ten().sliding_counter(),
            ] {
                let quota = quota.unwrap();
                let (gate, clock) = gate(quota.clone());
                let mut used = 0;
                for (step, units) in &steps {
                    let request = Descriptor::new();
                    let check = Check::of(&request).cost(*units);
                    match step {
                        0 => {
                            gate.give_back(check).now().unwrap();
                            used = u64::saturating_sub(used, *units);
                        }
                        1 => {
                            gate.book(check, 1).now().unwrap();
                            used += *units;
                        }
                        _ if gate.check(check).now().unwrap().allowed => used += *units,
                        _ => {}
                    }
                    prop_assert_eq!(left(&gate), u64::saturating_sub(10, used), "{:?} {}", quota, used);
                    // Shorter than any unit takes to return.
                    clock.advance(Duration::from_millis(1));
                }
            }
        }
    }

    /// Formerly, if a key was blocked between a charge and its return, the return was skipped like a request and the caller stayed charged.
    #[test]
    fn what_was_charged_before_a_block_is_given_back_under_it() {
        let (gate, clock) = gate(Quota::per_hour(10).gcra().unwrap());
        let request = Descriptor::new();
        assert!(gate.check(Check::of(&request).cost(7)).now().unwrap().allowed);
        let now = clock.now();
        let block = Block::new("(all)", now, now.after(Duration::from_secs(3600)), "looked into");
        gate.blocks().add("all", &request, block).unwrap();
        assert!(!gate.check(Check::of(&request).cost(1)).now().unwrap().allowed, "a request is refused");
        gate.give_back(Check::of(&request).cost(4)).now().unwrap();
        gate.blocks().remove("all", &request).now().unwrap().unwrap();
        assert_eq!(left(&gate), 7);
    }

    /// Formerly a return without the number of its cost gave back all that was in use, since an unknown cost is larger than
    /// any limit.
    #[test]
    fn a_return_of_an_unknown_cost_gives_nothing_back() {
        for on_cost_error in [OnCostError::Deny, OnCostError::WholeLimit] {
            let mut tokens = Policy::new("all", Limit::new(Quota::per_hour(10).gcra().unwrap(), "10/h"));
            tokens.cost = Some(CostRule::Attribute("llm.tokens".to_owned()));
            tokens.on_cost_error = on_cost_error;
            let gate = Gate::in_memory(PolicySet::new(vec![tokens]).unwrap(), 1000).unwrap();
            let gate = gate.with_clock(ManualClock::at(Tick::from_secs(1_800_014_400)));
            let seven = Descriptor::new().with("llm.tokens", "7");
            assert!(gate.check(&seven).now().unwrap().allowed);
            gate.give_back(&Descriptor::new()).now().unwrap();
            let one = Descriptor::new().with("llm.tokens", "1");
            assert_eq!(
                gate.check(Check::of(&one).peek()).now().unwrap().limits[0].decision.standing.remaining,
                3
            );
            gate.give_back(&Descriptor::new().with("llm.tokens", "2")).now().unwrap();
            assert_eq!(
                gate.check(Check::of(&one).peek()).now().unwrap().limits[0].decision.standing.remaining,
                5
            );
            // A look at an unknown cost is no request without one.
            let errors = || gate.policies().cost_errors(0).at_check;
            let before = errors();
            assert!(gate.check(Check::of(&Descriptor::new()).peek()).now().is_ok() && errors() == before);
            assert!(gate.check(&Descriptor::new()).now().is_ok() && errors() == before + 1);
        }
    }

    #[test]
    fn a_log_of_charges_gives_nothing_back() {
        let (gate, _) = gate(Quota::per_hour(10).sliding_log().unwrap());
        let request = Descriptor::new();
        assert!(gate.check(Check::of(&request).cost(7)).now().unwrap().allowed);
        gate.give_back(Check::of(&request).cost(3)).now().unwrap();
        assert_eq!(left(&gate), 3);
    }
}
