//! Books units that were spent elsewhere: they count here too, whether there is room or not.
//!
//! A protocol that reports afterwards what it let pass cannot be refused. So its units are booked the way a settlement
//! books what was spent beyond a charge: they use up the available room, and the rest is a debt that returning capacity
//! pays first. Policies with `charge: always` are charged in the same way what they refuse.

use smallvec::SmallVec;
use tidegate_core::{Algorithm as _, Ask, Cost, Decision, Finish, Outcome, Quota, Receipt, Tick, Transition};

use super::decide::binding;
use super::waits::Waits;
use super::{ChargedAnyway, Check, Gate, GateDecision, LimitDecision};
use crate::policy::{Line, Plan};
use tidegate_limits::store::{Charge, Ending, Op, Step, StepClock, StoreError};

impl Gate {
    /// Books for a caller that waits for engines, or cannot.
    pub(super) async fn book_parts(
        &self,
        check: &Check<'_, '_>,
        requests: u64,
        waits: Waits,
    ) -> Result<(), StoreError> {
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
        self.book_plan(&plan, requests, waits, None).await
    }

    /// Charges what a decision that can be awaited left uncharged, see [`Gate::charge_anyway`].
    pub(super) async fn charge_what_is_left(&self, check: &Check<'_, '_>, decision: &mut GateDecision) {
        let allowed = decision.allowed;
        if decision.leaves_uncharged(check, allowed) {
            // Boxed: otherwise all other checks would reserve space for it.
            Box::pin(self.charge_anyway(check, decision, allowed, Waits::Yes)).await;
        }
    }

    /// Charges policies with `charge: always` what the decision did not charge them, and shows their limits as they are
    /// afterwards. `allowed` says whether the whole call passes.
    ///
    /// This is a step of its own after the decision, so other requests may be decided in between, as if they had come
    /// first.
    #[cold]
    pub(super) async fn charge_anyway(
        &self,
        check: &Check<'_, '_>,
        decision: &mut GateDecision,
        allowed: bool,
        waits: Waits,
    ) {
        let policies = decision.keep_policies();
        let mut check = check.priority(decision.priority);
        check.planned = true;
        let mut plan = Plan::default();
        check.plan_into(&policies, &mut plan);
        let limits = &mut decision.limits;
        plan.lines.retain(|line| {
            let was_charged =
                allowed && place_of(line, limits).is_some_and(|at| limits[at].decision.is_allowed());
            policies.policies()[line.policy].charges_always() && !line.quota.is_guard() && !was_charged
        });
        if plan.lines.is_empty() {
            return;
        }
        let mut stand: SmallVec<[Option<Decision>; 4]> = SmallVec::from_elem(None, plan.lines.len());
        let booked = self.book_plan(&plan, 1, waits, Some(&mut stand)).await;
        for (line, now) in plan.lines.iter().zip(&stand) {
            let (Some(at), Some(now)) = (place_of(line, limits), now) else { continue };
            let shown = &mut limits[at].decision;
            shown.standing = now.standing;
            // A request that returned at the time of the first answer would meet its own charge.
            if !shown.is_allowed() && !now.is_allowed() {
                shown.ruling = now.ruling;
            }
        }
        let lines = plan.lines.iter().zip(&stand).filter(|(_, now)| now.is_some());
        let lines = lines.map(|(line, _)| (line.policy, line.limit, line.cost)).collect();
        decision.anyway = Some(Box::new(ChargedAnyway { lines, error: booked.err() }));
        decision.binding = binding(&decision.limits, decision.allowed);
    }

    /// Books the lines of a plan. Writes to `stand`, if given, how each limit decides the same charge afterwards; `None`
    /// for a line that was not booked.
    async fn book_plan(
        &self,
        plan: &Plan<'_>,
        requests: u64,
        waits: Waits,
        mut stand: Option<&mut [Option<Decision>]>,
    ) -> Result<(), StoreError> {
        let at = self.time.now();
        let mut lines: SmallVec<[(usize, u64, usize, Ending); 4]> = SmallVec::new();
        // A cost that nobody knows is no debt: whoever sends no number would owe more than everybody else.
        let booked = |line: &Line<'_>| !line.quota.is_guard() && !line.cost_is_unknown();
        for (place, line) in plan.lines.iter().enumerate().filter(|(_, line)| booked(line)) {
            let Some(receipt) = one_unit(line.quota, at) else { continue };
            let store = self.routes.of(line.rules.share)?;
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
            let booked = self.ask(store, &step, waits).await.unwrap_or(Err(StoreError::MustWait))?;
            let Some(stand) = &mut stand else { continue };
            let look = Step { op: Op::Peek, ..step };
            let looked = self.ask(store, &look, waits).await;
            for (index, (_, _, place, _)) in part.iter().enumerate() {
                // What was booked counts as booked, even if the look fails.
                let looked = looked.as_ref().and_then(|answer| answer.as_ref().ok()).unwrap_or(&booked);
                stand[*place] = looked.lines.get(index).map(|line| line.decision);
            }
        }
        Ok(())
    }
}

impl GateDecision {
    /// Reports whether a policy with `charge: always` may not have been charged by this decision. `allowed` says whether
    /// the whole call passes.
    #[inline]
    pub(super) fn leaves_uncharged(&self, check: &Check<'_, '_>, allowed: bool) -> bool {
        self.policies.charges_always()
            && !check.peek
            && !(allowed && self.limits.iter().all(|limit| limit.decision.is_allowed()))
    }
}

/// Returns the index of the limit of a line among those of a decision.
fn place_of(line: &Line<'_>, limits: &[LimitDecision]) -> Option<usize> {
    limits.iter().position(|limit| (limit.policy, limit.limit) == (line.policy, line.limit))
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
    use crate::policy::{ChargeOn, Limit, Mode, PolicySet, Share};
    use crate::{Descriptor, Policy};
    use tidegate_limits::ManualClock;
    use tidegate_limits::store::PlainStore;

    /// Ten an hour, by each algorithm.
    fn tens() -> impl Iterator<Item = Quota> {
        let ten = || Quota::per_hour(10);
        let all = [
            ten().gcra(),
            ten().token_bucket(),
            ten().interval_bucket(),
            ten().leaky_bucket(),
            ten().fixed_window(),
            ten().sliding_window(6),
            ten().sliding_counter(),
            ten().sliding_log(),
        ];
        all.into_iter().map(Result::unwrap)
    }

    fn always(name: &str, quota: Quota) -> Policy {
        let mut policy = Policy::new(name, Limit::new(quota, "10/h"));
        policy.charge = ChargeOn::Always;
        policy
    }

    /// Units that were spent before the answer count, whatever the answer: a report of 288 units left a limit of 5
    /// untouched, and one of 1000 at 136 left, for ever.
    #[test]
    fn what_is_refused_is_charged_too_where_the_policy_says_so() {
        for quota in tens() {
            let clock = ManualClock::at(Tick::from_secs(1_800_014_400));
            let gate = Gate::in_memory(PolicySet::new(vec![always("tokens", quota.clone())]).unwrap(), 100);
            let gate = gate.unwrap().with_clock(clock.clone());
            let request = Descriptor::new();
            let check = |units: u64| gate.check(Check::of(&request).cost(units)).now().unwrap();
            let stands = |decision: &GateDecision| {
                let standing = decision.limits[0].decision.standing;
                (decision.allowed, standing.remaining, standing.debt)
            };
            let first = check(7);
            assert_eq!((stands(&first), first.anyway), ((true, 3, 0), None), "{quota:?}");
            assert_eq!(
                stands(&gate.check(Check::of(&request).peek()).now().unwrap()),
                (true, 3, 0),
                "{quota:?}"
            );
            let second = check(288);
            assert_eq!(stands(&second), (false, 0, 285), "{quota:?}");
            assert_eq!(second.anyway.unwrap().lines, [(0, 0, Cost::new(288).unwrap())]);
            assert_eq!(
                stands(&gate.check(Check::of(&request).peek()).now().unwrap()),
                (false, 0, 285),
                "a look finds nothing left: {quota:?}"
            );
            // The wait is that of a request whose own charge counts.
            let third = check(1);
            assert_eq!(stands(&third), (false, 0, 286), "{quota:?}");
            clock.advance(third.retry().after().unwrap());
            assert!(
                gate.check(Check::of(&request).peek()).now().unwrap().allowed,
                "{quota:?}: {:?}",
                third.retry()
            );
        }
    }

    #[test]
    fn each_such_policy_is_charged_and_no_other() {
        let ten = || Quota::per_hour(10).fixed_window().unwrap();
        let mut trial = always("trial", Quota::per_hour(2).fixed_window().unwrap());
        trial.mode = Mode::Shadow;
        let mut far = always("far", ten());
        far.share = Some(Share::Central);
        let plain = Policy::new("plain", Limit::new(Quota::per_hour(5).gcra().unwrap(), "5/h"));
        let set = PolicySet::new(vec![plain, always("near", ten()), trial, far]).unwrap();
        let gate = Gate::in_memory(set, 100).unwrap().with_store(Share::Central, PlainStore::default());
        let gate = gate.with_clock(ManualClock::at(Tick::from_secs(1_800_014_400)));
        let request = Descriptor::new();
        let left = || {
            let limits = gate.check(Check::of(&request).peek()).now().unwrap().limits;
            limits
                .iter()
                .map(|limit| (limit.decision.standing.remaining, limit.decision.standing.debt))
                .collect::<Vec<_>>()
        };
        // The plain policy refuses at once, so the other store was not even asked.
        let refused = gate.check(Check::of(&request).cost(6)).now().unwrap();
        assert_eq!((refused.allowed, refused.policy_name()), (false, Some("plain")));
        assert_eq!(left(), [(5, 0), (4, 0), (0, 4), (4, 0)]);
        // What passes is charged once, under the trial too.
        assert!(gate.check(Check::of(&request).cost(1)).now().unwrap().allowed);
        assert_eq!(left(), [(4, 0), (3, 0), (0, 5), (3, 0)]);
        // Several checks of one call, and of one list.
        let two = [Check::of(&request).cost(1), Check::of(&request).cost(4)];
        assert!(!gate.check_together(&two).now().unwrap().allowed);
        assert_eq!(left(), [(4, 0), (0, 2), (0, 10), (0, 2)]);
        let each = gate.check_each(&[Check::of(&request); 2]).now();
        assert!(each.iter().all(|decision| !decision.as_ref().unwrap().allowed));
        assert_eq!(left(), [(4, 0), (0, 4), (0, 12), (0, 4)]);
    }

    proptest! {
        /// The model is a single number: the units in use, which may exceed the limit.
        #[test]
        fn what_is_booked_counts_whether_it_fits_or_not(
            steps in proptest::collection::vec((any::<bool>(), 1..9_u64), 1..12),
        ) {
            for quota in tens() {
                let clock = ManualClock::at(Tick::from_secs(1_800_014_400));
                let all = Policy::new("all", Limit::new(quota.clone(), "10/h"));
                let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 1000).unwrap().with_clock(clock.clone());
                let mut used = 0;
                for (books, units) in &steps {
                    let request = Descriptor::new();
                    let check = Check::of(&request).cost(*units);
                    if *books {
                        gate.book(check, 1).now().unwrap();
                        used += units;
                    } else if gate.check(check).now().unwrap().allowed {
                        used += units;
                    }
                    let standing = gate.check(Check::of(&request).peek()).now().unwrap().limits[0].decision.standing;
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
            gate.book(Check::of(&request).cost(u64::MAX), 1).now().unwrap();
        }
        assert!(!gate.check(&request).now().unwrap().allowed);
        assert!(gate.book(Check::of(&request).cost(0), 1).now().is_err());
    }
}
