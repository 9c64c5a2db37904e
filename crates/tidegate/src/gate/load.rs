//! What a gate reads for the conditions and moving rates of its policies: the machine, and what it lets through itself.

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
use crate::signals::{Reading, Watch};
use crate::switches::Switches;

/// Over how long rates and latencies are taken.
const WINDOW: Duration = Duration::from_secs(1);

/// What a gate reads.
#[derive(Default)]
pub(super) struct Sensing {
    pub(super) machine: Option<Arc<dyn Fn() -> Reading + Send + Sync>>,
    /// Started with the first check under policies that ask for it; `None` inside where the system does not tell.
    watch: OnceLock<Option<Watch>>,
    /// What `when: switch NAME off` goes by.
    pub(super) switches: Option<Switches>,
    pub(super) load: Load,
}

/// What a gate lets through.
#[derive(Debug, Default)]
pub(super) struct Load {
    admitted: AtomicU64,
    /// Admissions and tickets that were made.
    begun: AtomicU64,
    /// Those that ended, however.
    ended: AtomicU64,
    #[cfg(feature = "ticket")]
    tickets: OpenTickets,
    /// What was finished, by admissions and by tickets, and how long it took in all.
    finished: AtomicU64,
    spent: AtomicU64,
    /// Earlier counts, the oldest first: at most one for each tenth of a second of the window, and one before it.
    history: Mutex<VecDeque<Counts>>,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    at: Tick,
    admitted: u64,
    finished: u64,
    spent: u64,
}

/// What a gate let through lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lately {
    pub(super) rate: Option<f64>,
    /// In milliseconds.
    pub(super) latency: Option<f64>,
}

/// An admission that is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Whether its work was done, so that it says how long such work takes.
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
        // Relaxed, here and below: counts that order nothing.
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an admission that begins.
    pub(super) fn begin(&self) -> Begun {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Begun { finished: false }
    }

    /// Counts its end, which was `took` later.
    pub(super) fn end(&self, begun: &Begun, took: impl FnOnce() -> Duration) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if begun.finished {
            self.finish(took());
        }
    }

    /// Counts work that was done, and took so long.
    pub(super) fn finish(&self, took: Duration) {
        self.spent.fetch_add(nanos(took), Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a ticket that is made, until it is closed or expires.
    #[cfg(feature = "ticket")]
    pub(super) fn open_ticket(&self, made: Tick, expires: Tick) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.ended.fetch_add(self.tickets.open(made, expires), Ordering::Relaxed);
    }

    /// Counts the end of a ticket; one that was not counted changes nothing.
    #[cfg(feature = "ticket")]
    pub(super) fn close_ticket(&self, made: Tick, expires: Tick) {
        if self.tickets.close(made, expires) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many admissions and tickets are not ended; `None` where none was ever made.
    #[cfg_attr(not(feature = "ticket"), allow(unused_variables, reason = "only tickets expire"))]
    pub(super) fn in_flight(&self, now: Tick) -> Option<u64> {
        #[cfg(feature = "ticket")]
        self.ended.fetch_add(self.tickets.lapse(now), Ordering::Relaxed);
        // Ends first: of an admission that comes and goes between the two, the end is not counted without its beginning.
        let ended = self.ended.load(Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        (begun > 0).then(|| begun.saturating_sub(ended))
    }

    /// Returns what went through within the window before now.
    pub(super) fn lately(&self, now: Tick) -> Lately {
        let counts = Counts {
            at: now,
            admitted: self.admitted.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            spent: self.spent.load(Ordering::Relaxed),
        };
        let mut history = self.history.lock();
        history.push_back(counts);
        // The first that stays is the last one from before the window, or from its edge.
        while history.len() > 2 && now.since(history[1].at) >= WINDOW {
            history.pop_front();
        }
        let Some(before) = history.front().filter(|before| before.at < now) else { return Lately::default() };
        let passed = now.since(before.at).as_secs_f64();
        let finished = counts.finished.saturating_sub(before.finished);
        let spent = counts.spent.saturating_sub(before.spent);
        Lately {
            // A window that is not full yet says what it would hold if nothing followed.
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
