//! The numbers that a gate measures for conditions and moving rates: the load of the machine, and the requests that it
//! lets through.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;
use tidegate_core::time::nanos;

#[cfg(feature = "ticket")]
use super::open_tickets::OpenTickets;
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
