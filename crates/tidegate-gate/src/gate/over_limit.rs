//! Handles requests that pass although they are over a limit: their lowered priority, and the policies that let them
//! pass.
//!
//! A gate peeks at the demoting limits before it decides, so that all limits are decided under one priority. Concurrent
//! requests may all be peeked at before any of them is charged: a few may then keep a priority that they would have
//! lost one after the other.

use std::borrow::Cow;

use super::several_stores::Run;
use super::waits::Waits;
use super::{Check, Gate, GateDecision};
use crate::policy::{Over, Plan, PolicySet, Stated};
use tidegate_limits::store::Op;

impl GateDecision {
    /// Returns the policies that let the request through although it is over their limits: the name of each, once and
    /// in the order of the policies, and what it does.
    ///
    /// If one of them demotes, [`GateDecision::priority`](field@GateDecision::priority) is the lowered priority.
    /// [`http_answer::over`](crate::http_answer::over) writes both as headers for the service behind. A request that
    /// another policy refuses has them too.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::policy::{Descriptor, Limit, Over, Policy, PolicySet};
    /// use tidegate::priority::Criticality;
    /// use tidegate::{Gate, Quota};
    ///
    /// let mut heavy = Policy::new("heavy", Limit::new(Quota::per_minute(1).gcra()?, "1/min"));
    /// heavy.over = Over::Demote { to: None };
    /// let gate = Gate::in_memory(PolicySet::new(vec![heavy])?, 1000)?.with_clock(ManualClock::default());
    /// let request = Descriptor::new();
    /// assert_eq!(gate.check(&request).now()?.over().count(), 0);
    ///
    /// let second = gate.check(&request).now()?;
    /// assert!(second.allowed);
    /// assert_eq!(second.over().next(), Some(("heavy", Over::Demote { to: None })));
    /// assert_eq!(second.priority.level(), Criticality::SheddablePlus);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(&self) -> impl Iterator<Item = (&str, Over)> {
        let policies = self.policies.policies();
        self.limits.chunk_by(|one, next| one.policy == next.policy).filter_map(move |lines| {
            let policy = &policies[lines.first()?.policy];
            let is_over =
                lines.iter().any(|line| !line.decision.is_allowed() && !policy.is_shadow_limit(line.limit));
            (policy.lets_through() && is_over).then_some((policy.name.as_str(), policy.over))
        })
    }
}

impl Gate {
    /// Returns the check with its priority lowered by the demoting limits that it is over; a check that is over none of
    /// them is unchanged.
    ///
    /// Takes a step of the store, which spends nothing, for each check that meets such a limit. Without an answer the
    /// check keeps its priority, since it is unknown whether it is over a limit.
    pub(super) async fn demoted<'a, 'd>(
        &self,
        check: &Check<'a, 'd>,
        policies: &PolicySet,
        waits: Waits,
    ) -> Check<'a, 'd> {
        let mut demoted = *check;
        let mut plan = Plan::default();
        check.plan_demoting_into(policies, &mut plan);
        if plan.lines.is_empty() {
            return demoted;
        }
        let (at, deadline) = (self.time.now(), self.tick_of(check));
        let mut runs = [Run::new(self, plan, Op::Peek, at, deadline)];
        self.execute_runs(&mut runs, false, waits).await;
        let [run] = runs;
        let Ok((plan, _, settlements)) = run.outcome() else { return demoted };
        let mut last = None;
        for (line, settlement) in plan.lines.iter().zip(settlements) {
            let policy = &policies.policies()[line.policy];
            let is_over = settlement.is_some_and(|settlement| !settlement.decision.is_allowed());
            // Each policy lowers the priority once, however many of its limits refuse.
            if is_over && !policy.is_shadow_limit(line.limit) && last != Some(line.policy) {
                demoted.priority = policy.over.lowered(demoted.priority);
                last = Some(line.policy);
            }
        }
        demoted
    }

    /// Lowers the priorities of the checks of one call like [`Gate::demoted`], and sets them in their decisions. Each
    /// check is examined by itself: what the other checks of the call are about to spend does not count.
    pub(super) async fn demoted_together<'c, 'a, 'd>(
        &self,
        checks: &'c [Check<'a, 'd>],
        decisions: &mut [GateDecision],
        waits: Waits,
    ) -> Cow<'c, [Check<'a, 'd>]> {
        let mut demoted = Cow::Borrowed(checks);
        for (at, check) in checks.iter().enumerate() {
            let policies = decisions[at].keep_policies();
            if policies.demotes() {
                let lowered = self.demoted(check, &policies, waits).await;
                decisions[at].priority = lowered.priority;
                demoted.to_mut()[at] = lowered;
            }
        }
        demoted
    }
}

impl<'c> Check<'c, '_> {
    /// Lists the charges of the request under policies that lower priorities.
    pub(super) fn plan_demoting_into<'p>(&self, policies: &'p PolicySet, plan: &mut Plan<'p>)
    where
        'c: 'p,
    {
        // A look: what it does not find is counted where the request is decided.
        let stated = Stated { cost: self.cost.stated(), priority: self.priority, counts: false };
        let wanted = |place| self.among.is_none_or(|among| among.has(place));
        policies.plan_demoting(self.request, stated, plan, wanted);
        if let Some(quota) = self.quota {
            self.bring(policies, quota, &mut plan.lines);
        }
    }
}
