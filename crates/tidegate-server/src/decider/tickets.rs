//! Decides whether a decision gets a ticket, and which charges it holds, for whoever settles them later
//! ([`settling`]). Reservations are tickets that expire by themselves.

#[cfg(feature = "grpc")]
mod reservations;
mod settling;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::config::Address;
use tidegate::gate::ticket::{Extended, KeyError, SealError, Ticket, TicketError, TicketKeys};
use tidegate::gate::{Charged, GateDecision};
use tidegate::policy::{Descriptor, Limit, Mode, Policy};
use ulid::Ulid;

#[cfg(feature = "grpc")]
pub(crate) use self::reservations::Committed;
pub(crate) use self::settling::{SettleError, SettledTicket, Settlement, Spent};
use super::breakers::Breakers;
use super::telemetry::Telemetry;
use super::{Base, Conclusion};
use crate::active_config::{ActiveConfig, settles};
use crate::metrics::ExtensionResult;
use crate::ticket_options::TicketOptions;

/// The longest ticket in a header, in characters. With the lists of limits, the head of an answer then fits the 4
/// KiB buffer into which a proxy reads it.
const LONGEST_IN_HEADER: usize = 1024;

/// The tickets of this server, which keeps no state about them but the open reservations: a ticket holds what was
/// charged, and the store knows which were settled.
#[derive(Debug)]
pub(crate) struct Tickets {
    base: Arc<Base>,
    /// Told of the calls that end.
    breakers: Arc<Breakers>,
    /// Makes the ids of tickets that are extended.
    telemetry: Arc<Telemetry>,
    seal: TicketSeal,
    #[cfg(feature = "grpc")]
    reservations: reservations::Reservations,
}

#[derive(Debug)]
pub(crate) struct TicketSeal {
    pub(super) keys: TicketKeys,
    pub(super) ttl: Duration,
    pub(super) issuer: String,
}

impl TicketSeal {
    /// Uses the configured keys, or draws one. The node is named after `addr` unless it has a name.
    ///
    /// # Errors
    /// [`KeyError`] if no random key can be drawn.
    pub(crate) fn of(options: &TicketOptions, addr: &Address) -> Result<Self, KeyError> {
        Ok(Self {
            keys: options.keys.clone().map_or_else(TicketKeys::random, Ok)?,
            ttl: options.ttl,
            issuer: options.issuer.clone().unwrap_or_else(|| addr.to_string()),
        })
    }
}

/// Who gets the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketFor {
    /// Nobody; the charges are not kept.
    Nobody,
    /// The caller, if it asks for one. With `None`: if a policy that charged expects to be settled.
    Caller(Option<bool>),
    /// A caller that reserves units for so long. The ticket can be settled for a while after that.
    #[cfg(feature = "grpc")]
    Reservation(Duration),
    /// The application behind a proxy, in a header: only charges that expect to be settled, or only the places if
    /// that is too long.
    Proxied,
}

#[derive(Debug)]
pub(crate) struct TicketAnswer {
    /// The ticket, if one could be made.
    pub(crate) ticket: Option<Ticket>,
    /// Why there is none, or an incomplete one.
    pub(crate) error: Option<NoTicket>,
}

/// Why a decision has no ticket, or an incomplete one, although one was wanted.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct NoTicket {
    why: String,
    /// The policy with the longest key, if keys made it too long.
    pub(crate) policy: Option<String>,
    /// Whether a place stays taken until its time to live is over.
    pub(crate) keeps_place: bool,
}

impl TicketFor {
    /// Returns whether charges must be kept for a ticket.
    pub(crate) fn keeps(self, live: &ActiveConfig) -> bool {
        match self {
            Self::Nobody => false,
            Self::Caller(wanted) => wanted.unwrap_or(live.settles),
            #[cfg(feature = "grpc")]
            Self::Reservation(_) => true,
            Self::Proxied => live.settles || live.delays,
        }
    }
}

impl NoTicket {
    /// Makes the error of a ticket of `bytes` bytes that was cut down to its places.
    fn but_for_places(bytes: usize) -> Self {
        let why = format!(
            "the whole ticket has {} characters, and at most {LONGEST_IN_HEADER} fit a header: this one returns only the places, and the \
             other charges stay; POST /v1/check answers the whole ticket",
            characters(bytes)
        );
        Self { why, policy: None, keeps_place: false }
    }

    fn of(
        error: &SealError,
        decision: &GateDecision,
        request: &Descriptor<'_>,
        held: &Charged,
        wanted: TicketFor,
    ) -> Self {
        let set = &decision.policies;
        let charged = || held.lines().filter_map(|line| Some((line.limit, set.find(line.policy)?)));
        let keeps_place = charged().any(|(limit, (_, policy))| is_enforced_place(policy, limit));
        let SealError::TooLong { bytes } = error else {
            return Self { why: error.to_string(), policy: None, keeps_place };
        };
        let in_header = wanted == TicketFor::Proxied;
        // With a header, an error that leaves a place taken means that even a ticket of the places alone was too
        // long.
        let of_places = in_header && keeps_place;
        let length = characters(*bytes);
        let how_long = match (in_header, of_places) {
            (true, true) => {
                format!(
                    "of the places alone is too long for a header with {length} characters, at most {LONGEST_IN_HEADER}"
                )
            }
            (true, false) => {
                format!("of {length} characters is too long for a header, at most {LONGEST_IN_HEADER}")
            }
            (false, _) => format!("of {bytes} bytes is too long, at most {}", Ticket::MAX_BYTES),
        };
        let settled = charged().filter(|(limit, (_, policy))| match (in_header, of_places) {
            (false, _) => true,
            (true, true) => is_enforced_place(policy, *limit),
            (true, false) => settles(policy),
        });
        let keys: SmallVec<[(usize, &Policy); 4]> = settled
            .map(|(limit, (at, policy))| (set.key(at, limit, request).map_or(0, |key| key.len()), policy))
            .collect();
        let limits = match (keys.len(), of_places) {
            (1, true) => "1 place was taken".to_owned(),
            (many, true) => format!("{many} places were taken"),
            (1, false) => "1 limit was charged".to_owned(),
            (many, false) => format!("{many} limits were charged"),
        };
        let Some((length, policy)) = keys.into_iter().max_by_key(|(length, _)| *length) else {
            return Self { why: format!("a ticket {how_long} are possible"), policy: None, keeps_place };
        };
        let name = &policy.name;
        let mut why = format!(
            "a ticket {how_long} are possible: {limits}, and the longest key, of policy {name:?}, has {length} bytes"
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

const fn characters(bytes: usize) -> usize {
    (bytes * 4).div_ceil(3)
}

/// Returns whether a limit refuses requests that find no place. One that only measures does not.
fn is_enforced_place(policy: &Policy, limit: usize) -> bool {
    policy.mode == Mode::Enforce
        && policy.over.refuses()
        && !policy.is_shadow_limit(limit)
        && policy.limit(limit).is_some_and(Limit::is_guard)
}

impl Tickets {
    pub(super) fn new(
        base: Arc<Base>,
        breakers: Arc<Breakers>,
        telemetry: Arc<Telemetry>,
        seal: TicketSeal,
    ) -> Self {
        Self {
            base,
            breakers,
            telemetry,
            seal,
            #[cfg(feature = "grpc")]
            reservations: reservations::Reservations::default(),
        }
    }

    /// Makes the ticket of a decision, if one is wanted and something was charged that could be settled. Call it once
    /// for each decision, with its fresh `id`. Who undoes `held` afterwards must not hand the ticket out.
    ///
    /// In a header, a ticket that is too long is cut down to the places, since only the ticket returns them. The
    /// other charges stand.
    ///
    /// Without a ticket ([`NoTicket::keeps_place`]) a place stays taken: see [`Tickets::make_or_undo`].
    pub(crate) fn make(
        &self,
        request: &Descriptor<'_>,
        conclusion: &Conclusion,
        held: &Charged,
        wanted: TicketFor,
        id: Ulid,
    ) -> Option<TicketAnswer> {
        let Conclusion::Decided(decision) = conclusion else { return None };
        if held.is_empty() {
            return None;
        }
        let sealed = match wanted {
            TicketFor::Nobody | TicketFor::Caller(Some(false)) => return None,
            TicketFor::Caller(Some(true)) => self.seal_all(held, id),
            #[cfg(feature = "grpc")]
            TicketFor::Reservation(holds) => self.seal_for(held, id, reservations::life(holds)),
            TicketFor::Caller(None) => {
                let policies = decision.policies.policies();
                let expected = decision.limits.iter().any(|limit| settles(&policies[limit.policy]));
                if !expected {
                    return None;
                }
                self.seal_all(held, id)
            }
            TicketFor::Proxied => {
                let find = |name: &str| decision.policies.find(name).map(|(_, policy)| policy);
                let whole = held.only(|line| find(line.policy).is_some_and(settles));
                if whole.is_empty() {
                    return None;
                }
                match self.seal_for_header(&whole, id) {
                    Err(SealError::TooLong { bytes }) => {
                        let guards = whole.only(|line| {
                            find(line.policy)
                                .and_then(|policy| policy.limit(line.limit))
                                .is_some_and(Limit::is_guard)
                        });
                        let enforced = whole.only(|line| {
                            find(line.policy).is_some_and(|policy| is_enforced_place(policy, line.limit))
                        });
                        let cut = |ticket: Ticket| TicketAnswer {
                            ticket: Some(ticket),
                            error: Some(NoTicket::but_for_places(bytes)),
                        };
                        if !guards.is_empty()
                            && let Ok(ticket) = self.seal_for_header(&guards, id)
                        {
                            return Some(cut(ticket));
                        }
                        // Measured places may stay taken: they refuse nobody.
                        if enforced.is_empty() {
                            Err(SealError::TooLong { bytes })
                        } else {
                            match self.seal_for_header(&enforced, id) {
                                Ok(ticket) => return Some(cut(ticket)),
                                error => error,
                            }
                        }
                    }
                    sealed => sealed,
                }
            }
        };
        Some(match sealed {
            Ok(ticket) => TicketAnswer { ticket: Some(ticket), error: None },
            Err(error) => {
                let error = NoTicket::of(&error, decision, request, held, wanted);
                TicketAnswer { ticket: None, error: Some(error) }
            }
        })
    }

    /// Makes the ticket of an answer. A look has no `id` and no ticket. `held` may be undone here.
    ///
    /// # Errors
    /// [`NoTicket`] if a place was taken and no ticket returns it; then everything is undone. Otherwise a few
    /// callers with long keys could hold all places until their time to live is over.
    pub(crate) async fn make_or_undo(
        &self,
        request: &Descriptor<'_>,
        conclusion: &Conclusion,
        held: &Charged,
        wanted: TicketFor,
        id: Option<Ulid>,
    ) -> Result<Option<TicketAnswer>, NoTicket> {
        match id.and_then(|id| self.make(request, conclusion, held, wanted, id)) {
            Some(TicketAnswer { error: Some(none), .. }) if none.keeps_place => {
                // Boxed: otherwise every check would reserve space for it.
                Box::pin(self.undo(held)).await;
                Err(none)
            }
            ticket => Ok(ticket),
        }
    }

    /// Holds the places of a ticket for another time to live. Returns the ticket in its place.
    ///
    /// # Errors
    /// [`TicketError`], as for a settlement.
    pub(crate) async fn extend(&self, ticket: &Ticket) -> Result<Extended, TicketError> {
        let extended = self.extend_uncounted(ticket).await;
        let result = match &extended {
            Ok(_) => ExtensionResult::extended,
            Err(TicketError::Settled) => ExtensionResult::repeated,
            Err(TicketError::NotExtended { .. } | TicketError::Seal(SealError::TooLong { .. })) => {
                ExtensionResult::not_held
            }
            Err(TicketError::Expired { .. }) => ExtensionResult::expired,
            Err(TicketError::Elsewhere { .. }) => ExtensionResult::elsewhere,
            Err(TicketError::Store(_)) => {
                self.base.count_store_error();
                ExtensionResult::error
            }
            Err(TicketError::Seal(_)) => ExtensionResult::error,
            Err(_) => ExtensionResult::refused,
        };
        self.base.metrics.extension(result);
        extended
    }

    async fn extend_uncounted(&self, ticket: &Ticket) -> Result<Extended, TicketError> {
        let keys = &self.seal.keys;
        let open = keys.open(ticket, self.base.now())?;
        let id = self.telemetry.fresh_id(self.base.now());
        self.base.gate.tickets().extend(&open, keys, self.seal.ttl, Some(id.into())).await
    }

    fn seal_all(&self, charged: &Charged, id: Ulid) -> Result<Ticket, SealError> {
        self.seal_for(charged, id, self.seal.ttl)
    }

    fn seal_for(&self, charged: &Charged, id: Ulid, life: Duration) -> Result<Ticket, SealError> {
        self.base.gate.tickets().seal(charged, &self.seal.keys, life, Some(id.into()))
    }

    fn seal_for_header(&self, charged: &Charged, id: Ulid) -> Result<Ticket, SealError> {
        let ticket = self.seal_all(charged, id)?;
        let bytes = ticket.as_bytes().len();
        if characters(bytes) <= LONGEST_IN_HEADER { Ok(ticket) } else { Err(SealError::TooLong { bytes }) }
    }
}
