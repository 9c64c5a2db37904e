//! The second half of a decision: its ticket, and what becomes of it when that is handed in.
//!
//! Nothing is remembered of a decision for that: the ticket holds what was charged, and the store which tickets were settled.

use std::net::SocketAddr;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::gate::ticket::{KeyError, OpenTicket, SealError, Ticket, TicketError, TicketKeys};
use tidegate::gate::{ChargedLine, Fate, Followed, Part};
use tidegate::policy::{CostError, Descriptor, Limit, Mode, Policy, RealCost, SettleBy, UnknownUsage, Usage};
use tidegate::store::MemoryStore;
use tidegate::{Charged, Cost, Gate, GateDecision, Outcome};
use ulid::Ulid;

use super::{Conclusion, Engine};
use crate::live::{Live, settles};
use crate::metrics::SettlementResult;
use crate::ticket_options::TicketOptions;

/// The longest ticket that a header carries: with the lists of limits, the head of an answer fits the 4 KiB that a proxy reads it into.
const LONGEST_IN_HEADER: usize = 1024;

/// With what tickets are made.
#[derive(Debug)]
pub(crate) struct Tickets {
    keys: TicketKeys,
    ttl: Duration,
    pub(super) issuer: String,
}

/// What a decision charged, for as long as it may be undone.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(super) charged: Charged,
    /// Whether it was taken from the store that stands in while the real one cannot decide.
    pub(super) from_stand_in: bool,
}

/// Who is to get a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketFor {
    /// Nobody: nothing is charged.
    Nobody,
    /// The caller, if he wants one; `None`: where a policy that charged the request expects to be settled.
    Caller(Option<bool>),
    /// Whoever is behind a proxy, in a header: as short as can be, for what expects to be settled.
    Proxied,
}

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

/// What a settlement did.
#[derive(Debug)]
pub(crate) struct Told<'a> {
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

/// Why a decision has no ticket although one is wanted.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct NoTicket {
    why: String,
    /// The policy with the longest of the keys that were charged, where these are too long.
    pub(crate) policy: Option<String>,
    /// Whether a place was taken, which only a ticket returns before its time to live is over.
    pub(crate) keeps_place: bool,
}

/// Why nothing was settled.
#[derive(Debug)]
pub(crate) enum Unsettled {
    Ticket(TicketError),
    /// A value that no policy goes by was told.
    Unknown(UnknownUsage),
    /// A refund of charges that wait for a report, and of no others.
    AwaitsReport(Ulid),
    /// More is asked back than was charged.
    TooMuch {
        id: Ulid,
        charged: u64,
    },
}

impl From<TicketError> for Unsettled {
    fn from(error: TicketError) -> Self {
        Self::Ticket(error)
    }
}

impl TicketFor {
    /// Says whether what is charged is to be kept.
    pub(crate) fn keeps(self, live: &Live) -> bool {
        match self {
            Self::Nobody => false,
            Self::Caller(wanted) => wanted.unwrap_or(live.settles),
            Self::Proxied => live.settles || live.delays,
        }
    }
}

impl Tickets {
    /// Takes the key that is given, or draws one.
    ///
    /// # Errors
    /// [`KeyError`] when none can be drawn.
    pub(crate) fn of(options: &TicketOptions, addr: SocketAddr) -> Result<Self, KeyError> {
        Ok(Self {
            keys: options.keys.clone().map_or_else(TicketKeys::random, Ok)?,
            ttl: options.ttl,
            issuer: options.issuer.clone().unwrap_or_else(|| addr.to_string()),
        })
    }
}

impl NoTicket {
    fn of(
        error: &SealError,
        decision: &GateDecision,
        request: &Descriptor<'_>,
        held: &Held,
        wanted: TicketFor,
    ) -> Self {
        let set = &decision.policies;
        let charged = || held.charged.lines().filter_map(|line| Some((line.limit, set.find(line.policy)?)));
        // Of a place that is only measured nobody is refused.
        let is_place = |limit: usize, policy: &Policy| {
            policy.mode == Mode::Enforce
                && !policy.is_shadow_limit(limit)
                && policy.limit(limit).is_some_and(Limit::is_guard)
        };
        let keeps_place = charged().any(|(limit, (_, policy))| is_place(limit, policy));
        let SealError::TooLong { bytes } = error else {
            return Self { why: error.to_string(), policy: None, keeps_place };
        };
        let (in_header, how_long) = match wanted {
            TicketFor::Proxied => {
                let length = characters(*bytes);
                let bound =
                    format!("of {length} characters is too long for a header, at most {LONGEST_IN_HEADER}");
                (true, bound)
            }
            _ => (false, format!("of {bytes} bytes is too long, at most {}", Ticket::MAX_BYTES)),
        };
        let settled = charged().filter(|(_, (_, policy))| !in_header || settles(policy));
        let keys: SmallVec<[(usize, &Policy); 4]> = settled
            .map(|(limit, (at, policy))| (set.key(at, limit, request).map_or(0, |key| key.len()), policy))
            .collect();
        let limits = match keys.len() {
            1 => "1 limit was".to_owned(),
            many => format!("{many} limits were"),
        };
        let Some((length, policy)) = keys.into_iter().max_by_key(|(length, _)| *length) else {
            return Self { why: format!("a ticket {how_long} are possible"), policy: None, keeps_place };
        };
        let name = &policy.name;
        let mut why = format!(
            "a ticket {how_long} are possible: {limits} charged, and the longest key, of policy {name:?}, has {length} bytes"
        );
        if !policy.by.is_empty() {
            why = format!("{why}; send less in {}", policy.by.join(", "));
        }
        if in_header {
            why = format!("{why}; or ask POST /v1/check, whose ticket may have {} bytes", Ticket::MAX_BYTES);
        }
        Self { why, policy: Some(name.clone()), keeps_place }
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

/// Returns how long a ticket is as text.
const fn characters(bytes: usize) -> usize {
    (bytes * 4).div_ceil(3)
}

impl Engine {
    /// Makes the ticket of a decision; `None` where nobody wants one, or nothing was charged that could be settled. Called once for each
    /// decision, under its fresh `id`. Who undoes what is `held` afterwards must not have let the ticket out.
    ///
    /// # Errors
    /// [`NoTicket`] when the keys that were charged are too long for one. Nothing has changed by that: whoever must not keep a place
    /// that nobody can return calls [`Engine::undo`].
    pub(crate) fn ticket(
        &self,
        request: &Descriptor<'_>,
        conclusion: &Conclusion,
        held: &Held,
        wanted: TicketFor,
        id: Ulid,
    ) -> Option<Result<Ticket, NoTicket>> {
        let Conclusion::Decided(decision) = conclusion else { return None };
        let sealed = self.sealed(decision, held, wanted, id)?;
        Some(sealed.map_err(|error| NoTicket::of(&error, decision, request, held, wanted)))
    }

    fn sealed(
        &self,
        decision: &GateDecision,
        held: &Held,
        wanted: TicketFor,
        id: Ulid,
    ) -> Option<Result<Ticket, SealError>> {
        if held.charged.is_empty() {
            return None;
        }
        let policies = decision.policies.policies();
        let expects = |name: &str| decision.policies.find(name).is_some_and(|(_, policy)| settles(policy));
        let expected = || decision.limits.iter().any(|limit| settles(&policies[limit.policy]));
        let gate = self.gate_for(held);
        let seal = |charged: &Charged| match &gate {
            None => self.gate.seal(charged, &self.tickets.keys, self.tickets.ttl, Some(id.into())),
            Some(gate) => gate.seal(charged, &self.tickets.keys, self.tickets.ttl, Some(id.into())),
        };
        match wanted {
            TicketFor::Nobody | TicketFor::Caller(Some(false)) => None,
            TicketFor::Caller(Some(true)) => Some(seal(&held.charged)),
            TicketFor::Caller(None) => expected().then(|| seal(&held.charged)),
            TicketFor::Proxied => {
                let charged = held.charged.only(|line| expects(line.policy));
                let fits = |ticket: &Ticket| characters(ticket.as_bytes().len()) <= LONGEST_IN_HEADER;
                let sealed = (!charged.is_empty()).then(|| seal(&charged))?;
                Some(sealed.and_then(|ticket| match fits(&ticket) {
                    true => Ok(ticket),
                    false => Err(SealError::TooLong { bytes: ticket.as_bytes().len() }),
                }))
            }
        }
    }

    /// Takes back what a decision charged, as if it had not been asked for.
    pub(crate) fn undo(&self, held: &Held) {
        let undo =
            |gate: &Gate| gate.finish(&held.charged, Part::All, Outcome::Ignored, |_| Some(0)).map(drop);
        let undone = match self.gate_for(held) {
            None => undo(&self.gate),
            Some(gate) => undo(&gate),
        };
        if let Err(error) = undone {
            self.metrics.store_error(self.store_kind);
            tracing::warn!(%error, "what a decision charged could not be taken back");
        }
    }

    /// Settles a ticket once; hands over what became of each charge, with the reason where a real cost could not be worked out.
    ///
    /// # Errors
    /// [`Unsettled`]: nothing was given back or booked.
    pub(crate) fn settle<T>(
        &self,
        live: &Live,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
        told: impl FnOnce(Told<'_>) -> T,
    ) -> Result<T, Unsettled> {
        let settled = self.settle_uncounted(live, ticket, settlement, told);
        let result = match &settled {
            Ok(_) => SettlementResult::settled,
            Err(Unsettled::Ticket(error)) => match error {
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

    fn settle_uncounted<T>(
        &self,
        live: &Live,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
        told: impl FnOnce(Told<'_>) -> T,
    ) -> Result<T, Unsettled> {
        let open = self.tickets.keys.open(ticket, self.now())?;
        let id = Ulid::from(open.id());
        let aside = self.aside_for(&open)?;
        match &settlement.spent {
            Spent::Usage(usage) => live.set.check_usage(usage).map_err(Unsettled::Unknown)?,
            Spent::Refund(_) if !open.has(Part::Spent) => return Err(Unsettled::AwaitsReport(id)),
            Spent::Refund(Some(cost)) => {
                let charged = open.charged().refundable();
                if cost.units() > charged {
                    return Err(Unsettled::TooMuch { id, charged });
                }
            }
            Spent::Refund(None) | Spent::AsCharged | Spent::Undone => {}
        }
        let real = |name: &str| match (&settlement.spent, live.set.find(name)) {
            (Spent::Usage(usage), Some((_, policy))) => Policy::real_cost(policy, usage),
            _ => RealCost::AsCharged,
        };
        let gate = aside.as_ref().unwrap_or(&self.gate);
        let used = |line: &ChargedLine<'_>| {
            let charged = line.charged.units();
            match &settlement.spent {
                Spent::AsCharged => None,
                Spent::Undone => Some(0),
                Spent::Refund(cost) => Some(charged.saturating_sub(cost.map_or(charged, Cost::units))),
                Spent::Usage(_) => match real(line.policy) {
                    RealCost::Units(units) => Some(units),
                    RealCost::AsCharged | RealCost::Unknown(_) => None,
                },
            }
        };
        let settle = |part| gate.settle(&open, part, settlement.outcome, used);
        let (part, settled) = match settle(settlement.part) {
            // One half may have been settled by a report or a refund: the other is open still. Each half is marked for itself, so of
            // many who try at once one does.
            Err(TicketError::Settled)
                if settlement.part == Part::All && open.has(Part::Spent) && open.has(Part::Outcome) =>
            {
                match settle(Part::Spent) {
                    Err(TicketError::Settled) => (Part::Outcome, settle(Part::Outcome)?),
                    settled => (Part::Spent, settled?),
                }
            }
            settled => (settlement.part, settled?),
        };
        let explained: SmallVec<[_; 4]> = settled
            .iter()
            .map(|one| match real(one.policy) {
                RealCost::Unknown(why) => (*one, Some(why)),
                _ => (*one, None),
            })
            .collect();
        self.note(live, &settled, real);
        let by_cost = |one: &Followed<'_>| {
            live.set.find(one.policy).is_some_and(|(_, policy)| goes_by_cost(policy, one.limit))
        };
        Ok(told(Told {
            id,
            charges: &explained,
            part,
            by_cost: settled.iter().any(by_cost),
            awaits_outcome: open.has(Part::Outcome),
        }))
    }

    /// Counts what was settled, and teaches the policies that learn.
    fn note(&self, live: &Live, settled: &[Followed<'_>], real: impl Fn(&str) -> RealCost) {
        for lines in settled.chunk_by(|one, next| one.policy == next.policy) {
            let Some((at, first)) =
                lines.first().and_then(|first| Some((live.set.find(first.policy)?.0, first)))
            else {
                continue;
            };
            if let RealCost::Units(units) = real(first.policy) {
                live.set.learn(at, units);
            }
            let Some(facts) = live.policies.get(at) else { continue };
            // Limits of one policy count the same units: the largest stands for them.
            let most = |of: fn(&Fate) -> u64| lines.iter().map(|line| of(&line.fate)).max().unwrap_or(0);
            facts
                .series
                .returned
                .inc_by(most(|fate| if let Fate::Returned(units) = fate { *units } else { 0 }));
            facts.series.owed.inc_by(most(|fate| if let Fate::Owed(units) = fate { *units } else { 0 }));
        }
    }

    /// Returns a gate over the store that stands in, where it holds what a ticket charged; `None`: the own gate does.
    fn aside_for(&self, open: &OpenTicket) -> Result<Option<Gate>, TicketError> {
        let Err(elsewhere) = self.gate.holds(open) else { return Ok(None) };
        let Some(store) = self.stand_in.get() else { return Err(elsewhere) };
        let gate = self.aside(store);
        gate.holds(open).map_err(|_| elsewhere).map(|()| Some(gate))
    }

    fn gate_for(&self, held: &Held) -> Option<Gate> {
        self.stand_in.get().filter(|_| held.from_stand_in).map(|store| self.aside(store))
    }

    fn aside(&self, store: &MemoryStore) -> Gate {
        self.gate_of(self.gate.policies(), store.clone())
    }
}
