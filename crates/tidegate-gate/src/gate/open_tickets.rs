//! Counts the tickets that a gate has issued and that are not settled yet: work in progress that the gate does not see
//! itself.
//!
//! Tickets are not remembered one by one. They are counted by their expiry time, in steps of about 1/32 of their life,
//! so that a ticket that is never settled stops counting by itself, and the number of counts stays small however many
//! tickets a gate issues.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::nanos;

/// The number of steps that the life of a ticket is divided into: a ticket that is never settled counts for one step
/// too long at most.
const STEPS: u64 = 32;

/// The numbers of unsettled tickets. At most 34 counts per step length, which is a power of two: under a kilobyte if
/// all tickets live equally long, and 30 kB at worst.
#[derive(Debug, Default)]
pub(super) struct OpenTickets {
    /// The number of tickets by the end of the step in which they expire, in nanoseconds.
    by_end: Mutex<BTreeMap<u64, u64>>,
}

impl OpenTickets {
    /// Counts a ticket that is created now, and returns how many others have expired. Takes a short lock.
    pub(super) fn open(&self, made: Tick, expires: Tick) -> u64 {
        let lapsed = self.lapse(made);
        *self.by_end.lock().entry(end(made, expires)).or_default() += 1;
        lapsed
    }

    /// Removes a ticket from the count; `false` if no ticket of its step is counted, for example because it was created
    /// before counting began.
    ///
    /// A ticket that another node created removes one of its step too: if calls are spread evenly over nodes, each node
    /// settles about as many tickets as it creates, so each counts about its own share.
    pub(super) fn close(&self, made: Tick, expires: Tick) -> bool {
        let mut by_end = self.by_end.lock();
        let end = end(made, expires);
        let Some(count) = by_end.get_mut(&end) else { return false };
        *count -= 1;
        if *count == 0 {
            by_end.remove(&end);
        }
        true
    }

    /// Removes the tickets that have expired by `now`, and returns their number.
    pub(super) fn lapse(&self, now: Tick) -> u64 {
        let mut by_end = self.by_end.lock();
        let mut lapsed = 0;
        while let Some(first) = by_end.first_entry().filter(|first| *first.key() <= now.as_nanos()) {
            lapsed += first.remove();
        }
        lapsed
    }
}

/// Returns the end of the step in which a ticket expires, or `u64::MAX` if that is later than any tick.
fn end(made: Tick, expires: Tick) -> u64 {
    let step = (nanos(expires.since(made)) / STEPS).max(1).next_power_of_two();
    expires.as_nanos().checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_ticket_counts_until_it_is_closed_or_lapses_shortly_after_it_expires() {
        let tickets = OpenTickets::default();
        let made = Tick::from_secs(1_800_000_000);
        let expires = made.after(MINUTE);
        for _ in 0..3 {
            tickets.open(made, expires);
        }
        assert!(tickets.close(made, expires));
        assert_eq!(tickets.lapse(Tick::from_nanos(expires.as_nanos() - 1)), 0);
        // A step is at most twice a thirty-second part, since it is a power of two.
        assert_eq!(tickets.lapse(expires.after(MINUTE / 16)), 2);
        assert!(!tickets.close(made, expires), "it does not count any more");
    }

    #[test]
    fn a_ticket_that_was_not_counted_takes_nothing_away() {
        let tickets = OpenTickets::default();
        let made = Tick::from_secs(100);
        assert!(!tickets.close(made, made.after(MINUTE)));
        assert_eq!(tickets.lapse(Tick::MAX), 0);
    }

    /// One ticket per millisecond for six minutes, each with a life of one minute, leaves a few dozen counts.
    #[test]
    fn counts_stay_few() {
        let tickets = OpenTickets::default();
        let mut now = Tick::from_secs(100);
        for _ in 0..360_000 {
            now = now.after(Duration::from_millis(1));
            tickets.open(now, now.after(MINUTE));
        }
        let counts = tickets.by_end.lock().len();
        assert!(counts <= 34, "{counts}");
        tickets.open(Tick::MAX, Tick::MAX);
        tickets.open(Tick::EPOCH, Tick::MAX);
        assert!(tickets.close(Tick::EPOCH, Tick::MAX));
    }
}
