//! Settles by reported usage: each policy computes its real cost from the usage, the charges are settled with that
//! cost, and policies that learn an estimate learn it.
//!
//! The order is the same for an admission that is finished in place and for a ticket: compute the real costs, settle,
//! then learn. So a settlement that fails, or is repeated, teaches and counts nothing.

use smallvec::SmallVec;
#[cfg(feature = "ticket")]
use tidegate_core::Outcome;

#[cfg(feature = "ticket")]
use super::waits::Waits;
use super::{Charged, ChargedLine, Part};
#[cfg(feature = "ticket")]
use super::{
    Finished, Gate, SettledCharge,
    ticket::{OpenTicket, TicketError},
};
#[cfg(feature = "ticket")]
use crate::policy::CostError;
use crate::policy::{PolicySet, RealCost, Usage};

/// The charges that were settled by usage, in the order of the policies, each with the reason if its real cost could
/// not be computed.
#[cfg(feature = "ticket")]
pub type FinishedBy<'c> = SmallVec<[(SettledCharge<'c>, Option<CostError>); 2]>;

/// The real cost of the work under the policy of each charge, in the order of the charges.
pub(super) struct RealCosts {
    /// The policy's index in the set, if the policy still exists.
    costs: SmallVec<[(Option<usize>, RealCost); 4]>,
}

impl RealCosts {
    pub(super) fn of<'c>(
        policies: &PolicySet,
        usage: &Usage<'_>,
        lines: impl Iterator<Item = ChargedLine<'c>>,
    ) -> Self {
        let cost = |line: ChargedLine<'c>| match policies.find(line.policy) {
            Some((at, policy)) => (Some(at), policy.real_cost(usage)),
            None => (None, RealCost::AsCharged),
        };
        Self { costs: lines.map(cost).collect() }
    }

    /// Forgets the costs of charges that are in no part to be settled.
    pub(super) fn keep_only(&mut self, charged: &Charged, part: Part) {
        let mut is_wanted = charged.lines.iter().map(|made| made.is_in(part));
        self.costs.retain(|_| is_wanted.next().unwrap_or_default());
    }

    /// Returns the callback for [`Gate::finish`], which calls it once per charge, in order.
    pub(super) fn used(&self) -> impl FnMut(&ChargedLine<'_>) -> Option<u64> {
        let mut costs = self.costs.iter();
        move |_| match costs.next() {
            Some((_, RealCost::Units(units))) => Some(*units),
            Some((_, RealCost::AsCharged | RealCost::Unknown(_))) | None => None,
        }
    }

    /// Teaches the policies the real costs, and adds to each charge the reason if its real cost could not be computed.
    #[cfg(feature = "ticket")]
    fn concluded<'c>(&self, policies: &PolicySet, settled: Finished<'c>) -> FinishedBy<'c> {
        self.teach(policies);
        let why = |cost: &RealCost| if let RealCost::Unknown(why) = cost { Some(why.clone()) } else { None };
        settled.into_iter().zip(&self.costs).map(|(one, (_, cost))| (one, why(cost))).collect()
    }

    /// Teaches each policy the cost of the work under it, once per policy, however many limits it has: the charges of a
    /// policy are adjacent. Counts the costs that could not be computed.
    pub(super) fn teach(&self, policies: &PolicySet) {
        for (at, cost) in &self.costs {
            if let (Some(at), RealCost::Unknown(why)) = (at, cost) {
                policies.note_unsettled(*at, why);
            }
        }
        for costs in self.costs.chunk_by(|one, next| one.0 == next.0) {
            if let Some((Some(at), RealCost::Units(units))) = costs.first() {
                policies.learn(*at, *units);
            }
        }
    }
}

#[cfg(feature = "ticket")]
impl Gate {
    /// Settles a ticket by the usage that the work reported.
    pub(super) async fn settle_by_usage<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &Usage<'_>,
        waits: Waits,
    ) -> Result<FinishedBy<'t>, TicketError> {
        let policies = self.policies();
        let charged = ticket.charged();
        let real = RealCosts::of(&policies, usage, charged.of(part).map(|made| charged.line(made)));
        let settled = self.settle_ticket(ticket, part, outcome, real.used(), waits).await?;
        Ok(real.concluded(&policies, settled))
    }
}
