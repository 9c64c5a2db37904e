//! What a check charged: enough to give it back or to keep it later, and no more.
//!
//! The charges themselves, not the request: policies may have changed in between, and headers that hold secrets need not be
//! kept for a report. What is kept of a key are its bytes as the store has them, which hold the values of `by`; they are never
//! printed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Tick};

use super::marks::{Mark, Marks};
use crate::policy::{Plan, policy_of_key};
use crate::store::{Charge, Settled};

/// The charges of one allowed check, as [`super::Gate::charge`] fills it in; empty for a refused one.
///
/// Two allocations, of the keys and, from the second charge on, of 80 bytes per charge. Give it back or report it once: a gate does
/// not remember which were.
#[derive(Clone, Default)]
pub struct Charged {
    keys: Box<[u8]>,
    lines: SmallVec<[Made; 1]>,
}

/// One charge that was made.
#[derive(Clone, Debug)]
pub(super) struct Made {
    key: Range<u32>,
    /// The limit it was made under.
    pub(super) quota: Arc<Quota>,
    pub(super) cost: Cost,
    /// When the limit would be full again if nothing followed.
    pub(super) full_at: Tick,
    /// The limit's place in its policy.
    pub(super) limit: u32,
    /// Whether a report decides if it stays.
    pub(super) on_failure: bool,
    /// The number of its policy, see [`Charge::owner`].
    owner: u32,
    pub(super) mark: Mark,
}

impl Charged {
    /// Says whether nothing was charged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the most that one limit was charged, of those that a refund gives back; 0 where there are none.
    #[must_use]
    pub fn refundable(&self) -> u64 {
        self.of(false).map(|made| made.cost.units()).max().unwrap_or(0)
    }

    /// Says whether any charge waits for a report.
    #[must_use]
    pub fn awaits_report(&self) -> bool {
        self.of(true).next().is_some()
    }

    /// Returns how many bytes it takes, itself left out.
    #[must_use]
    pub fn weight(&self) -> usize {
        let lines = if self.lines.spilled() { self.lines.capacity() * size_of::<Made>() } else { 0 };
        self.keys.len() + lines
    }

    /// The charges that a report decides about, or those that a refund gives back: no charge is both.
    pub(super) fn of(&self, on_failure: bool) -> impl Iterator<Item = &Made> + Clone {
        self.lines.iter().filter(move |made| made.on_failure == on_failure)
    }

    pub(super) fn key(&self, made: &Made) -> &[u8] {
        &self.keys[made.key.start as usize..made.key.end as usize]
    }

    /// Returns the name of the policy that a charge was made for: the start of its key.
    pub(super) fn policy(&self, made: &Made) -> &str {
        policy_of_key(self.key(made)).unwrap_or_default()
    }

    /// Returns a charge as stores take it.
    pub(super) fn charge<'c>(&'c self, made: &'c Made) -> Charge<'c> {
        Charge { binding: false, owner: made.owner, ..Charge::new(self.key(made), &made.quota, made.cost) }
    }

    /// Keeps what was settled of a plan.
    fn keep(&mut self, plan: &Plan<'_>, marks: &[Mark], settled: &Settled) {
        let mut keys = Vec::new();
        let lines = plan.lines.iter().zip(marks).zip(&settled.lines);
        let spent = lines
            .filter_map(|((line, mark), settlement)| Some((line, mark, settlement, settlement.receipt?)));
        for (line, mark, settlement, receipt) in spent {
            // Keys are made of requests, which are far below 4 GiB.
            let start = keys.len() as u32;
            keys.extend_from_slice(&plan.keys[line.key.clone()]);
            self.lines.push(Made {
                key: start..keys.len() as u32,
                quota: Arc::clone(line.quota),
                cost: line.cost,
                full_at: receipt.at.after(settlement.decision.standing.reset_after),
                limit: line.limit as u32,
                on_failure: line.on_failure,
                owner: line.owner,
                mark: *mark,
            });
        }
        self.keys = keys.into();
    }

    pub(super) fn clear(&mut self) {
        self.keys = Box::default();
        self.lines.clear();
    }
}

/// Who keeps what a check charges: nobody, at no cost, or a [`Charged`].
pub(super) trait Keep {
    /// Called before the plan is settled.
    fn before(&mut self, plan: &Plan<'_>, marks: &Marks);

    /// Called when it was allowed.
    fn allowed(&mut self, plan: &Plan<'_>, settled: &Settled);
}

impl Keep for () {
    #[inline(always)]
    fn before(&mut self, _: &Plan<'_>, _: &Marks) {}

    #[inline(always)]
    fn allowed(&mut self, _: &Plan<'_>, _: &Settled) {}
}

/// A [`Charged`] that is to be filled, and the marks of its keys from before.
pub(super) struct Keeping<'c> {
    pub(super) charged: &'c mut Charged,
    pub(super) marks: SmallVec<[Mark; 4]>,
}

impl Keep for Keeping<'_> {
    fn before(&mut self, plan: &Plan<'_>, marks: &Marks) {
        self.marks.extend(plan.lines.iter().map(|line| marks.of(&plan.keys[line.key.clone()])));
    }

    fn allowed(&mut self, plan: &Plan<'_>, settled: &Settled) {
        self.charged.keep(plan, &self.marks, settled);
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the keys, which hold what callers sent.
        f.debug_list()
            .entries(self.lines.iter().map(|made| (self.policy(made), made.limit, made.cost)))
            .finish()
    }
}
