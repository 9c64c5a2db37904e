//! The charges of a check: what is needed to settle it later, and no more.
//!
//! Holds the charges, not the request: policies may change in between, and headers with secrets need not be kept for a
//! report. A key is kept as the bytes that the store uses. They contain the values of `by`, and are never printed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Receipt, Tick};

use crate::policy::{LimitRules, Plan, each_value, policy_of_key};
use tidegate_limits::store::{Charge, DecidedBy, Executed};

/// The charges of one allowed check, filled in by [`Gate::charge`](super::Gate::charge); empty for a refused one.
///
/// Takes two allocations: the keys and, from the second charge on, a list with 104 bytes per charge. Each charge must
/// be settled once, here or by one ticket. This value remembers which of its charges
/// [`Gate::finish`](super::Gate::finish) has settled, and settles none of them twice. A clone or a ticket does
/// not see what happens to the original, and is not a second charge.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Charged {
    pub(super) keys: Box<[u8]>,
    pub(super) lines: SmallVec<[MadeCharge; 1]>,
    /// How long the request was told to wait before its work begins. Guards measure the work without it.
    pub(super) delay: Duration,
}

/// One charge that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MadeCharge {
    /// The range of the key's bytes in [`Charged::keys`].
    pub(super) key: Range<u32>,
    /// The quota that was charged.
    pub(super) quota: Arc<Quota>,
    pub(super) receipt: Receipt,
    /// When the limit would be full again without further charges.
    pub(super) full_at: Tick,
    /// The index of the limit within its policy.
    pub(super) limit: u32,
    /// The rules of the limit, [for the end](LimitRules::for_ending) of the charge.
    pub(super) rules: LimitRules,
    /// Whether the fallback store made the charge in place of an engine.
    pub(super) by_fallback: bool,
    /// Whether the caller brought the quota, see [`Charge::inline_quota`].
    pub(super) inline_quota: bool,
    /// Whether the charge is a [lent](MadeCharge::is_lent) place that was only measured, and refuses nobody.
    pub(super) shadow_place: bool,
    pub(super) settled: SettledOnce,
}

/// A flag that is set if a charge was settled or is being settled.
#[derive(Debug, Default)]
pub(super) struct SettledOnce(AtomicBool);

impl SettledOnce {
    /// Claims the charge for the caller, who must then settle it; `false`: another caller has claimed it.
    pub(super) fn claim(&self) -> bool {
        // Relaxed, here and below: the flag alone decides who may settle the charge, and publishes no other data.
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Gives up the claim, because the charge was not settled after all.
    pub(super) fn reopen(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Clone for SettledOnce {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.0.load(Ordering::Relaxed)))
    }
}

/// Charges are compared by what was charged, whether settled or not.
impl PartialEq for SettledOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SettledOnce {}

/// One charge, as shown to the caller that settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargedLine<'c> {
    /// The name of the policy.
    pub policy: &'c str,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The units or places that were charged.
    pub charged: Cost,
    /// Whether the policy charges failures only: the outcome then decides whether the charge stays.
    pub on_failure: bool,
}

/// The part of a check's charges to settle. Each charge is settled once; those that the outcome decides may be settled
/// separately from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// All charges.
    #[default]
    All,
    /// Charges that the outcome decides: those of policies that charge failures only, and places of guards.
    Outcome,
    /// Charges of limits that count what was spent.
    Spent,
}

impl Charged {
    /// Reports whether nothing was charged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns every charge, in the order of the policies.
    pub fn lines(&self) -> impl Iterator<Item = ChargedLine<'_>> {
        self.lines.iter().map(|made| self.line(made))
    }

    /// Returns every charge with the values of its key, in the order of `by`, an absent one as `None`. They are what
    /// callers sent.
    pub fn keyed_lines(&self) -> impl Iterator<Item = (ChargedLine<'_>, impl Iterator<Item = Option<&str>>)> {
        self.lines.iter().map(|made| (self.line(made), each_value(self.key(made))))
    }

    /// Returns the largest charge among the limits that settle by what was spent, or 0 if there are none: the most that
    /// can be given back.
    #[must_use]
    pub fn refundable(&self) -> u64 {
        self.of(Part::Spent).map(|made| made.receipt.cost.units()).max().unwrap_or(0)
    }

    /// Reports whether any charge waits for an outcome.
    #[must_use]
    pub fn awaits_report(&self) -> bool {
        self.of(Part::Outcome).next().is_some()
    }

    /// Returns only the charges that are wanted, for a short ticket. The other charges are then never settled.
    #[must_use]
    pub fn only(&self, mut wanted: impl FnMut(&ChargedLine<'_>) -> bool) -> Self {
        let lines = self.lines.iter().filter(|made| wanted(&self.line(made))).cloned().collect();
        Self { keys: self.keys.clone(), lines, delay: self.delay }
    }

    /// Says that the work begins `delay` after the charge, or later: for a request that waits longer than its decision says,
    /// such as one that two gates delay. Guards measure the work without that time.
    pub fn delay_at_least(&mut self, delay: Duration) {
        self.delay = self.delay.max(delay);
    }

    /// Returns how long the work took that was admitted at `made` and ended at `ended`, without the time that it was
    /// told to wait. A caller who did not wait, as its end shows, began at once.
    pub(super) fn duration(&self, made: Tick, ended: Tick) -> Duration {
        let since_made = ended.since(made);
        since_made.checked_sub(self.delay).unwrap_or(since_made)
    }

    pub(super) fn of(&self, part: Part) -> impl Iterator<Item = &MadeCharge> + Clone {
        self.lines.iter().filter(move |made| made.is_in(part))
    }

    /// Returns the charges that are places of guards.
    pub(super) fn places(&self) -> impl Iterator<Item = &MadeCharge> + Clone {
        self.lines.iter().filter(|made| made.is_place())
    }

    pub(super) fn key(&self, made: &MadeCharge) -> &[u8] {
        &self.keys[made.key.start as usize..made.key.end as usize]
    }

    /// Returns the name of the policy of a charge, which its key begins with.
    pub(super) fn policy(&self, made: &MadeCharge) -> &str {
        policy_of_key(self.key(made)).unwrap_or_default()
    }

    pub(super) fn line<'c>(&'c self, made: &MadeCharge) -> ChargedLine<'c> {
        ChargedLine {
            policy: self.policy(made),
            limit: made.limit as usize,
            charged: made.receipt.cost,
            on_failure: made.rules.on_failure,
        }
    }

    /// Returns a charge in the form for stores.
    pub(super) fn charge<'c>(&'c self, made: &'c MadeCharge) -> Charge<'c> {
        Charge {
            binding: false,
            rules: made.rules.charge,
            by_fallback: made.by_fallback,
            inline_quota: made.inline_quota,
            ..Charge::new(self.key(made), &made.quota, made.receipt.cost)
        }
    }

    /// Stores the charges of a plan as they were made.
    fn keep(&mut self, plan: &Plan<'_>, executed: &Executed) {
        let mut keys = Vec::new();
        let lines = plan.lines.iter().zip(&executed.lines);
        for (line, charge_answer, receipt) in
            lines.filter_map(|(line, charge_answer)| Some((line, charge_answer, charge_answer.receipt?)))
        {
            // Keys are made from requests, which are far below 4 GiB.
            let start = keys.len() as u32;
            keys.extend_from_slice(&plan.keys[line.key.clone()]);
            self.lines.push(MadeCharge {
                key: start..keys.len() as u32,
                quota: Arc::clone(line.quota),
                receipt,
                full_at: receipt.at.after(charge_answer.decision.standing.reset_after),
                limit: line.limit as u32,
                rules: line.rules.for_ending(),
                by_fallback: line.by_fallback,
                inline_quota: line.inline_quota,
                shadow_place: !line.binding && is_lent(line.quota),
                settled: SettledOnce::default(),
            });
        }
        (self.keys, self.delay) = (keys.into(), executed.wait);
    }

    pub(super) fn clear(&mut self) {
        (self.keys, self.delay) = (Box::default(), Duration::ZERO);
        self.lines.clear();
    }
}

impl MadeCharge {
    /// Reports whether the charge is a place that is left, rather than units that are spent.
    pub(super) fn is_place(&self) -> bool {
        self.quota.is_guard()
    }

    /// Reports whether the charge is a place that lapses after a time and can be held longer: of a concurrency limit, and
    /// not of a breaker.
    #[cfg(feature = "ticket")]
    pub(super) fn is_lent(&self) -> bool {
        is_lent(&self.quota)
    }

    pub(super) fn is_in(&self, part: Part) -> bool {
        match part {
            Part::All => true,
            Part::Outcome => self.by_outcome(),
            Part::Spent => !self.by_outcome(),
        }
    }

    pub(super) fn by_outcome(&self) -> bool {
        self.rules.on_failure || self.is_place()
    }
}

fn is_lent(quota: &Quota) -> bool {
    matches!(quota, Quota::Concurrency(_) | Quota::Adaptive(_))
}

/// Where a check stores its charges: nowhere, at no cost (`()`), or in a [`Charged`].
pub(super) trait Keep: Send {
    /// Whether receipts are needed.
    const KEEPS: bool;

    /// Called if the check was allowed.
    fn allowed(&mut self, plan: &Plan<'_>, executed: &Executed);
}

/// Keeps the charges of an allowed request, which one store has made.
#[inline(always)]
pub(super) fn keep_allowed<K: Keep>(keep: &mut K, plan: &mut Plan<'_>, executed: &Executed) {
    if K::KEEPS && executed.by == DecidedBy::Fallback {
        plan.lines.iter_mut().for_each(|line| line.by_fallback = true);
    }
    keep.allowed(plan, executed);
}

impl Keep for () {
    const KEEPS: bool = false;

    #[inline(always)]
    fn allowed(&mut self, _: &Plan<'_>, _: &Executed) {}
}

impl Keep for Charged {
    const KEEPS: bool = true;

    fn allowed(&mut self, plan: &Plan<'_>, executed: &Executed) {
        self.keep(plan, executed);
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys are left out, since they contain what callers sent.
        f.debug_list()
            .entries(self.lines.iter().map(|made| (self.policy(made), made.limit, made.receipt.cost)))
            .finish()
    }
}
