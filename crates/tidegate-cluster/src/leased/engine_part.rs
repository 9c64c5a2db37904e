//! Merges the engine's decisions on a request with what this node decided, and updates leases by the engine's answers.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Retry, Tick};
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Ending, Executed, Op, OwnedStep, Step, StepAnswer, StoreError,
};

use super::asking::{Asking, LocalLines, OnAnswer};
use super::draws::Return;
use super::leasable::Terms;
use super::lease::GivenBack;
use super::request::Portion;
use super::shared::{ChargeSettings, LeasedKey, LeasedState, TermsOfLines, ask, by_the_engine, widen};

impl LeasedState {
    pub(super) fn ask_for_the_rest(&self, step: &OwnedStep, local: LocalLines) -> Box<Asking> {
        if local.held.portions.is_empty() && local.lines.iter().all(Option::is_none) {
            return step.with(|step| self.ask_for_all(step));
        }
        let (terms, asked) = step.with(|step| {
            let terms = self.terms_of(step);
            let charges = by_the_engine(step, &terms);
            let theirs: SmallVec<[Charge<'_>; 4]> = charges
                .iter()
                .zip(&local.lines)
                .filter(|(_, line)| line.is_none())
                .map(|(charge, _)| *charge)
                .collect();
            (terms.clone(), OwnedStep::of(&Step { receipts: true, charges: &theirs, ..*step }))
        });
        Box::new(Asking { asked, terms, on_answer: OnAnswer::Merge(Box::new((step.clone(), local))) })
    }

    /// Returns the step for the engine if it decides all charges, under the engine's limits.
    pub(super) fn ask_for_all(&self, step: &Step<'_>) -> Box<Asking> {
        let terms = self.terms_of(step);
        let charges = by_the_engine(step, &terms);
        let asked = OwnedStep::of(&Step { charges: &charges, ..*step });
        drop(charges);
        Box::new(Asking { asked, terms, on_answer: OnAnswer::Tell })
    }

    pub(super) async fn merge(
        self: &Arc<Self>,
        step: &OwnedStep,
        local: LocalLines,
        theirs: &OwnedStep,
        terms: &TermsOfLines,
        executed: Executed,
    ) -> StepAnswer {
        let LocalLines { lines, held } = local;
        if executed.by == DecidedBy::Fallback {
            // A step is decided in one place only, so that its charges can be ended there; here the fallback decides
            // all of it.
            drop(held);
            if let Some(undo) =
                theirs.with(|step| OwnedStep::undoing(step, &executed)).filter(|_| executed.allowed)
            {
                let _ = ask(&*self.engine, &undo).await;
            }
            let asking = step.with(|step| self.ask_for_all(step));
            let sent = self.clock.now();
            let mut executed = self.ask_engine(&asking.asked).await?;
            self.record_answer(&asking.asked, &executed, sent);
            widen(&mut executed, &asking.terms);
            return Ok(executed);
        }
        let allowed = executed.allowed;
        if allowed {
            held.admit();
        } else {
            drop(held);
        }
        let mut theirs = executed.lines.into_iter();
        let mut merged = Executed { lines: SmallVec::new(), ..executed };
        for line in lines {
            let line = match line {
                Some(line) => ChargeAnswer { receipt: line.receipt.filter(|_| allowed), ..line },
                None => theirs.next().ok_or_else(|| StoreError::Unavailable {
                    reason: "it answered fewer charges than it was asked".to_owned(),
                })?,
            };
            merged.lines.push(line);
        }
        widen(&mut merged, terms);
        Ok(merged)
    }

    /// Updates leases by the engine's answer: which requests need not be asked about again, and which may be.
    pub(super) fn record_answer(&self, asked: &OwnedStep, executed: &Executed, sent: Tick) {
        asked.with(|step| match step.op {
            Op::Take | Op::Peek => self.record_decisions(step, executed, sent),
            Op::Finish(endings) if executed.allowed => self.record_endings(step, endings, executed),
            Op::Reset => step.charges.iter().for_each(|charge| self.forget(charge.key)),
            _ => {}
        });
    }

    fn record_decisions(&self, step: &Step<'_>, executed: &Executed, sent: Tick) {
        if executed.by == DecidedBy::Fallback {
            return;
        }
        let takes = matches!(step.op, Op::Take);
        let at_once = |(charge, _): &(&Charge<'_>, _)| charge.max_wait.is_zero();
        for (charge, line) in step.charges.iter().zip(&executed.lines).filter(at_once) {
            match line.decision.ruling {
                Ruling::Denied { retry: Retry::After(after) } if takes => {
                    self.with_lease_of(charge, |entry| {
                        entry.lease.refused_alone(charge.cost, charge.kept_back, after, sent);
                    });
                }
                Ruling::Allowed { .. } => self.with_lease_of(charge, |entry| {
                    let remaining = line.decision.standing.remaining;
                    entry.lease.would_be_granted(charge.cost, charge.kept_back, remaining);
                }),
                Ruling::Denied { .. } => {}
            }
        }
    }

    /// Units that came back through this node may be drawn again at once; those that came back elsewhere are noticed
    /// when a refusal expires.
    fn record_endings(&self, step: &Step<'_>, endings: &[Ending], executed: &Executed) {
        let by_engine = executed.by != DecidedBy::Fallback;
        for ((charge, ending), line) in step.charges.iter().zip(endings).zip(&executed.lines) {
            match ending {
                Ending::Forget => self.forget(charge.key),
                Ending::Finish { receipt, finish, .. } if by_engine && finish.used < receipt.cost.units() => {
                    let (now, remaining) = (self.clock.now(), line.decision.standing.remaining);
                    self.with_lease_of(charge, |entry| entry.lease.units_came_back(remaining, now));
                }
                Ending::Finish { .. } | Ending::Extend { .. } | Ending::Once => {}
            }
        }
    }

    /// Calls a function with the entry of a charge in the engine's form, if there is one under that limit.
    fn with_lease_of(&self, charge: &Charge<'_>, then: impl FnOnce(&mut LeasedKey)) {
        let hash = self.table.hash(charge.key);
        if let Some(entry) = self.table.lock(hash).get(hash, charge.key)
            && entry.lease.terms.engine == *charge.quota
        {
            then(entry);
        }
    }
}

/// Units taken by a request that is not yet admitted; put back when dropped.
pub(super) struct HeldUnits {
    pub(super) inner: Arc<LeasedState>,
    pub(super) portions: SmallVec<[TakenUnits; 4]>,
}

/// Units that were taken out of a lease, and the lease's identity.
pub(super) struct TakenUnits {
    pub(super) hash: u64,
    pub(super) key: Arc<[u8]>,
    /// The terms of the lease. If the key has others by now, its lease is a new one that does not count these units.
    pub(super) terms: Arc<Terms>,
    pub(super) settings: ChargeSettings,
    pub(super) portion: Portion,
}

impl HeldUnits {
    pub(super) fn admit(mut self) {
        for TakenUnits { hash, key, terms, portion, .. } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            if let Some(entry) = shard.get_under(hash, &key, &terms) {
                entry.lease.release(&portion);
            }
        }
    }
}

/// The request is not admitted: the units that it holds are put back.
impl Drop for HeldUnits {
    fn drop(&mut self) {
        let mut returns = Vec::new();
        for TakenUnits { hash, key, terms, settings, portion } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            shard.granted = shard.granted.saturating_sub(1);
            match shard.get_under(hash, &key, &terms) {
                Some(entry) => {
                    let mut back = GivenBack::new();
                    entry.lease.release(&portion);
                    entry.lease.put_back(&portion, &mut back);
                    returns.extend(LeasedState::returns(entry, back));
                }
                None => {
                    let receipt = portion.receipt(&terms.engine);
                    returns.push(Return { key, terms, settings, receipt });
                }
            }
        }
        self.inner.give_back(returns);
    }
}

/// The statistics of this node's leases, for metrics; totals count since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// Keys with units held or with recent requests.
    pub keys: usize,
    /// Units in batches that could be spent now, plus units taken by requests that wait for another limit's engine. The
    /// sum for one key over all nodes is the most by which admissions may exceed the engine's limit.
    pub outstanding: u64,
    /// Units drawn that may not be spent yet.
    pub reserved: u64,
    /// Charges granted out of batches.
    pub granted: u64,
    /// Charges refused without asking the engine.
    pub refused: u64,
    /// Steps decided by the engine, in whole or in part.
    pub central: u64,
    /// Calls to the engine: draws, units given back, and steps that it decided.
    pub messages: u64,
    /// How many of these calls were draws.
    pub draws: u64,
    /// Units drawn.
    pub drawn: u64,
    /// Units given back, because they were not needed in time.
    pub returned: u64,
    /// Units that were sent back, but without an answer, so that it is unknown whether they came back.
    pub burned: u64,
}
