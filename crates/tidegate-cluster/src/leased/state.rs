//! The state that the clones of a leased store share: the engine, the terms, the table of keys, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::time::nanos;
use tidegate_limits::Background;
use tidegate_limits::clock::Clock;
use tidegate_limits::store::{Charge, Executed, Execution, OwnedStep, Step, StepAnswer, Store};

use super::asking::LeaseHealth;
use super::leasable::{AllTerms, Terms};
use super::table::LeaseTable;
use crate::Part;

#[derive(Debug)]
pub(super) struct LeasedState {
    pub(super) engine: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) part: Part,
    pub(super) terms: AllTerms,
    pub(super) table: LeaseTable,
    pub(super) background: Background,
    /// Whether units are drawn.
    pub(super) draws: AtomicBool,
    pub(super) counts: LeaseCounters,
    /// How long the engine takes to answer, in nanoseconds.
    pub(super) round_trip: AtomicU64,
}

/// A request waits this many round trips for a draw: after that, it is lost, or the engine is busy.
const ROUND_TRIPS: u32 = 2;

/// Counters of calls to the engine. Relaxed throughout: they are statistics.
#[derive(Debug, Default)]
pub(super) struct LeaseCounters {
    pub(super) numbers: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) draws: AtomicU64,
    pub(super) drawn: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) burned: AtomicU64,
    pub(super) central: AtomicU64,
}

/// The terms of the charges of a step; `None` for limits that are not leased.
pub(super) type TermsOfLines = SmallVec<[Option<Arc<Terms>>; 4]>;

impl LeasedState {
    /// Returns how long requests wait for a draw before they ask the engine themselves: the target time of a draw, or
    /// a few round trips if the engine is far away.
    pub(super) fn patience(&self, terms: &Terms) -> Duration {
        terms.target.max(self.round_trip().saturating_mul(ROUND_TRIPS))
    }

    /// Returns how long the engine takes to answer; zero before its first answer.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Notes how long the engine took to answer. The time falls at once and rises slowly: one slow answer is not a
    /// distance.
    pub(super) fn took(&self, took: Duration) {
        // Relaxed: a number by itself, and one that is lost is followed by others.
        let (took, before) = (nanos(took), self.round_trip.load(Ordering::Relaxed));
        let next = match before {
            0 => took,
            _ if took <= before => took,
            _ => before.saturating_add((took - before).div_ceil(8)),
        };
        self.round_trip.store(next, Ordering::Relaxed);
    }

    /// Returns the terms of each charge; `None` for a quota that holds for one step only, which is not leased.
    pub(super) fn terms_of(&self, step: &Step<'_>) -> TermsOfLines {
        let of = |charge: &Charge<'_>| if charge.inline_quota { None } else { self.terms.of(charge.quota) };
        step.charges.iter().map(of).collect()
    }

    pub(super) fn health(&self) -> LeaseHealth {
        let now = self.clock.now();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut health = LeaseHealth {
            messages: count(&self.counts.messages),
            draws: count(&self.counts.draws),
            drawn: count(&self.counts.drawn),
            returned: count(&self.counts.returned),
            burned: count(&self.counts.burned),
            central: count(&self.counts.central),
            ..LeaseHealth::default()
        };
        for mut shard in self.table.shards() {
            health.keys += shard.len();
            health.granted += shard.granted;
            health.refused += shard.refused;
            for entry in shard.entries() {
                health.outstanding += entry.lease.outstanding(now);
                health.reserved += entry.lease.reserved(now);
            }
        }
        health
    }
}

pub(super) async fn ask(engine: &dyn Store, step: &OwnedStep) -> StepAnswer {
    let mut executed = Executed::default();
    let execution = step.with(|step| engine.execute_into(step, &mut executed));
    match execution {
        Execution::Done(done) => done.map(|()| executed),
        Execution::Later(later) => later.await,
    }
}

pub(super) async fn ask_each(engine: &dyn Store, steps: &[&OwnedStep]) -> Vec<StepAnswer> {
    let mut answers = Vec::with_capacity(steps.len());
    let later = OwnedStep::with_each(steps, |steps| engine.execute_each(steps, &mut answers));
    match later {
        None => answers,
        Some(later) => later.await,
    }
}

pub(super) fn by_the_engine<'s>(step: &Step<'s>, terms: &'s TermsOfLines) -> SmallVec<[Charge<'s>; 4]> {
    let both = step.charges.iter().zip(terms);
    both.map(|(charge, terms)| match terms {
        Some(terms) => Charge { quota: &terms.engine, ..*charge },
        None => *charge,
    })
    .collect()
}

/// Replaces the engine's limits in an answer by the limits that callers named.
pub(super) fn widen(executed: &mut Executed, terms: &TermsOfLines) {
    for (line, terms) in executed.lines.iter_mut().zip(terms) {
        if let Some(terms) = terms {
            line.decision.standing.limit = terms.limit;
        }
    }
}

/// Leaves out receipts that were not asked for, of limits of which nodes may hold what is missing at the engine: what a
/// caller who goes away was charged comes back at the rate only ([`super::allowance`]).
pub(super) fn keep_abandoned(receipts: bool, executed: &mut Executed, terms: &TermsOfLines) {
    for (line, terms) in executed.lines.iter_mut().zip(terms) {
        let held = terms.as_ref().is_some_and(|terms| terms.may_be_held_beyond());
        line.receipt = line.receipt.filter(|_| receipts || !held);
    }
}
