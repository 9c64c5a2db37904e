//! How many tickets a gate has handed out that nobody has settled: work under way that it does not see itself.
//!
//! No ticket is remembered. They are counted by the time at which they expire, in steps of a thirty-second part of their life, so that one
//! that nobody settles stops counting by itself, and the counts of a gate stay few however many tickets it hands out.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::nanos;

/// Into how many steps the life of a ticket is divided: one that nobody settles counts for up to 1/32 of its life too long.
const STEPS: u64 = 32;

/// Tickets that are not settled. At most 34 counts for each length of a step, which is a power of two: under a kilobyte where all tickets
/// live equally long, and 30 kB at the worst.
#[derive(Debug, Default)]
pub(super) struct OpenTickets {
    /// How many expire by an end of a step, in nanoseconds.
    by_end: Mutex<BTreeMap<u64, u64>>,
}

impl OpenTickets {
    /// Counts a ticket that is made now, and returns how many others have expired. A short lock.
    pub(super) fn open(&self, made: Tick, expires: Tick) -> u64 {
        let lapsed = self.lapse(made);
        *self.by_end.lock().entry(end(made, expires)).or_default() += 1;
        lapsed
    }

    /// Takes a ticket out of the count; `false` where nothing of its step is counted, as before the count began.
    ///
    /// A ticket that another node made takes one of its step out too: calls that are spread evenly over nodes are settled with each about
    /// as often as they are made there, so each counts about its part.
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

    /// Forgets those that have expired by now, and returns how many they were.
    pub(super) fn lapse(&self, now: Tick) -> u64 {
        let mut by_end = self.by_end.lock();
        let mut lapsed = 0;
        while let Some(first) = by_end.first_entry().filter(|first| *first.key() <= now.as_nanos()) {
            lapsed += first.remove();
        }
        lapsed
    }
}

/// Returns the end of the step in which a ticket expires, or `u64::MAX` where it would be later than any tick.
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

    /// Whoever asks for a ticket a millisecond for six minutes, each to live a minute, leaves a few dozen counts.
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
