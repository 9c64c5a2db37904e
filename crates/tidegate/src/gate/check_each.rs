//! Many requests at once, each decided for itself.

use super::charged::{Charged, Keep};
use super::several_stores::Run;
use super::waits::{Waits, now};
use super::{Check, Gate, GateDecision};
use crate::store::StoreError;

impl Gate {
    /// Decides requests, in order, as [`Gate::check`] would one by one.
    ///
    /// Not one decision but many: each is allowed or refused for itself; [`Gate::check_together`] is one decision for all of them. Takes
    /// about two kilobytes for each request.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Check;
    /// use tidegate::policy::Limit;
    /// use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(2).gcra()?, "2/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let request = Descriptor::new();
    /// let decisions = gate.check_each(&[Check::of(&request); 3]);
    /// let allowed: Vec<bool> = decisions.into_iter().map(|decision| decision.is_ok_and(|decision| decision.allowed)).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a refusal goes unnoticed otherwise"]
    pub fn check_each(&self, checks: &[Check<'_, '_>]) -> Vec<Result<GateDecision, StoreError>> {
        if !self.routes.own_waits() {
            // One by one, not as a batch. Fetching the memory of many keys together saves some 75 ns of 430 for each of two million keys,
            // but takes longer among few keys, because all plans have to be kept meanwhile.
            return checks.iter().map(|check| self.check(*check)).collect();
        }
        now(self.decide_each(checks, &mut vec![(); checks.len()], usize::MAX, Waits::No))
    }

    /// Decides requests like [`Gate::check_each`], and waits for engines that answer later: an engine is asked for all of them in one
    /// exchange, unless a policy demotes, when they are asked one by one. If policies lie in several stores, a request that a later store refuses holds what it took from the earlier ones until all
    /// are decided: another request of the list may be refused because of that, which would pass if they were asked one by one.
    ///
    /// Requests that go to an engine together are given up together: at the latest of their deadlines, or never if one of them has none.
    ///
    /// # Cancel safety
    /// As [`Gate::check_async`].
    pub async fn check_each_async(&self, checks: &[Check<'_, '_>]) -> Vec<Result<GateDecision, StoreError>> {
        self.decide_each(checks, &mut vec![(); checks.len()], usize::MAX, Waits::Yes).await
    }

    /// Decides requests like [`Gate::check_each_async`], and keeps in `charged`, one for each in the same order, what was charged, as
    /// [`Gate::charge`] does.
    ///
    /// `most_limits` bounds what the answer takes: requests are decided in order until the limits that they meet are so many together, the
    /// last of them whole. Those after it are not decided, and have no answer. 0 decides none.
    ///
    /// # Cancel safety
    /// As [`Gate::check_async`].
    pub async fn charge_each_async(
        &self,
        checks: &[Check<'_, '_>],
        charged: &mut Vec<Charged>,
        most_limits: usize,
    ) -> Vec<Result<GateDecision, StoreError>> {
        charged.clear();
        charged.resize_with(checks.len(), Charged::default);
        let mut limits = 0;
        let decisions = if self.is_decided_here(checks) {
            let mut decisions = Vec::with_capacity(checks.len());
            for (check, charged) in checks.iter().zip(&mut *charged) {
                if limits >= most_limits {
                    break;
                }
                // The policies may have been replaced by some that an engine decides.
                let decided = self.decide_async(check, charged).await;
                limits += decided.as_ref().map_or(0, |decision| decision.limits.len());
                decisions.push(decided);
            }
            decisions
        } else {
            self.decide_each(checks, charged, most_limits, Waits::Yes).await
        };
        charged.truncate(decisions.len());
        decisions
    }

    /// Says whether the gate's own store decides all of these checks, on the spot.
    fn is_decided_here(&self, checks: &[Check<'_, '_>]) -> bool {
        let in_force = self.policies.load();
        let shares =
            |check: &Check<'_, '_>| check.among.map_or(in_force.shares(), |among| among.set().shares());
        !self.routes.own_waits()
            && checks.iter().all(|check| self.routes.are_plain(shares(check).with_prepared(false)))
    }

    /// Decides requests in one round of exchanges, until they meet `most_limits` limits; `keeps` has one for each.
    async fn decide_each<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        keeps: &mut [K],
        most_limits: usize,
        waits: Waits,
    ) -> Vec<Result<GateDecision, StoreError>> {
        let mut decisions: Vec<GateDecision> = checks.iter().map(|check| self.undecided(check)).collect();
        if decisions.iter().any(|decision| decision.policies.demotes()) {
            return self.decide_in_turn(checks, keeps, most_limits, waits).await;
        }
        let policies: Vec<_> = decisions.iter_mut().map(GateDecision::keep_policies).collect();
        policies.iter().for_each(|policies| self.sense(policies));
        let mut asked = Vec::with_capacity(checks.len());
        let mut runs: Vec<Run<'_, '_>> = Vec::with_capacity(checks.len());
        let (mut limits, mut decided) = (0, 0);
        // One tick for all: an engine without a clock settles steps of one tick at the same time.
        let now = self.time.now();
        for ((at, check), decision) in checks.iter().enumerate().zip(&mut decisions) {
            if limits >= most_limits {
                break;
            }
            decided = at + 1;
            if check.cost.is_wrong() {
                continue;
            }
            if let Some(run) = self.run_of(check, now, &policies[at], decision) {
                limits += run.limits();
                asked.push(at);
                runs.push(run);
            }
        }
        decisions.truncate(decided);
        self.settle_runs(&mut runs, K::KEEPS, waits).await;
        let decided = |(decision, check): (GateDecision, &Check<'_, '_>)| match check.cost.is_wrong() {
            true => Err(StoreError::NotACost),
            false => Ok(decision),
        };
        let mut answers: Vec<_> = decisions.into_iter().zip(checks).map(decided).collect();
        for (at, run) in asked.into_iter().zip(runs) {
            if let Ok(decision) = &mut answers[at]
                && let Err(error) = run.conclude(decision, &mut keeps[at])
            {
                answers[at] = Err(error);
            }
        }
        for (check, answer) in checks.iter().zip(&answers) {
            answer.iter().for_each(|decision| self.count(check, decision));
        }
        answers
    }

    /// Decides requests one after the other: whether one is demoted depends on what those before it took.
    async fn decide_in_turn<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        keeps: &mut [K],
        most_limits: usize,
        waits: Waits,
    ) -> Vec<Result<GateDecision, StoreError>> {
        let (mut decisions, mut limits) = (Vec::with_capacity(checks.len()), 0);
        for (check, keep) in checks.iter().zip(keeps) {
            if limits >= most_limits {
                break;
            }
            let decided = match waits {
                Waits::Yes => self.decide_async(check, keep).await,
                Waits::No | Waits::Unwatched => self.decide(check, keep),
            };
            limits += decided.as_ref().map_or(0, |decision| decision.limits.len());
            decisions.push(decided);
        }
        decisions
    }
}
