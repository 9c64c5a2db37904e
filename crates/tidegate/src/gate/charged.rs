//! What a check charged: enough to settle it later, and no more.
//!
//! The charges themselves, not the request: policies may have changed in between, and headers that hold secrets need not be
//! kept for a report. What is kept of a key are its bytes as the store has them, which hold the values of `by`; they are never
//! printed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Receipt, Tick};

use crate::policy::{Plan, Share, policy_of_key};
use crate::store::{Charge, Durable, Settled};

/// The charges of one allowed check, which [`super::Gate::charge`] fills in; empty for a refused one.
///
/// Two allocations: the keys, and, from the second charge on, 96 bytes per charge. Settle each charge once, here or by one ticket. This
/// value remembers which of its charges [`super::Gate::finish`] has settled, and settles none of them twice; a clone or a ticket of it does
/// not know what becomes of the original, and is no second charge.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Charged {
    pub(super) keys: Box<[u8]>,
    pub(super) lines: SmallVec<[Made; 1]>,
}

/// One charge that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// Where the key stands in [`Charged::keys`].
    pub(super) key: Range<u32>,
    /// The limit it was made under.
    pub(super) quota: Arc<Quota>,
    pub(super) receipt: Receipt,
    /// When the limit would be full again if nothing followed.
    pub(super) full_at: Tick,
    /// The limit's place in its policy.
    pub(super) limit: u32,
    /// Whether the outcome decides if the charge stays.
    pub(super) on_failure: bool,
    /// The number of its policy, see [`Charge::owner`].
    pub(super) owner: u32,
    /// The `share:` word of its policy, which chooses the store that settles it.
    pub(super) share: Option<Share>,
    /// Whether it was made by the store that stands in for an engine.
    pub(super) by_fallback: bool,
    /// When what ends the charge has to be on disk.
    pub(super) durable: Durable,
    /// Whether the caller had brought the quota, see [`Charge::passing`].
    pub(super) passing: bool,
    pub(super) settled: SettledOnce,
}

/// Whether a charge was settled, or is being settled.
#[derive(Debug, Default)]
pub(super) struct SettledOnce(AtomicBool);

impl SettledOnce {
    /// Claims the charge for the caller, who settles it; `false` where somebody else has.
    pub(super) fn claim(&self) -> bool {
        // Relaxed, all three: the flag alone says who may settle it, and publishes nothing.
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Gives up the claim: the charge was not settled after all.
    pub(super) fn reopen(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Clone for SettledOnce {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.0.load(Ordering::Relaxed)))
    }
}

/// Charges are equal by what was charged, settled or not.
impl PartialEq for SettledOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SettledOnce {}

/// One charge, as it is shown to whoever settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargedLine<'c> {
    /// The policy it was made for.
    pub policy: &'c str,
    /// The limit's place in its policy.
    pub limit: usize,
    /// What was charged.
    pub charged: Cost,
    /// Whether the policy charges failures only: the outcome then decides whether the charge stays.
    pub on_failure: bool,
}

/// Which charges of a check are settled. Each is settled once; those that the outcome decides and the others may be settled apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of them.
    #[default]
    All,
    /// Those whose outcome says what becomes of them: of policies that charge failures only, and places of guards.
    Outcome,
    /// Those of limits that count what was spent.
    Spent,
}

impl Charged {
    /// Says whether nothing was charged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns every charge, in the order of the policies.
    pub fn lines(&self) -> impl Iterator<Item = ChargedLine<'_>> {
        self.lines.iter().map(|made| self.line(made))
    }

    /// Returns the most that one limit was charged, among the limits that settle by what was spent; 0 if there are none. No more than that
    /// can come back.
    #[must_use]
    pub fn refundable(&self) -> u64 {
        self.of(Part::Spent).map(|made| made.receipt.cost.units()).max().unwrap_or(0)
    }

    /// Says whether any charge waits for an outcome.
    #[must_use]
    pub fn awaits_report(&self) -> bool {
        self.of(Part::Outcome).next().is_some()
    }

    /// Returns the charges that are wanted, without the others: for a ticket that is to be short. Nobody settles the others then.
    #[must_use]
    pub fn only(&self, mut wanted: impl FnMut(&ChargedLine<'_>) -> bool) -> Self {
        let lines = self.lines.iter().filter(|made| wanted(&self.line(made))).cloned().collect();
        Self { keys: self.keys.clone(), lines }
    }

    pub(super) fn of(&self, part: Part) -> impl Iterator<Item = &Made> + Clone {
        self.lines.iter().filter(move |made| match part {
            Part::All => true,
            Part::Outcome => made.by_outcome(),
            Part::Spent => !made.by_outcome(),
        })
    }

    /// The charges that are places of guards.
    pub(super) fn places(&self) -> impl Iterator<Item = &Made> + Clone {
        self.lines.iter().filter(|made| made.is_place())
    }

    pub(super) fn key(&self, made: &Made) -> &[u8] {
        &self.keys[made.key.start as usize..made.key.end as usize]
    }

    /// Returns the name of the policy that a charge was made for: the start of its key.
    pub(super) fn policy(&self, made: &Made) -> &str {
        policy_of_key(self.key(made)).unwrap_or_default()
    }

    pub(super) fn line<'c>(&'c self, made: &Made) -> ChargedLine<'c> {
        ChargedLine {
            policy: self.policy(made),
            limit: made.limit as usize,
            charged: made.receipt.cost,
            on_failure: made.on_failure,
        }
    }

    /// Returns a charge in the form that stores take.
    pub(super) fn charge<'c>(&'c self, made: &'c Made) -> Charge<'c> {
        Charge {
            binding: false,
            owner: made.owner,
            by_fallback: made.by_fallback,
            durable: made.durable,
            passing: made.passing,
            ..Charge::new(self.key(made), &made.quota, made.receipt.cost)
        }
    }

    /// Keeps the charges of a plan as they were settled.
    fn keep(&mut self, plan: &Plan<'_>, settled: &Settled) {
        let mut keys = Vec::new();
        let lines = plan.lines.iter().zip(&settled.lines);
        for (line, settlement, receipt) in
            lines.filter_map(|(line, settlement)| Some((line, settlement, settlement.receipt?)))
        {
            // Keys are made of requests, which are far below 4 GiB.
            let start = keys.len() as u32;
            keys.extend_from_slice(&plan.keys[line.key.clone()]);
            self.lines.push(Made {
                key: start..keys.len() as u32,
                quota: Arc::clone(line.quota),
                receipt,
                full_at: receipt.at.after(settlement.decision.standing.reset_after),
                limit: line.limit as u32,
                on_failure: line.on_failure,
                owner: line.owner,
                share: line.share,
                by_fallback: line.by_fallback,
                durable: line.durable,
                passing: line.passing,
                settled: SettledOnce::default(),
            });
        }
        self.keys = keys.into();
    }

    pub(super) fn clear(&mut self) {
        self.keys = Box::default();
        self.lines.clear();
    }
}

impl Made {
    /// Says whether the charge is a place that is left, and not units that are spent.
    pub(super) fn is_place(&self) -> bool {
        self.quota.is_guard()
    }

    fn by_outcome(&self) -> bool {
        self.on_failure || self.is_place()
    }
}

/// Who keeps what a check charges: nobody, at no cost, or a [`Charged`].
pub(super) trait Keep: Send {
    /// Whether receipts are wanted at all.
    const KEEPS: bool;

    /// Called when it was allowed.
    fn allowed(&mut self, plan: &Plan<'_>, settled: &Settled);
}

impl Keep for () {
    const KEEPS: bool = false;

    #[inline(always)]
    fn allowed(&mut self, _: &Plan<'_>, _: &Settled) {}
}

impl Keep for Charged {
    const KEEPS: bool = true;

    fn allowed(&mut self, plan: &Plan<'_>, settled: &Settled) {
        self.keep(plan, settled);
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the keys, which hold what callers sent.
        f.debug_list()
            .entries(self.lines.iter().map(|made| (self.policy(made), made.limit, made.receipt.cost)))
            .finish()
    }
}
