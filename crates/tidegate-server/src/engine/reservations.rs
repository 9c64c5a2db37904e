//! The open reservations of this node: tickets, ordered by the time at which they are returned.
//!
//! A ticket outlives its reservation a little, for a commit that is under way at the end and for a store that is away
//! then.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::gate::ticket::{OpenTicket, Ticket};

/// How long a ticket can be settled after its reservation has ended. A store outage shorter than this does not keep the
/// units from being returned.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// The most reservations that are remembered. Reservations beyond it stay charged until they are committed or time
/// returns the units.
pub(super) const MOST: usize = 1 << 16;
/// The most bytes of the tickets of remembered reservations. A ticket of one limit takes about 300 bytes, so [`MOST`]
/// of those fit.
pub(super) const MOST_BYTES: usize = 32 << 20;
/// How many reservations are returned at a time: an engine settles them in a few round trips.
const AT_ONCE: usize = 64;

/// The open reservations of this node, by end.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<Open>);

/// The end of a reservation, and the number of its ticket.
pub(super) type Key = (Tick, u128);

#[derive(Debug, Default)]
struct Open {
    by_end: BTreeMap<Key, Ticket>,
    bytes: usize,
    /// Whether the last reservation found no room. One line is logged each time the table gets full.
    full: bool,
}

/// Returns the lifetime of the ticket of a reservation that holds for `holds`.
pub(super) fn life(holds: Duration) -> Duration {
    holds.min(Ticket::MAX_TTL - AFTERWARDS).saturating_add(AFTERWARDS)
}

/// Returns the key of a reservation, by its ticket.
pub(super) fn key(ticket: &OpenTicket) -> Key {
    (ticket.expires().before(AFTERWARDS), ticket.id())
}

impl Reservations {
    /// Remembers a reservation; `false` if there is no room. Holds a lock for a short time.
    pub(super) fn keep(&self, key: Key, ticket: &Ticket) -> bool {
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
    pub(super) fn forget(&self, key: Key) {
        let mut all = self.0.lock();
        if let Some(ticket) = all.by_end.remove(&key) {
            all.bytes -= ticket.as_bytes().len();
        }
    }

    /// Removes and returns reservations that have ended, at most [`AT_ONCE`].
    pub(super) fn ended(&self, now: Tick) -> Vec<Ticket> {
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
    pub(super) fn next(&self, now: Tick) -> Option<Duration> {
        self.0.lock().by_end.first_key_value().map(|((end, _), _)| end.since(now))
    }

    /// Returns whether to log that a reservation found no room (`kept` is false): only for the first one since there
    /// was room.
    pub(super) fn tells(&self, kept: bool) -> bool {
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
