//! Settles by reported usage: each policy computes its real cost from the usage, the charges are settled with that
//! cost, and policies that learn an estimate learn it.
//!
//! The order is the same for an admission that is finished in place and for a ticket: compute the real costs, settle,
//! then learn. So a settlement that fails, or is repeated, teaches and counts nothing.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Outcome;

#[cfg(feature = "ticket")]
use super::waits::{Waits, run_without_waiting};
use super::{Admission, ChargedLine, Gate, Part};
#[cfg(feature = "ticket")]
use super::{
    Finished, SettledCharge,
    ticket::{OpenTicket, TicketError},
};
#[cfg(feature = "ticket")]
use crate::policy::CostError;
use crate::policy::{PolicySet, RealCost, Usage};
use tidegate_limits::store::StoreError;

/// The charges that were settled by usage, in the order of the policies, each with the reason if its real cost could
/// not be computed.
#[cfg(feature = "ticket")]
pub type FinishedBy<'c> = SmallVec<[(SettledCharge<'c>, Option<CostError>); 2]>;

/// The real cost of the work under the policy of each charge, in the order of the charges.
struct RealCosts<'p> {
    policies: &'p PolicySet,
    /// The policy's index in the set, if the policy still exists.
    costs: SmallVec<[(Option<usize>, RealCost); 4]>,
}

impl<'p> RealCosts<'p> {
    fn of<'c>(
        policies: &'p PolicySet,
        usage: &Usage<'_>,
        lines: impl Iterator<Item = ChargedLine<'c>>,
    ) -> Self {
        let cost = |line: ChargedLine<'c>| match policies.find(line.policy) {
            Some((at, policy)) => (Some(at), policy.real_cost(usage)),
            None => (None, RealCost::AsCharged),
        };
        Self { policies, costs: lines.map(cost).collect() }
    }

    /// Returns the callback for [`Gate::finish`], which calls it once per charge, in order.
    fn used(&self) -> impl FnMut(&ChargedLine<'_>) -> Option<u64> {
        let mut costs = self.costs.iter();
        move |_| match costs.next() {
            Some((_, RealCost::Units(units))) => Some(*units),
            Some((_, RealCost::AsCharged | RealCost::Unknown(_))) | None => None,
        }
    }

    /// Teaches the policies the real costs, and adds to each charge the reason if its real cost could not be computed.
    #[cfg(feature = "ticket")]
    fn concluded<'c>(&self, settled: Finished<'c>) -> FinishedBy<'c> {
        self.teach();
        let why = |cost: &RealCost| if let RealCost::Unknown(why) = cost { Some(why.clone()) } else { None };
        settled.into_iter().zip(&self.costs).map(|(one, (_, cost))| (one, why(cost))).collect()
    }

    /// Teaches each policy the cost of the work under it, once per policy, however many limits it has: the charges of a
    /// policy are adjacent. Counts the costs that could not be computed.
    fn teach(&self) {
        for (at, cost) in &self.costs {
            if let (Some(at), RealCost::Unknown(why)) = (at, cost) {
                self.policies.note_unsettled(*at, why);
            }
        }
        for costs in self.costs.chunk_by(|one, next| one.0 == next.0) {
            if let Some((Some(at), RealCost::Units(units))) = costs.first() {
                self.policies.learn(*at, *units);
            }
        }
    }
}

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Ends the admission by the usage that the work reported, such as `llm.output`. Each policy computes its real cost
    /// from the usage ([`Policy::real_cost`](crate::Policy::real_cost)) and settles it, under the policies of the
    /// admission; policies that learn an estimate learn it. A charge stays as it was made if no usage for its policy
    /// was reported, or if the usage yields no valid cost. [`PolicySet::check_usage`](crate::PolicySet::check_usage)
    /// reports names that no policy uses.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not settle it; see [A store that fails](Admission#a-store-that-fails). In that
    /// case nothing is learned.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Entry;
    /// use tidegate::policy::{Limit, SettleBy, SettleRule, Usage};
    /// use tidegate::{Cost, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let requests = Policy::new("requests", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// let gate = Gate::in_memory(PolicySet::new(vec![requests, tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new())? else { panic!("a full limit") };
    /// call.finish_by(Outcome::Success, &Usage::default().with("llm.output", 300))?;
    /// let left = |limit: usize| gate.peek(&Descriptor::new()).unwrap().limits[limit].decision.standing.remaining;
    /// assert_eq!([left(0), left(1)], [59, 700]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish_by(self, outcome: Outcome, usage: &Usage<'_>) -> Result<(), StoreError> {
        let policies = Arc::clone(&self.policies);
        let real = RealCosts::of(&policies, usage, self.charged().lines());
        self.finish_with(outcome, real.used())?;
        real.teach();
        Ok(())
    }

    /// Ends the admission like [`Admission::finish_by`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Admission::finish_by`].
    ///
    /// # Cancel safety
    /// As [`Admission::finish_async`]; nothing is learned then.
    pub async fn finish_by_async(self, outcome: Outcome, usage: &Usage<'_>) -> Result<(), StoreError> {
        let policies = Arc::clone(&self.policies);
        let real = RealCosts::of(&policies, usage, self.charged().lines());
        self.finish_with_async(outcome, real.used()).await?;
        real.teach();
        Ok(())
    }

    /// Ends the admission without waiting: what an engine must be asked for is settled in the background
    /// ([`Gate::with_background`]). For work whose end nobody awaits: an answer that is streamed, or work that is dropped
    /// because its time is up. `usage` is what the work reported, if anything; see [`Admission::finish_by`].
    ///
    /// With [`Outcome::Ignored`] it is unknown how the work ended, as for an admission that is dropped: places are left
    /// without an outcome, and charges of policies that charge failures only stay, because a caller could otherwise undo
    /// them by hanging up. Unlike a drop, this settles what was reported.
    ///
    /// # Errors
    /// The [`StoreError`] of a store that answered at once. A failure in the background is told to nobody: the charges
    /// then stay until time returns them, and places until their time to live is over.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Entry;
    /// use tidegate::policy::{Limit, SettleBy, SettleRule, Usage};
    /// use tidegate::{Check, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
    ///
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Cost));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let request = Descriptor::new();
    /// let Entry::Admitted(stream) = gate.admit(Check::of(&request).cost(800))? else { panic!("800 of 1000") };
    /// stream.finish_unwatched(Outcome::Ignored, Some(&Usage::cost(300)))?; // its reader hung up after 300 tokens
    /// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 700);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish_unwatched(self, outcome: Outcome, usage: Option<&Usage<'_>>) -> Result<(), StoreError> {
        let part = if outcome == Outcome::Ignored { Part::Spent } else { Part::All };
        let Some(usage) = usage else { return self.end_unwatched(part, outcome, |_| None) };
        let policies = Arc::clone(&self.policies);
        let lines = self.charged().of(part).map(|made| self.charged().line(made));
        let real = RealCosts::of(&policies, usage, lines);
        self.end_unwatched(part, outcome, real.used())?;
        real.teach();
        Ok(())
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
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new())? else { panic!("a full limit") };
    /// let ticket = call.into_ticket(&keys, Duration::from_secs(600)).map_err(|refused| refused.0)?;
    ///
    /// let open = keys.open(&ticket, gate.now())?;
    /// let usage = Usage::default().with("llm.output", 300);
    /// let settled = gate.settle_by(&open, Part::All, Outcome::Success, &usage)?;
    /// assert_eq!((settled[0].0.used, &settled[0].1), (300, &None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &Usage<'_>,
    ) -> Result<FinishedBy<'t>, TicketError> {
        run_without_waiting(self.settle_by_usage(ticket, part, outcome, usage, Waits::No))
    }

    /// Settles a ticket like [`Gate::settle_by`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::settle_by`].
    ///
    /// # Cancel safety
    /// As [`Gate::settle_async`]; nothing is learned then.
    pub async fn settle_by_async<'t>(
        &self,
        ticket: &'t OpenTicket,
        part: Part,
        outcome: Outcome,
        usage: &Usage<'_>,
    ) -> Result<FinishedBy<'t>, TicketError> {
        self.settle_by_usage(ticket, part, outcome, usage, Waits::Yes).await
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
        Ok(real.concluded(settled))
    }
}
