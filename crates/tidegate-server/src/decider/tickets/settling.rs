//! Settles the charges of a decision, by its ticket or by undoing it. The server keeps no state for this: the ticket
//! holds what was charged, and the store knows which were settled.

use tidegate::gate::ticket::{OpenTicket, Ticket, TicketError};
use tidegate::gate::{Charged, ChargedLine, Fate, FinishedBy, Part, SettledCharge};
use tidegate::policy::{CostError, Limit, Policy, SettleBy, UnknownUsage, Usage};
use tidegate::{Cost, Outcome};
use ulid::Ulid;

use super::Tickets;
use crate::active_config::ActiveConfig;
use crate::metrics::{SettlementResult, count_units};

/// The report about the work that a ticket was for.
#[derive(Debug)]
pub(crate) struct Settlement<'a> {
    pub(crate) part: Part,
    pub(crate) outcome: Outcome,
    pub(crate) spent: Spent<'a>,
}

/// The units that the work took.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and it never leaves the stack")]
pub(crate) enum Spent<'a> {
    /// As many as were charged.
    AsCharged,
    /// None: the work was not done.
    Undone,
    /// Less than was charged, by up to this many units of each charge; with `None`, by all of them.
    Refund(Option<Cost>),
    /// Each policy works out its units from it.
    Usage(Usage<'a>),
}

/// The result of settling a ticket.
#[derive(Debug)]
pub(crate) struct SettledTicket<'a> {
    pub(crate) id: Ulid,
    /// Each charge, and why its real cost could not be worked out.
    pub(crate) charges: &'a [(SettledCharge<'a>, Option<CostError>)],
    /// The part that was settled: less than was asked for if the other half was settled before.
    pub(crate) part: Part,
    /// Whether a reported cost determines any of the charges.
    pub(crate) by_cost: bool,
    /// The names of the values that determine charges, in order.
    pub(crate) by_values: Vec<&'a str>,
    /// Whether the outcome decides any charge, settled or not.
    pub(crate) awaits_outcome: bool,
    /// Whether a report of what was spent decides any charge, settled or not.
    pub(crate) awaits_spent: bool,
}

/// Why nothing was settled.
#[derive(Debug)]
pub(crate) enum SettleError {
    Ticket(TicketError),
    /// A value was reported that no policy uses.
    Unknown(UnknownUsage),
    /// A refund of a decision whose charges are all settled by the outcome, whether that has been reported or not.
    AwaitsReport(Ulid),
    /// The refund is larger than the charge.
    TooMuch {
        id: Ulid,
        charged: u64,
    },
}

impl From<TicketError> for SettleError {
    fn from(error: TicketError) -> Self {
        Self::Ticket(error)
    }
}

fn goes_by_spent(policy: &Policy, limit: usize) -> bool {
    !policy.charges_failures() && !policy.limit(limit).is_some_and(Limit::is_guard)
}

/// Returns whether a policy settles by the reported `cost`.
fn goes_by_cost(policy: &Policy) -> bool {
    match &policy.settle {
        Some(rule) => matches!(rule.by, SettleBy::Cost),
        None => policy.cost.is_none(),
    }
}

impl Tickets {
    /// Undoes the charges of a decision.
    pub(crate) async fn undo(&self, held: &Charged) {
        let undone = self.base.gate.finish(held, Part::All, Outcome::Ignored, |_| Some(0)).await;
        if let Err(error) = undone {
            self.base.count_store_error();
            tracing::warn!(%error, "the charge of a decision could not be given back");
        }
    }

    /// Undoes the charges of a decision whose caller has gone, without waiting: an engine is told in the
    /// background.
    pub(crate) fn undo_unwatched(&self, held: &Charged) {
        self.base.gate.undo_unwatched(held);
    }

    /// A ticket reached nobody: its request is not in flight any more. Its charges stay.
    pub(crate) fn withdraw(&self, ticket: &Ticket) {
        if let Ok(open) = self.seal.keys.open(ticket, self.base.now()) {
            self.base.gate.tickets().withdraw(&open);
        }
    }

    /// Settles a ticket, at most once. Passes the results to `answer`.
    ///
    /// # Errors
    /// [`SettleError`]: nothing was returned or booked.
    pub(crate) async fn settle<T>(
        &self,
        live: &ActiveConfig,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
        answer: impl FnOnce(SettledTicket<'_>) -> T,
    ) -> Result<T, SettleError> {
        let settled = self.settle_uncounted(live, ticket, settlement, answer).await;
        let result = match &settled {
            Ok(_) => SettlementResult::settled,
            Err(SettleError::Ticket(error)) => match error {
                TicketError::Settled => SettlementResult::repeated,
                TicketError::Expired { .. } => SettlementResult::expired,
                TicketError::Elsewhere { .. } => SettlementResult::elsewhere,
                TicketError::Store(_) => {
                    self.base.count_store_error();
                    SettlementResult::error
                }
                _ => SettlementResult::refused,
            },
            // The report is wrong, not the ticket, which may come again.
            Err(_) => return settled,
        };
        self.base.metrics.settlement(result);
        settled
    }

    /// As [`Tickets::settle`], but does not count the result in the metrics.
    pub(super) async fn settle_uncounted<T>(
        &self,
        live: &ActiveConfig,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
        answer: impl FnOnce(SettledTicket<'_>) -> T,
    ) -> Result<T, SettleError> {
        let open = self.seal.keys.open(ticket, self.base.now())?;
        let id = Ulid::from(open.id());
        self.base.gate.tickets().holds(&open)?;
        match &settlement.spent {
            Spent::Usage(usage) => live.set.check_usage(usage).map_err(SettleError::Unknown)?,
            Spent::Refund(_) if !open.has(Part::Spent) => return Err(SettleError::AwaitsReport(id)),
            Spent::Refund(Some(cost)) => {
                let charged = open.charged().refundable();
                if cost.units() > charged {
                    return Err(SettleError::TooMuch { id, charged });
                }
            }
            Spent::Refund(None) | Spent::AsCharged | Spent::Undone => {}
        }
        let settle = |part| self.settle_part(&open, part, settlement);
        let (part, settled) = match settle(settlement.part).await {
            // One half may have been settled already; then the other is still open. Each has its own mark in the
            // store, so of many callers only one succeeds.
            Err(TicketError::Settled)
                if settlement.part == Part::All && open.has(Part::Spent) && open.has(Part::Outcome) =>
            {
                match settle(Part::Spent).await {
                    Err(TicketError::Settled) => (Part::Outcome, settle(Part::Outcome).await?),
                    settled => (Part::Spent, settled?),
                }
            }
            settled => (settlement.part, settled?),
        };
        self.count_settled(live, &settled);
        if part != Part::Spent {
            self.tell_ended(live, open.charged(), settlement.outcome);
        }
        // An outcome also says of policies that go by what was spent that the call ended.
        let by_outcome = open.charged().lines().filter(|_| part == Part::Outcome).map(|line| line.policy);
        for name in by_outcome.chain(settled.iter().map(|(one, _)| one.policy)) {
            if let Some(facts) = live.set.find(name).and_then(|(at, _)| live.policies.get(at)) {
                facts.met.note_ended();
            }
        }
        if live.breaks {
            self.breakers.note_left(open.charged()).await;
        }
        let by_spent = || {
            settled.iter().filter_map(|(one, _)| {
                let (_, policy) = live.set.find(one.policy)?;
                goes_by_spent(policy, one.limit).then_some(policy)
            })
        };
        let mut by_values: Vec<&str> =
            by_spent().filter_map(|policy| policy.settle.as_ref()).flat_map(|rule| rule.by.names()).collect();
        by_values.sort_unstable();
        by_values.dedup();
        Ok(answer(SettledTicket {
            id,
            charges: &settled,
            part,
            by_cost: by_spent().any(goes_by_cost),
            by_values,
            awaits_outcome: open.has(Part::Outcome),
            awaits_spent: open
                .charged()
                .lines()
                .any(|line| live.set.find(line.policy).is_some_and(|(_, policy)| policy.settle.is_some())),
        }))
    }

    async fn settle_part<'t>(
        &self,
        open: &'t OpenTicket,
        part: Part,
        settlement: &Settlement<'_>,
    ) -> Result<FinishedBy<'t>, TicketError> {
        let outcome = settlement.outcome;
        let used = |line: &ChargedLine<'_>| {
            let charged = line.charged.units();
            match &settlement.spent {
                Spent::Undone => Some(0),
                Spent::Refund(cost) => Some(charged.saturating_sub(cost.map_or(charged, Cost::units))),
                Spent::AsCharged | Spent::Usage(_) => None,
            }
        };
        match &settlement.spent {
            Spent::Usage(usage) => self.base.gate.tickets().settle_by(open, part, outcome, usage).await,
            _ => {
                let finished = self.base.gate.tickets().settle(open, part, outcome, used).await?;
                Ok(finished.into_iter().map(|one| (one, None)).collect())
            }
        }
    }

    /// Tells the sight how a call ended that policies with a canary let pass.
    fn tell_ended(&self, live: &ActiveConfig, charged: &Charged, outcome: Outcome) {
        let Some(sight) = &self.base.sight else { return };
        let failed = match outcome {
            Outcome::Success | Outcome::CallersFault => false,
            Outcome::Failure | Outcome::Overloaded => true,
            Outcome::Ignored => return,
        };
        for (line, values) in charged.keyed_lines() {
            let Some((at, policy)) = live.set.find(line.policy) else { continue };
            let canary = policy.is_canary(line.limit);
            // Of the charges of a policy, the one of its first limit, or of the canary's in the place of that.
            let is_first = canary || line.limit == 0;
            if let Some(facts) = live.policies.get(at).filter(|_| is_first && policy.canary.is_some()) {
                sight.ended(facts.number, self.telemetry.fingerprint_of(values), canary, failed);
            }
        }
    }

    fn count_settled(&self, live: &ActiveConfig, settled: &[(SettledCharge<'_>, Option<CostError>)]) {
        for lines in settled.chunk_by(|(one, _), (next, _)| one.policy == next.policy) {
            let policy = lines.first().and_then(|(first, _)| live.set.find(first.policy));
            let Some((at, policy)) = policy else { continue };
            let Some(facts) = live.policies.get(at) else { continue };
            // A call that a breaker counts is not a unit.
            let is_call = |one: &SettledCharge<'_>| policy.limit(one.limit).is_some_and(Limit::is_breaker);
            let lines = lines.iter().filter(|(one, _)| !live.breaks || !is_call(one));
            // The limits of one policy count the same units, so the largest stands for all.
            let most =
                |of: fn(&Fate) -> u64| lines.clone().map(|(line, _)| of(&line.fate)).max().unwrap_or(0);
            let returned = most(|fate| if let Fate::Returned(units) = fate { *units } else { 0 });
            let owed = most(|fate| if let Fate::Owed(units) = fate { *units } else { 0 });
            count_units(&facts.series.returned, returned);
            count_units(&facts.series.owed, owed);
        }
    }
}
