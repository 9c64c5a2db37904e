//! Decides requests: one, each of a batch, several as one, or under policies that are not in force.

use std::pin::pin;
use std::sync::Arc;

use tidegate::gate::{Charged, Check, GateDecision, LimitDecision};
use tidegate::policy::{Among, Descriptor, Limit, Mode, OnStoreError, Policy, PolicySet};
use tidegate::store::{Charge, DecidedBy, Executed, Op, StoreError};

#[cfg(feature = "grpc")]
pub(crate) use self::together::Together;
use super::breakers::Breakers;
use super::storage::Storage;
use super::telemetry::Telemetry;
use super::{Base, Conclusion, Want};
use crate::active_config::ActiveConfig;
use crate::metrics::{Decided, Transport};
use crate::sight::Verdict;

/// Decides requests under the policies in force.
#[derive(Debug)]
pub(crate) struct Deciding {
    base: Arc<Base>,
    telemetry: Arc<Telemetry>,
    breakers: Arc<Breakers>,
    /// Says why an engine is not asked.
    storage: Arc<Storage>,
    /// Whether no other process is asked for decisions: counters are in memory or on this machine's disk.
    asks_no_engine: bool,
}

impl Deciding {
    pub(super) fn new(
        base: Arc<Base>,
        telemetry: Arc<Telemetry>,
        breakers: Arc<Breakers>,
        storage: Arc<Storage>,
        asks_no_engine: bool,
    ) -> Self {
        Self { base, telemetry, breakers, storage, asks_no_engine }
    }

    /// Returns whether no other process is asked for decisions.
    pub(crate) fn asks_no_engine(&self) -> bool {
        self.asks_no_engine
    }

    /// Decides a request. Writes what was charged to `held`, if given. `only` names policies by their indices in the
    /// set of `live`.
    ///
    /// # Cancel safety
    /// A dropped call has spent nothing. If an engine was asked, its charge is undone in the background once it has
    /// answered.
    pub(crate) async fn decide(
        &self,
        live: &ActiveConfig,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
        want: Want,
        held: Option<&mut Charged>,
        transport: Transport,
    ) -> Conclusion {
        if self.base.decides_at_once && held.is_none() && only.is_none() {
            let start = self.base.metrics.start();
            let decided = match want {
                Want::Take => self.base.gate.check(check).now(),
                Want::Peek => self.base.gate.check(check.peek()).now(),
            };
            self.base.metrics.note_time(transport, start);
            return self.conclude(live, &check, only, decided, want, transport);
        }
        // Boxed: otherwise the future of a check that is decided at once would reserve space for it.
        Box::pin(self.decide_waiting(live, check, only, want, held, transport)).await
    }

    /// The general form of [`Deciding::decide`]: may wait for an engine, keep the charges, and leave policies out.
    async fn decide_waiting(
        &self,
        live: &ActiveConfig,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
        want: Want,
        held: Option<&mut Charged>,
        transport: Transport,
    ) -> Conclusion {
        let keeps = held.is_some();
        let mut unwanted = Charged::default();
        let held = held.unwrap_or(&mut unwanted);
        let among = only.map(|only| live.among(only));
        let check = check.among(among.as_ref());
        let deciding = async {
            match want {
                Want::Take if keeps => self.base.gate.charge(check, held).await,
                Want::Take => self.base.gate.check(check).await,
                Want::Peek => self.base.gate.check(check.peek()).await,
            }
        };
        // Pinned and passed by reference: passed by value it would take up space in this future twice.
        let decided = self.base.metrics.time(transport, pin!(deciding)).await;
        if live.breaks && keeps {
            self.breakers.note_entered(held).await;
        }
        self.conclude(live, &check, only, decided, want, transport)
    }

    /// Decides a batch in one exchange with an engine. Returns each conclusion with its charges. Requests after the
    /// first `most_limits` limits are not decided and have no entry in the result.
    ///
    /// # Cancel safety
    /// As [`Deciding::decide`].
    pub(crate) async fn decide_each(
        &self,
        live: &ActiveConfig,
        asked: &[(Check<'_, '_>, Option<&[usize]>)],
        most_limits: usize,
    ) -> Vec<(Conclusion, Charged)> {
        let among: Vec<Option<Among>> =
            asked.iter().map(|(_, only)| only.map(|only| live.among(only))).collect();
        let each = asked.iter().zip(&among);
        let checks: Vec<Check<'_, '_>> =
            each.map(|((check, _), among)| check.among(among.as_ref())).collect();
        let mut charged: Vec<Charged> = Vec::new();
        let deciding = self.base.gate.check_each(&checks).charge(&mut charged).most_limits(most_limits);
        let decided = self.base.metrics.time_each(deciding).await;
        if live.breaks {
            for charged in &charged {
                self.breakers.note_entered(charged).await;
            }
        }
        let each = checks.iter().zip(decided).zip(charged);
        each.zip(asked)
            .map(|(((check, decided), charged), (_, only))| {
                (self.conclude(live, check, *only, decided, Want::Take, Transport::http), charged)
            })
            .collect()
    }

    /// Decides a request under policies that the store can serve ([`super::Decider::fits`]). Charges and counts
    /// nothing, and makes no series.
    ///
    /// # Cancel safety
    /// As [`Deciding::decide`].
    pub(crate) async fn dry_run(
        &self,
        set: &Arc<PolicySet>,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
    ) -> Conclusion {
        let among = match only {
            Some(only) => Among::new(Arc::clone(set), only.iter().copied()),
            None => Among::new(Arc::clone(set), 0..set.len()),
        };
        let check = check.among(&among).peek();
        match self.base.gate.check(check).await {
            Ok(mut decision) if decision.by == DecidedBy::Fallback => {
                self.left_by_engine(&mut decision).unwrap_or(Conclusion::Decided(decision))
            }
            Ok(decision) => Conclusion::Decided(decision),
            Err(error) => self.undecided(error),
        }
    }

    /// Returns whether a list, a deadline or a block refuses a request, whatever its limits say.
    pub(crate) fn refuses_before_limits(&self, check: &Check<'_, '_>) -> bool {
        self.base.gate.refusal_before_limits(check).is_some()
    }

    /// Settles a limit that a caller brings along, under a key of no policy. Writes the result to `out`.
    pub(crate) async fn execute_brought(
        &self,
        op: Op<'_>,
        charge: Charge<'_>,
        out: &mut Executed,
    ) -> Result<(), StoreError> {
        let executed = if self.base.decides_at_once {
            let start = self.base.metrics.start();
            let executed = self.base.gate.keys().execute(op, charge, out).now();
            self.base.metrics.note_time(Transport::resp, start);
            executed
        } else {
            let execution = pin!(self.base.gate.keys().execute(op, charge, out));
            self.base.metrics.time(Transport::resp, execution).await
        };
        executed.inspect_err(|_| self.base.count_store_error())
    }

    fn conclude(
        &self,
        live: &ActiveConfig,
        check: &Check<'_, '_>,
        only: Option<&[usize]>,
        decided: Result<GateDecision, StoreError>,
        want: Want,
        transport: Transport,
    ) -> Conclusion {
        let mut conclusion = match decided {
            Ok(decision) => Conclusion::Decided(decision),
            Err(error) => self.undecided(error),
        };
        let (request, stated) = (check.request, check.stated_cost());
        self.count_and_adjust(live, request, &mut conclusion, want, transport);
        self.telemetry.note_conclusion(request, &conclusion);
        if want == Want::Take {
            self.telemetry.count_call(live, request, transport, conclusion.allowed());
            self.telemetry.count_request(live, transport, request, only, stated, &conclusion);
        }
        conclusion
    }

    /// Counts a decision and adjusts it for the answer, in place: it is large, and moving it costs as much as
    /// counting it.
    fn count_and_adjust(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        conclusion: &mut Conclusion,
        want: Want,
        transport: Transport,
    ) {
        let Conclusion::Decided(decision) = conclusion else { return };
        if let Some(anyway) = &decision.anyway {
            self.telemetry.count_anyway(live, decision, anyway);
        }
        if live.breaks && decision.allowed {
            decision.binding = least_left(decision).or(decision.binding);
        }
        if decision.by == DecidedBy::Fallback
            && let Some(other) = self.without_engine(live, request, decision, want)
        {
            *conclusion = other;
            return;
        }
        if want == Want::Take {
            // Other doors tell it with its id.
            if !decision.allowed && matches!(transport, Transport::grpc) {
                self.telemetry.tell_listeners(request, decision, None);
            }
            self.telemetry.count(&live.facts(&decision.policies, &self.base.metrics), request, decision);
            if live.breaks {
                self.breakers.remember_refusers(request, decision);
            }
        }
    }
}

/// Returns the limit with least left for an allowed request. Skips breakers: a closed one always has one left,
/// however many requests it admits.
fn least_left(decision: &GateDecision) -> Option<usize> {
    let policies = decision.policies.policies();
    let is_breaker =
        |line: &LimitDecision| policies[line.policy].limit(line.limit).is_some_and(Limit::is_breaker);
    let counting = decision.limits.iter().enumerate().filter(|(_, line)| line.binding && !is_breaker(line));
    counting.min_by_key(|(_, line)| line.remaining()).map(|(at, _)| at)
}

// Counts decisions that were made without their engine, and turns them into answers. The library makes them
// ([`tidegate::store::fallback`]). A policy with `on_store_error: deny` answers 503. One with `on_store_error:
// allow` is left out of the answer, since it counts nothing.

impl Deciding {
    fn without_engine(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        decision: &mut GateDecision,
        want: Want,
    ) -> Option<Conclusion> {
        self.base.count_store_error();
        let policies = decision.policies.policies();
        let facts = live.facts(&decision.policies, &self.base.metrics);
        for at in matching(decision) {
            let is_canary = |line: &LimitDecision| line.policy == at && policies[at].is_canary(line.limit);
            let canary = decision.limits.iter().any(is_canary);
            facts[at].series.tally(policies[at].mode == Mode::Enforce, canary).count(Decided::error);
            if want == Want::Take {
                self.telemetry.tell_seen(&facts[at], at, request, decision, Verdict::Error);
            }
        }
        self.left_by_engine(decision)
    }

    /// Turns a decision that was made without the engine into its answer: keeps only the limits of policies with
    /// `on_store_error: local`, and picks the binding one anew. Returns another conclusion if a policy refuses, or
    /// no limit is left.
    fn left_by_engine(&self, decision: &mut GateDecision) -> Option<Conclusion> {
        let outage = self.storage.down();
        let reason = outage.as_deref().unwrap_or("it could not decide this request");
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        let set = Arc::clone(&decision.policies);
        let policy = |at: usize| -> &Policy { &set.policies()[at] };
        let closes = |at: &usize| {
            policy(*at).on_store_error == OnStoreError::Deny && policy(*at).mode == Mode::Enforce
        };
        if let Some(closed) = matching(decision).find(closes).map(|at| policy(at).name.clone()) {
            return Some(Conclusion::Unsettled { allowed: false, policy: Some(closed), error });
        }
        let bound = decision.binding.map(|at| (decision.limits[at].policy, decision.limits[at].limit));
        decision.limits.retain(|limit| policy(limit.policy).on_store_error == OnStoreError::Local);
        if decision.limits.is_empty() {
            return Some(Conclusion::Unsettled { allowed: true, policy: None, error });
        }
        let enforced = || decision.limits.iter().enumerate().filter(|(_, limit)| limit.binding);
        decision.binding = enforced()
            .find(|(_, limit)| Some((limit.policy, limit.limit)) == bound)
            .or_else(|| enforced().min_by_key(|(_, limit)| limit.remaining()))
            .map(|(at, _)| at);
        None
    }

    /// Concludes that a request could not be decided at all: because of a bug here or in the store, or because the
    /// time that its caller gives was over first. It is refused even with `on_store_error: allow`: a caller must
    /// not get through uncharged by giving little time.
    fn undecided(&self, error: StoreError) -> Conclusion {
        if error == StoreError::DeadlinePassed {
            // Not a failure of the store, so it is neither counted as one nor logged as a bug.
            tracing::debug!(%error, "a request could not be decided");
        } else {
            self.base.count_store_error();
            tracing::error!(%error, "a request could not be decided");
        }
        Conclusion::Unsettled { allowed: false, policy: None, error }
    }
}

/// Returns the index of each policy that took part in a decision, once.
fn matching(decision: &GateDecision) -> impl Iterator<Item = usize> {
    decision.limits.chunk_by(|one, next| one.policy == next.policy).map(|lines| lines[0].policy)
}

#[cfg(feature = "grpc")]
mod together {
    //! Decides several checks of one call as one: all or nothing.

    use std::time::Duration;

    use smallvec::SmallVec;
    use tidegate::gate::{Charged, Check};
    use tidegate::store::StoreError;

    use super::Deciding;
    use crate::active_config::ActiveConfig;
    use crate::decider::{Conclusion, Want};
    use crate::metrics::{RequestOutcome, Transport};

    /// The result of checks that were decided as one.
    #[derive(Debug)]
    pub(crate) struct Together {
        /// Whether the call may pass.
        pub(crate) allowed: bool,
        /// How long to delay the call.
        pub(crate) wait: Duration,
        /// One for each check, in order. A single one if the store could not decide.
        pub(crate) conclusions: Vec<Conclusion>,
    }

    impl Deciding {
        /// Decides checks as one: all are charged, or none. A check that only looks spends nothing, but its refusal
        /// refuses the call too. Writes what was charged to `held`, if given.
        ///
        /// # Errors
        /// [`StoreError::TwoQuotas`] if two checks have different quotas for one key, which is the caller's
        /// mistake. Other errors become a conclusion by `on_store_error`.
        ///
        /// # Cancel safety
        /// As [`Deciding::decide`].
        pub(crate) async fn decide_together(
            &self,
            live: &ActiveConfig,
            checks: &[Check<'_, '_>],
            held: Option<&mut Charged>,
            transport: Transport,
        ) -> Result<Together, StoreError> {
            let deciding = async {
                match held {
                    Some(held) => self.base.gate.check_together(checks).charge(held).await,
                    None => self.base.gate.check_together(checks).await,
                }
            };
            let together = match self.base.metrics.time(transport, deciding).await {
                Ok(together) => together,
                Err(error @ StoreError::TwoQuotas { .. }) => return Err(error),
                Err(error) => {
                    let conclusions = vec![self.undecided(error)];
                    self.base.metrics.requests.count(transport, RequestOutcome::failed_closed);
                    return Ok(Together { allowed: false, wait: Duration::ZERO, conclusions });
                }
            };
            let mut conclusions: Vec<Conclusion> =
                together.decisions.into_iter().map(Conclusion::Decided).collect();
            for (check, conclusion) in checks.iter().zip(&mut conclusions) {
                let want = if check.peek { Want::Peek } else { Want::Take };
                self.count_and_adjust(live, check.request, conclusion, want, transport);
                self.telemetry.note_conclusion(check.request, conclusion);
                if let (Want::Peek, Conclusion::Decided(decision)) = (want, &*conclusion) {
                    self.telemetry.note_looked_at(live, decision);
                    self.telemetry.count_refused_look(live, check.request, decision);
                }
            }
            // A policy whose store is away may refuse what the gate allows.
            let closed = conclusions
                .iter()
                .any(|conclusion| matches!(conclusion, Conclusion::Unsettled { allowed: false, .. }));
            let allowed = together.allowed && !closed;
            // Every one, so that the kind of each is noted.
            let each = checks.iter().zip(&conclusions).map(|(check, conclusion)| match conclusion {
                Conclusion::Decided(decision) => {
                    self.telemetry.is_unmet(live, transport, check.request, None, decision)
                }
                Conclusion::Unsettled { .. } => false,
            });
            let unmet: SmallVec<[bool; 8]> = each.collect();
            let undecided =
                conclusions.iter().any(|conclusion| matches!(conclusion, Conclusion::Unsettled { .. }));
            let turn = self.base.metrics.requests.count(
                transport,
                match (allowed, undecided) {
                    (true, true) => RequestOutcome::failed_open,
                    (false, true) if closed => RequestOutcome::failed_closed,
                    (false, _) => RequestOutcome::denied,
                    (true, false) if !unmet.is_empty() && unmet.iter().all(|unmet| *unmet) => {
                        RequestOutcome::unmatched
                    }
                    (true, false) if !together.wait.is_zero() => RequestOutcome::delayed,
                    (true, false) => RequestOutcome::allowed,
                },
            );
            if let Some(count) = live.unmet.looks_at(turn) {
                for (check, _) in checks.iter().zip(&unmet).filter(|(_, unmet)| !**unmet) {
                    live.unmet.look_at(&live.set, &live.proxy.named, transport, check.request, count);
                }
                note_charged_twice(live, checks, &conclusions);
            }
            if let Some(check) = checks.iter().find(|check| !check.peek) {
                self.telemetry.count_call(live, check.request, transport, allowed);
            }
            Ok(Together { allowed, wait: together.wait, conclusions })
        }
    }

    fn note_charged_twice(live: &ActiveConfig, checks: &[Check<'_, '_>], conclusions: &[Conclusion]) {
        let charging = checks.iter().zip(conclusions).filter(|(check, _)| !check.peek);
        let decisions: Vec<_> = charging
            .filter_map(|(_, conclusion)| match conclusion {
                Conclusion::Decided(decision) => Some(decision),
                Conclusion::Unsettled { .. } => None,
            })
            .collect();
        for (at, policy) in live.set.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty())
        {
            let of_it =
                decisions.iter().filter(|decision| decision.limits.iter().any(|line| line.policy == at));
            let times = of_it.count();
            if times > 1 {
                live.unmet.note_charged_twice(&policy.name, times);
            }
        }
    }
}
