//! The second half of a decision: what becomes of its charges when its ticket is handed in, or when they are undone.
//!
//! The server remembers nothing of a decision for that: the ticket holds what was charged, and the store which tickets were settled.

use tidegate::gate::ticket::{OpenTicket, Ticket, TicketError};
use tidegate::gate::{ChargedLine, Fate, FinishedBy, Followed, Part};
use tidegate::policy::{CostError, Limit, Policy, SettleBy, UnknownUsage, Usage};
use tidegate::{Cost, Outcome};
use ulid::Ulid;

use super::{Engine, Held};
use crate::live::Live;
use crate::metrics::{SettlementResult, count_units};

/// What is told of the work.
#[derive(Debug)]
pub(crate) struct Settlement<'a> {
    pub(crate) part: Part,
    pub(crate) outcome: Outcome,
    pub(crate) spent: Spent<'a>,
}

/// What was spent.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and it never leaves the stack")]
pub(crate) enum Spent<'a> {
    /// What was charged.
    AsCharged,
    /// Nothing: it was not done.
    Undone,
    /// Less, by so many units of each charge at most; all of it where none is named.
    Refund(Option<Cost>),
    /// What each policy makes of this.
    Usage(Usage<'a>),
}

/// What became of a ticket that was settled.
#[derive(Debug)]
pub(crate) struct SettledTicket<'a> {
    pub(crate) id: Ulid,
    /// What became of each charge, and why a real cost could not be worked out.
    pub(crate) charges: &'a [(Followed<'a>, Option<CostError>)],
    /// What was settled: less than was asked for where the other half was settled before.
    pub(crate) part: Part,
    /// Whether any of the charges goes by a cost that is told.
    pub(crate) by_cost: bool,
    /// Whether the ticket has charges that the outcome decides about, settled or not.
    pub(crate) awaits_outcome: bool,
}

/// Why nothing was settled.
#[derive(Debug)]
pub(crate) enum SettleError {
    Ticket(TicketError),
    /// A value that no policy goes by was told.
    Unknown(UnknownUsage),
    /// A refund of a decision all of whose charges go by a report, made already or not.
    AwaitsReport(Ulid),
    /// More is asked back than was charged.
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

/// Says whether what a limit was charged is settled by the `cost` that is told.
fn goes_by_cost(policy: &Policy, limit: usize) -> bool {
    let by_cost = match &policy.settle {
        Some(rule) => matches!(rule.by, SettleBy::Cost),
        None => policy.cost.is_none(),
    };
    by_cost && !policy.charges_failures() && !policy.limit(limit).is_some_and(Limit::is_guard)
}

impl Engine {
    /// Takes back what a decision charged, as if it had not been asked for.
    pub(crate) async fn undo(&self, held: &Held) {
        let undone = self.gate.finish_async(&held.charged, Part::All, Outcome::Ignored, |_| Some(0)).await;
        if let Err(error) = undone {
            self.metrics.store_error(self.store_kind);
            tracing::warn!(%error, "what a decision charged could not be taken back");
        }
    }

    /// Takes back what a decision charged, whose caller has gone.
    pub(crate) fn undo_unwatched(&self, held: &Held) {
        self.gate.undo_unwatched(&held.charged);
    }

    /// Says that a ticket reached nobody.
    pub(crate) fn withdraw(&self, ticket: &Ticket) {
        if let Ok(open) = self.ticket_seal.keys.open(ticket, self.now()) {
            self.gate.withdraw(&open);
        }
    }

    /// Settles a ticket once; hands over what became of each charge, with the reason where a real cost could not be worked out.
    ///
    /// # Errors
    /// [`SettleError`]: nothing was given back or booked.
    pub(crate) async fn settle<T>(
        &self,
        live: &Live,
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
                    self.metrics.store_error(self.store_kind);
                    SettlementResult::error
                }
                _ => SettlementResult::refused,
            },
            // A mistake in what was told beside the ticket, which may be handed in again.
            Err(_) => return settled,
        };
        self.metrics.settlement(result);
        settled
    }

    /// Settles a ticket like [`Engine::settle`], and counts no result.
    pub(super) async fn settle_uncounted<T>(
        &self,
        live: &Live,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
        answer: impl FnOnce(SettledTicket<'_>) -> T,
    ) -> Result<T, SettleError> {
        let open = self.ticket_seal.keys.open(ticket, self.now())?;
        let id = Ulid::from(open.id());
        self.gate.holds(&open)?;
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
            // One half may have been settled by a report or a refund: the other is open still. Each half is marked for itself, so of
            // many who try at once one does.
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
        if live.breaks {
            self.note_left(open.charged()).await;
        }
        let by_cost = |(one, _): &(Followed<'_>, _)| {
            live.set.find(one.policy).is_some_and(|(_, policy)| goes_by_cost(policy, one.limit))
        };
        Ok(answer(SettledTicket {
            id,
            charges: &settled,
            part,
            by_cost: settled.iter().any(by_cost),
            awaits_outcome: open.has(Part::Outcome),
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
            Spent::Usage(usage) => self.gate.settle_by_async(open, part, outcome, usage).await,
            _ => {
                let finished = self.gate.settle_async(open, part, outcome, used).await?;
                Ok(finished.into_iter().map(|one| (one, None)).collect())
            }
        }
    }

    /// Counts what came back and what is owed.
    fn count_settled(&self, live: &Live, settled: &[(Followed<'_>, Option<CostError>)]) {
        for lines in settled.chunk_by(|(one, _), (next, _)| one.policy == next.policy) {
            let policy = lines.first().and_then(|(first, _)| live.set.find(first.policy));
            let Some(facts) = policy.and_then(|(at, _)| live.policies.get(at)) else { continue };
            // Limits of one policy count the same units: the largest stands for them.
            let most = |of: fn(&Fate) -> u64| lines.iter().map(|(line, _)| of(&line.fate)).max().unwrap_or(0);
            let returned = most(|fate| if let Fate::Returned(units) = fate { *units } else { 0 });
            let owed = most(|fate| if let Fate::Owed(units) = fate { *units } else { 0 });
            count_units(&facts.series.returned, returned);
            count_units(&facts.series.owed, owed);
        }
    }
}
