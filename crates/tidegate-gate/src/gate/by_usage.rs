//! Settles by reported usage: each policy computes its real cost from the usage, the charges are settled with that
//! cost, and policies that learn an estimate learn it.
//!
//! The order is the same for an admission that is finished in place and for a ticket: compute the real costs, settle,
//! then learn. So a settlement that fails, or is repeated, teaches and counts nothing.

use smallvec::SmallVec;
#[cfg(feature = "ticket")]
use tidegate_core::Outcome;

#[cfg(feature = "ticket")]
use super::waits::{Asking, Waits};
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
    /// Settles a ticket like [`Gate::settle`], by the usage that the work reported. Each policy in force computes its
    /// real cost from the usage ([`Policy::real_cost`](crate::Policy::real_cost)) and settles it; policies that learn
    /// an estimate learn it.
    ///
    /// A charge stays as it was made if no usage for its policy was reported, or if the usage yields no valid cost; in
    /// the latter case the reason is returned with the charge. [`PolicySet::check_usage`] reports names that no policy
    /// uses.
    ///
    /// # Errors
    /// As [`Gate::settle`]; nothing is learned then.
    ///
    /// # Cancel safety
    /// As [`Gate::settle`]; nothing is learned then.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::gate::ticket::TicketKeys;
    /// use tidegate::gate::{Entry, Part};
    /// use tidegate::policy::{Limit, SettleBy, SettleRule, Usage};
    /// use tidegate::{Cost, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let keys = TicketKeys::random()?;
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new()).now()? else { panic!("a full limit") };
    /// let ticket = call.into_ticket(&keys, Duration::from_secs(600)).map_err(|refused| refused.0)?;
    ///
    /// let open = keys.open(&ticket, gate.now())?;
    /// let usage = Usage::default().with("llm.output", 300);
    /// let settled = gate.settle_by(&open, Part::All, Outcome::Success, &usage).now()?;
    /// assert_eq!((settled[0].0.used, &settled[0].1), (300, &None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by<'a, 't: 'a, 'u: 'a>(
        &'a self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &'a Usage<'u>,
    ) -> Asking<'a, Result<FinishedBy<'t>, TicketError>> {
        Asking::new(move |waits| self.settle_by_usage(ticket, part, outcome, usage, waits))
    }

    async fn settle_by_usage<'t>(
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
