//! Reservations that expire by themselves. Each is a ticket, and the node that made it returns its units when its time
//! is over.
//!
//! Settling a ticket marks it in the store of its charges, in the same step. So a reservation is either committed or
//! returned, exactly once, at whichever node the commit arrives.
//!
//! Also returns and books units for callers without a ticket.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::Outcome;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::gate::{Check, Part};
use tidegate::store::StoreError;

use super::reservations::{MOST, MOST_BYTES, key};
use super::settling::{SettleError, Settlement, Spent};
use super::{Engine, sharing};
use crate::metrics::SettlementResult;

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// This commit settled the reservation.
    Settled,
    /// Another commit settled the reservation before its end.
    Repeated,
    /// The reservation has ended: its units were returned, or will be.
    Ended,
}

impl Engine {
    /// Returns the longest time that a reservation can hold: the time within which any ticket can be settled.
    pub(crate) fn longest_reservation(&self) -> Duration {
        self.ticket_seal.ttl
    }

    /// Remembers a reservation, so that its units are returned at its end unless it is committed before. Beyond
    /// [`MOST`] reservations or [`MOST_BYTES`], it is not remembered and stays charged.
    pub(crate) fn remember_reservation(&self, ticket: &Ticket) {
        let Ok(open) = self.ticket_seal.keys.open(ticket, self.base.now()) else { return };
        let kept = self.reservations.keep(key(&open), ticket);
        if self.reservations.tells(kept) {
            tracing::warn!(
                "{MOST} reservations are open, or {} MiB of their tickets: further ones stay charged until they are committed or their \
                 units return with time",
                MOST_BYTES >> 20
            );
        }
    }

    /// Settles a reservation with the units that were spent.
    ///
    /// # Errors
    /// [`SettleError`]: nothing was returned or booked.
    pub(crate) async fn commit(
        &self,
        ticket: &Ticket,
        settlement: &Settlement<'_>,
    ) -> Result<Committed, SettleError> {
        let settled = self.settle(&self.base.live(), ticket, settlement, |_| ()).await;
        match settled {
            Ok(()) | Err(SettleError::Ticket(TicketError::Settled | TicketError::Expired { .. })) => {}
            Err(error) => return Err(error),
        }
        // Read the clock only after the store has answered: then a reservation that was returned in between counts as
        // ended.
        let open = self.ticket_seal.keys.open(ticket, self.base.now()).ok();
        if let Some(open) = &open {
            self.reservations.forget(key(open));
        }
        let goes_on = open.is_some_and(|open| self.base.now() < key(&open).0);
        Ok(match settled {
            Ok(()) => Committed::Settled,
            Err(_) if goes_on => Committed::Repeated,
            Err(_) => Committed::Ended,
        })
    }

    /// Returns the units of reservations that have ended. Answers after what time to call again.
    ///
    /// If a store does not take the units back, tries again until the ticket can no longer be settled. After that they
    /// stay charged.
    pub(crate) async fn give_back_reservations(&self) -> Duration {
        let mut refused = Vec::new();
        loop {
            let ended = self.reservations.ended(self.base.now());
            if ended.is_empty() {
                break;
            }
            let settled = join_all(ended.iter().map(|ticket| self.lapse(ticket))).await;
            for (ticket, settled) in ended.into_iter().zip(settled) {
                match settled {
                    Ok(()) => self.metrics.settlement(SettlementResult::lapsed),
                    // Already committed at another node.
                    Err(SettleError::Ticket(TicketError::Settled)) => {}
                    Err(error) => {
                        self.metrics.settlement(SettlementResult::error);
                        refused.push((ticket, error));
                    }
                }
            }
        }
        if let Some((_, error)) = refused.first() {
            self.base.count_store_error();
            tracing::warn!(count = refused.len(), ?error, "reservations that have ended were not given back");
        }
        let again = refused.is_empty();
        for (ticket, _) in refused {
            if let Ok(open) = self.ticket_seal.keys.open(&ticket, self.base.now()) {
                self.reservations.keep(key(&open), &ticket);
            }
        }
        let next = self.reservations.next(self.base.now()).filter(|_| again).unwrap_or(sharing::LEASES_EVERY);
        next.clamp(Duration::from_millis(1), sharing::LEASES_EVERY)
    }

    async fn lapse(&self, ticket: &Ticket) -> Result<(), SettleError> {
        let undone = Settlement { part: Part::All, outcome: Outcome::Ignored, spent: Spent::Undone };
        self.settle_uncounted(&self.base.live(), ticket, &undone, |_| ()).await
    }

    /// Returns the units that this check would charge; see [`tidegate::Gate::give_back_async`]. On an error of the
    /// store they stay charged, and the error is counted and logged.
    pub(crate) async fn give_back(&self, check: Check<'_, '_>) {
        if let Err(error) = self.base.gate.give_back_async(check).await {
            self.base.count_store_error();
            tracing::warn!(%error, "units were not given back");
        }
    }

    /// Books what this many requests like the given one would charge, even beyond what is left; see
    /// [`tidegate::Gate::book_many_async`].
    ///
    /// # Errors
    /// The error of the store. It is counted here; the caller logs it.
    pub(crate) async fn book(&self, check: Check<'_, '_>, requests: u64) -> Result<(), StoreError> {
        let booked = self.base.gate.book_many_async(check, requests).await;
        booked.inspect_err(|_| self.base.count_store_error())
    }
}
