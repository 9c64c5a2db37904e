//! Reservations that expire by themselves: tickets whose units the node that made them returns at their end.
//!
//! Settling marks a ticket in the store of its charges, in the same step: a reservation is committed or returned
//! exactly once, at whichever node. Its ticket outlives it a little, for a commit under way and a store that is away.
//!
//! Also returns and books units for callers without a ticket.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tidegate::gate::ticket::{OpenTicket, Ticket, TicketError};
use tidegate::gate::{Check, Part};
use tidegate::store::StoreError;
use tidegate::{Outcome, Tick};

use super::Tickets;
use super::settling::{SettleError, Settlement, Spent};
use crate::decider::LEASES_EVERY;
use crate::metrics::SettlementResult;

/// How long a ticket can be settled after its reservation. A store outage shorter than this does not keep the units
/// from being returned.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// The most reservations that are remembered. Further ones stay charged until they are committed or time returns
/// the units.
const MOST: usize = 1 << 16;
/// The most bytes of the tickets of remembered reservations. A ticket of one limit takes about 300 bytes, so
/// [`MOST`] of those fit.
const MOST_BYTES: usize = 32 << 20;
/// How many reservations are returned at a time: an engine settles them in a few round trips.
const AT_ONCE: usize = 64;

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

impl Tickets {
    /// The longest time that a reservation can hold: the time within which any ticket can be settled.
    pub(crate) fn longest_reservation(&self) -> Duration {
        self.seal.ttl
    }

    /// Remembers a reservation, so that its units are returned at its end unless it is committed before. Beyond
    /// [`MOST`] or [`MOST_BYTES`] it stays charged.
    pub(crate) fn remember_reservation(&self, ticket: &Ticket) {
        let Ok(open) = self.seal.keys.open(ticket, self.base.now()) else { return };
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
        // Read the clock only after the store has answered: then a reservation that was returned meanwhile counts
        // as ended.
        let open = self.seal.keys.open(ticket, self.base.now()).ok();
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

    /// Returns the units of reservations that have ended, and after what time to call again. If a store does not
    /// take them back, tries again until the ticket can no longer be settled; then they stay charged.
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
                    Ok(()) => self.base.metrics.settlement(SettlementResult::lapsed),
                    // Already committed at another node.
                    Err(SettleError::Ticket(TicketError::Settled)) => {}
                    Err(error) => {
                        self.base.metrics.settlement(SettlementResult::error);
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
            if let Ok(open) = self.seal.keys.open(&ticket, self.base.now()) {
                self.reservations.keep(key(&open), &ticket);
            }
        }
        let next = self.reservations.next(self.base.now()).filter(|_| again).unwrap_or(LEASES_EVERY);
        next.clamp(Duration::from_millis(1), LEASES_EVERY)
    }

    async fn lapse(&self, ticket: &Ticket) -> Result<(), SettleError> {
        let undone = Settlement { part: Part::All, outcome: Outcome::Ignored, spent: Spent::Undone };
        self.settle_uncounted(&self.base.live(), ticket, &undone, |_| ()).await
    }

    /// Returns the units that this check would charge ([`tidegate::Gate::give_back`]). On an error they stay
    /// charged; it is counted and logged.
    pub(crate) async fn give_back(&self, check: Check<'_, '_>) {
        if let Err(error) = self.base.gate.give_back(check).await {
            self.base.count_store_error();
            tracing::warn!(%error, "units were not given back");
        }
    }

    /// Books what so many requests would charge, even beyond what is left ([`tidegate::Gate::book`]).
    ///
    /// # Errors
    /// The error of the store. It is counted; the caller logs it.
    pub(crate) async fn book(&self, check: Check<'_, '_>, requests: u64) -> Result<(), StoreError> {
        let booked = self.base.gate.book(check, requests).await;
        booked.inspect_err(|_| self.base.count_store_error())
    }
}

/// The open reservations of this node, by end.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<OpenReservations>);

/// The end, and the number of the ticket.
type ReservationKey = (Tick, u128);

#[derive(Debug, Default)]
struct OpenReservations {
    by_end: BTreeMap<ReservationKey, Ticket>,
    bytes: usize,
    /// Whether the last reservation found no room. One line is logged each time the table gets full.
    full: bool,
}

pub(super) fn life(holds: Duration) -> Duration {
    holds.min(Ticket::MAX_TTL - AFTERWARDS).saturating_add(AFTERWARDS)
}

/// Returns the key of a reservation, by its ticket.
fn key(ticket: &OpenTicket) -> ReservationKey {
    (ticket.expires().before(AFTERWARDS), ticket.id())
}

impl Reservations {
    /// Remembers a reservation; `false` if there is no room. Holds a lock for a short time.
    fn keep(&self, key: ReservationKey, ticket: &Ticket) -> bool {
        let mut all = self.0.lock();
        let bytes = all.bytes + ticket.as_bytes().len();
        if all.by_end.len() >= MOST || bytes > MOST_BYTES {
            return false;
        }
        all.bytes = bytes;
        all.by_end.insert(key, ticket.clone());
        true
    }

    /// Forgets a reservation that was settled.
    fn forget(&self, key: ReservationKey) {
        let mut all = self.0.lock();
        if let Some(ticket) = all.by_end.remove(&key) {
            all.bytes -= ticket.as_bytes().len();
        }
    }

    /// Removes and returns reservations that have ended, at most [`AT_ONCE`].
    fn ended(&self, now: Tick) -> Vec<Ticket> {
        let mut all = self.0.lock();
        let mut ended = Vec::new();
        while ended.len() < AT_ONCE
            && let Some(first) = all.by_end.first_entry().filter(|first| first.key().0 <= now)
        {
            let ticket = first.remove();
            all.bytes -= ticket.as_bytes().len();
            ended.push(ticket);
        }
        ended
    }

    /// Returns the time until the next reservation ends; `None` if none is open.
    fn next(&self, now: Tick) -> Option<Duration> {
        self.0.lock().by_end.first_key_value().map(|((end, _), _)| end.since(now))
    }

    /// Returns whether to log that there was no room (`kept` is false): the first time since there was.
    fn tells(&self, kept: bool) -> bool {
        let full = &mut self.0.lock().full;
        !std::mem::replace(full, !kept) && !kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(bytes: usize) -> Ticket {
        Ticket::from_bytes(&vec![0; bytes]).unwrap()
    }

    #[test]
    fn reservations_are_few_and_their_tickets_have_a_bound() {
        let (all, now) = (Reservations::default(), Tick::from_secs(100));
        for id in 0..MOST as u128 {
            assert!(all.keep((now, id), &ticket(300)));
        }
        assert!(!all.keep((now, u128::MAX), &ticket(1)), "there is no room");
        assert!(all.tells(false) && !all.tells(false), "the log is told once");
        all.forget((now, 7));
        assert!(!all.tells(all.keep((now, u128::MAX), &ticket(1))) && all.tells(false));
        let large = Reservations::default();
        let kept = (0..4096).filter(|&id| large.keep((now, id), &ticket(Ticket::MAX_BYTES))).count();
        assert_eq!(kept, MOST_BYTES / Ticket::MAX_BYTES);
    }

    #[test]
    fn those_that_have_ended_come_out_once_and_the_first_one_first() {
        let (all, now) = (Reservations::default(), Tick::from_secs(100));
        for (after, bytes) in [(2, 3), (1, 2), (3, 4)] {
            all.keep((now.after(Duration::from_secs(after)), 0), &ticket(bytes));
        }
        assert_eq!((all.ended(now), all.next(now)), (Vec::new(), Some(Duration::from_secs(1))));
        let later = now.after(Duration::from_secs(2));
        assert_eq!(all.ended(later), [ticket(2), ticket(3)]);
        assert_eq!((all.ended(later), all.next(later)), (Vec::new(), Some(Duration::from_secs(1))));
        all.forget((now.after(Duration::from_secs(3)), 0));
        assert_eq!((all.next(later), all.0.lock().bytes), (None, 0));
    }
}
