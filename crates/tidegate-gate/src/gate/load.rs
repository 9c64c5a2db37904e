//! The numbers that a gate measures for conditions and moving rates: the load of the machine, the requests that it lets
//! through, and the tickets that it has issued and that are not settled yet.

#[cfg(feature = "ticket")]
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::nanos;

use crate::switches::Switches;
use tidegate_limits::signals::{Reading, Watch};

/// The period over which rates and latencies are measured.
const WINDOW: Duration = Duration::from_secs(1);

/// The sources that a gate reads.
#[derive(Default)]
pub(super) struct Sensing {
    pub(super) machine: Option<Arc<dyn Fn() -> Reading + Send + Sync>>,
    /// Started by the first check under policies that need it; the inner `None`: the system does not provide readings.
    watch: OnceLock<Option<Watch>>,
    /// The switches for `when: switch NAME off`.
    pub(super) switches: Option<Switches>,
    pub(super) load: Load,
}

/// Counts of what a gate lets through.
#[derive(Debug, Default)]
pub(super) struct Load {
    admitted: AtomicU64,
    /// The number of admissions and tickets that were created.
    begun: AtomicU64,
    /// The number of those that have ended, in whatever way.
    ended: AtomicU64,
    #[cfg(feature = "ticket")]
    tickets: OpenTickets,
    /// The number of admissions and tickets whose work was finished; `spent` is their total duration in nanoseconds.
    finished: AtomicU64,
    spent: AtomicU64,
    /// Earlier counts, the oldest first: those within the window, at most one per tenth of a second, and one before the
    /// window.
    history: Mutex<VecDeque<LoadCounts>>,
}

#[derive(Clone, Copy, Debug)]
struct LoadCounts {
    at: Tick,
    admitted: u64,
    finished: u64,
    spent: u64,
}

/// What a gate let through within the last window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentLoad {
    pub(super) rate: Option<f64>,
    /// In milliseconds.
    pub(super) latency: Option<f64>,
}

/// An admission that is being counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedAdmission {
    /// Whether the work was done, so that its duration counts.
    pub(super) finished: bool,
}

impl Sensing {
    pub(super) fn machine(&self) -> Reading {
        match &self.machine {
            Some(read) => read(),
            None => {
                let watch = self.watch.get_or_init(|| Watch::start().ok());
                watch.as_ref().map(Watch::reading).unwrap_or_default()
            }
        }
    }
}

impl Load {
    /// Counts a request that was let through.
    pub(super) fn admit(&self) {
        // Relaxed, here and below: independent counts, which order nothing.
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an admission that begins.
    pub(super) fn begin(&self) -> CountedAdmission {
        self.begun.fetch_add(1, Ordering::Relaxed);
        CountedAdmission { finished: false }
    }

    /// Counts the end of an admission; `took` returns its duration.
    pub(super) fn end(&self, counted: &CountedAdmission, took: impl FnOnce() -> Duration) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if counted.finished {
            self.finish(took());
        }
    }

    /// Counts work that was done, with its duration.
    pub(super) fn finish(&self, took: Duration) {
        self.spent.fetch_add(nanos(took), Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a ticket that is created, until it is closed or expires.
    #[cfg(feature = "ticket")]
    pub(super) fn open_ticket(&self, made: Tick, expires: Tick) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.ended.fetch_add(self.tickets.open(made, expires), Ordering::Relaxed);
    }

    /// Counts the end of a ticket; no effect if the ticket was not counted.
    #[cfg(feature = "ticket")]
    pub(super) fn close_ticket(&self, made: Tick, expires: Tick) {
        if self.tickets.close(made, expires) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of admissions and tickets that have not ended; `None` if there has never been one.
    #[cfg_attr(not(feature = "ticket"), allow(unused_variables, reason = "only tickets expire"))]
    pub(super) fn in_flight(&self, now: Tick) -> Option<u64> {
        #[cfg(feature = "ticket")]
        self.ended.fetch_add(self.tickets.lapse(now), Ordering::Relaxed);
        // Ends are read first, so that an admission that begins and ends between the two loads does not count as an end
        // without a beginning.
        let ended = self.ended.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        (begun > 0).then(|| begun.saturating_sub(ended))
    }

    /// Returns the rate and latency over the window before `now`.
    pub(super) fn recent(&self, now: Tick) -> RecentLoad {
        let counts = LoadCounts {
            at: now,
            admitted: self.admitted.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            spent: self.spent.load(Ordering::Relaxed),
        };
        let mut history = self.history.lock();
        history.push_back(counts);
        // The front entry is the last one taken at or before the start of the window.
        while history.len() > 2 && now.since(history[1].at) >= WINDOW {
            history.pop_front();
        }
        let Some(before) = history.front().filter(|before| before.at < now) else {
            return RecentLoad::default();
        };
        let passed = now.since(before.at).as_secs_f64();
        let finished = counts.finished.saturating_sub(before.finished);
        let spent = counts.spent.saturating_sub(before.spent);
        RecentLoad {
            // A window that is not full yet yields the rate that it would have if nothing followed.
            rate: Some(
                counts.admitted.saturating_sub(before.admitted) as f64 / passed.max(WINDOW.as_secs_f64()),
            ),
            latency: (finished > 0).then(|| spent as f64 / finished as f64 / 1e6),
        }
    }
}

impl fmt::Debug for Sensing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sensing")
            .field("watch", &self.watch)
            .field("load", &self.load)
            .finish_non_exhaustive()
    }
}

/// The number of steps that the life of a ticket is divided into: a ticket that is never settled counts for one step
/// too long at most.
#[cfg(feature = "ticket")]
const STEPS: u64 = 32;

/// The numbers of unsettled tickets: work in progress that the gate does not see itself.
///
/// Tickets are not remembered one by one. They are counted by their expiry time, in steps of about 1/32 of their life,
/// so that a ticket that is never settled stops counting by itself, and the number of counts stays small however many
/// tickets a gate issues. At most 34 counts per step length, which is a power of two: under a kilobyte if
/// all tickets live equally long, and 30 kB at worst.
#[cfg(feature = "ticket")]
#[derive(Debug, Default)]
struct OpenTickets {
    /// The number of tickets by the end of the step in which they expire, in nanoseconds.
    by_end: Mutex<BTreeMap<u64, u64>>,
}

#[cfg(feature = "ticket")]
impl OpenTickets {
    /// Counts a ticket that is created now, and returns how many others have expired. Takes a short lock.
    fn open(&self, made: Tick, expires: Tick) -> u64 {
        let lapsed = self.lapse(made);
        *self.by_end.lock().entry(end(made, expires)).or_default() += 1;
        lapsed
    }

    /// Removes a ticket from the count; `false` if no ticket of its step is counted, for example because it was created
    /// before counting began.
    ///
    /// A ticket that another node created removes one of its step too: if calls are spread evenly over nodes, each node
    /// settles about as many tickets as it creates, so each counts about its own share.
    fn close(&self, made: Tick, expires: Tick) -> bool {
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
    fn lapse(&self, now: Tick) -> u64 {
        let mut by_end = self.by_end.lock();
        let mut lapsed = 0;
        while let Some(first) = by_end.first_entry().filter(|first| *first.key() <= now.as_nanos()) {
            lapsed += first.remove();
        }
        lapsed
    }
}

/// Returns the end of the step in which a ticket expires, or `u64::MAX` if that is later than any tick.
#[cfg(feature = "ticket")]
fn end(made: Tick, expires: Tick) -> u64 {
    let step = (nanos(expires.since(made)) / STEPS).max(1).next_power_of_two();
    expires.as_nanos().checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

#[cfg(all(test, feature = "ticket", not(tidegate_loom)))]
mod tests {
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
