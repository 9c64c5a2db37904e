//! Decides many requests in one call, each independently, and prefetches the memory of requests that are checked next.

use std::fmt;
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::charged::{Charged, Keep};
use super::several_stores::Run;
use super::waits::{Waits, run_without_waiting};
use super::{Check, Gate, GateDecision};
use crate::policy::{Descriptor, PolicySet};
use tidegate_limits::store::StoreError;
use tidegate_limits::{Borrowed, Buffers};

/// One answer per check, in order.
type Decisions = Vec<Result<GateDecision, StoreError>>;

/// Checks that are decided one by one when the answers are wanted: at once by [`CheckingEach::now`], or awaited as a
/// future, which also waits for engines that answer later. See [`Gate::check_each`].
///
/// The future asks an engine for all requests in one exchange; if a policy demotes or charges what it refuses, for one
/// request after the other. If policies lie in several stores, a request that a later store refuses keeps what it took from
/// earlier stores until all requests are decided: another request of the list may be refused because of that, though it
/// would pass if they were asked one by one. Requests that go to an engine together are given up together: at the latest of
/// their deadlines, or never if one has none.
///
/// Errors and cancel safety are those of [`Checking`](super::Checking).
#[must_use = "nothing is decided before the answers are wanted: call `now`, or await it"]
pub struct CheckingEach<'a, 'd> {
    gate: &'a Gate,
    checks: &'a [Check<'a, 'd>],
    charged: Option<&'a mut Vec<Charged>>,
    most_limits: usize,
    later: Option<BoxFuture<'a, Decisions>>,
}

impl<'a, 'd> CheckingEach<'a, 'd> {
    pub(super) const fn of(gate: &'a Gate, checks: &'a [Check<'a, 'd>]) -> Self {
        Self { gate, checks, charged: None, most_limits: usize::MAX, later: None }
    }

    /// Stores in `charged`, one entry per decided request in the same order, what was charged, as [`Gate::charge`] does.
    pub const fn charge(mut self, charged: &'a mut Vec<Charged>) -> Self {
        self.charged = Some(charged);
        self
    }

    /// Bounds the size of the answer: requests are decided in order until they meet that many limits in total; the last one
    /// is decided completely. Later requests are not decided and get no answer. 0 decides none.
    pub const fn most_limits(mut self, most_limits: usize) -> Self {
        self.most_limits = most_limits;
        self
    }

    /// Decides without waiting. A request for which an engine would have to be asked gets [`StoreError::MustWait`].
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> Vec<Result<GateDecision, StoreError>> {
        let Self { gate, checks, charged, most_limits, later } = self;
        assert!(later.is_none(), "not polled before");
        run_without_waiting(gate.decide_list(checks, charged, most_limits, Waits::No))
    }
}

impl Future for CheckingEach<'_, '_> {
    type Output = Vec<Result<GateDecision, StoreError>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, checks, charged, most_limits, later } = self.get_mut();
        let later = later.get_or_insert_with(|| {
            Box::pin(gate.decide_list(checks, charged.take(), *most_limits, Waits::Yes))
        });
        later.as_mut().poll(cx)
    }
}

impl fmt::Debug for CheckingEach<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckingEach").field("checks", &self.checks).finish_non_exhaustive()
    }
}

impl Gate {
    async fn decide_list(
        &self,
        checks: &[Check<'_, '_>],
        charged: Option<&mut Vec<Charged>>,
        most_limits: usize,
        waits: Waits,
    ) -> Decisions {
        let Some(charged) = charged else {
            let mut nothing = vec![(); checks.len()];
            // Decided one by one, not as a batch. Prefetching the memory of many keys saves about 75 ns of 430 per
            // check with two million keys, but costs time with few keys, because all plans have to be kept meanwhile.
            return match waits {
                Waits::No if !self.routes.own_waits() => {
                    self.decide_in_turn(checks, &mut nothing, most_limits, waits).await
                }
                _ => self.decide_each(checks, &mut nothing, most_limits, waits).await,
            };
        };
        charged.clear();
        charged.resize_with(checks.len(), Charged::default);
        let decisions = if self.is_decided_here(checks) {
            // The policies may meanwhile have been replaced by some that an engine decides.
            self.decide_in_turn(checks, charged, most_limits, waits).await
        } else {
            self.decide_each(checks, charged, most_limits, waits).await
        };
        charged.truncate(decisions.len());
        decisions
    }

    /// Reports whether the gate's own store decides all of these checks without waiting.
    fn is_decided_here(&self, checks: &[Check<'_, '_>]) -> bool {
        let in_force = self.policies.load();
        let shares =
            |check: &Check<'_, '_>| check.among.map_or(in_force.shares(), |among| among.set().shares());
        !self.routes.own_waits()
            && checks.iter().all(|check| self.routes.are_plain(shares(check).with_prepared(false)))
    }

    /// Decides requests in one round of exchanges, until they meet `most_limits` limits; `keeps` has one entry per
    /// check.
    async fn decide_each<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        keeps: &mut [K],
        most_limits: usize,
        waits: Waits,
    ) -> Vec<Result<GateDecision, StoreError>> {
        let mut decisions: Vec<GateDecision> = checks.iter().map(|check| self.undecided(check)).collect();
        let in_turn = |policies: &PolicySet| {
            policies.demotes() || policies.charges_always() || policies.blocks_over(false)
        };
        if decisions.iter().any(|decision| in_turn(&decision.policies)) {
            return self.decide_in_turn(checks, keeps, most_limits, waits).await;
        }
        let policies: Vec<_> = decisions.iter_mut().map(GateDecision::keep_policies).collect();
        policies.iter().for_each(|policies| self.sense(policies));
        let mut asked = Vec::with_capacity(checks.len());
        let mut runs: Vec<Run<'_, '_>> = Vec::with_capacity(checks.len());
        let (mut limits, mut decided) = (0, 0);
        // One tick for all: an engine without a clock executes steps with the same tick at the same time.
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
        self.execute_runs(&mut runs, K::KEEPS, waits).await;
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

    /// Decides requests one after the other: where that takes no waiting, where whether one is demoted depends on what those
    /// before it took, or where a refused one is charged, or its key blocked, before the next is decided.
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

/// The number of requests whose keys are made before they are looked up.
const TOGETHER: usize = 16;

impl Gate {
    /// Announces the requests that will be checked next. If the gate's own store keeps its keys in this process's
    /// memory, it prefetches the states of their keys, all at the same time: a single check waits about 100 ns for that
    /// memory if the keys exceed the processor's caches. Decides and changes nothing; checks give the same answers with
    /// and without it.
    ///
    /// Worth it for about ten or more requests that are known together and checked one by one, such as those of a log.
    /// Makes the keys of the first four policies, whether they match or not, and hashes them in addition to the checks;
    /// that is wasted if all keys are in the processor's caches anyway.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(2).gcra()?, "2/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let requests = [Descriptor::new(), Descriptor::new(), Descriptor::new()];
    /// gate.fetch(&requests);
    /// let mut allowed = Vec::new();
    /// for request in &requests {
    ///     allowed.push(gate.check(request).now()?.allowed);
    /// }
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fetch(&self, requests: &[Descriptor<'_>]) {
        let policies = self.policies.load();
        let mut buffers = Borrowed::take();
        let Buffers { keys, .. } = &mut *buffers;
        for requests in requests.chunks(TOGETHER) {
            keys.clear();
            let mut ends = SmallVec::new();
            requests.iter().for_each(|request| policies.push_likely_keys(request, keys, &mut ends));
            let starts = iter::once(0).chain(ends.iter().copied());
            let keys: SmallVec<[&[u8]; TOGETHER]> =
                starts.zip(&ends).map(|(start, end)| &keys[start..*end]).collect();
            self.routes.own().fetch(&keys);
        }
    }
}
