//! Takes a node out of a running fleet while it goes on answering: health says that it is not ready, it draws no units
//! ahead, and when no request has come for a while, it hands its part of the limits over. All of it can be undone.

use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate::store::leased::LeaseHealth;
use tokio::sync::watch;

use crate::decider::Decider;

/// Without a request for this long, whoever sends them has noticed.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// Whether a node is taken out, and how far that is.
#[derive(Debug)]
pub(crate) struct Drain {
    ready: watch::Sender<bool>,
    began: Mutex<Option<Began>>,
}

/// What was when the drain began, and when the last request came.
#[derive(Clone, Copy, Debug)]
struct Began {
    at: Tick,
    requests: u64,
    leases: Option<LeaseHealth>,
    last: Tick,
    seen: u64,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainState {
    pub(crate) since: Tick,
    /// How long no request has come.
    pub(crate) quiet: Duration,
    /// How many have come since the drain began.
    pub(crate) requests: u64,
    /// `None` where nothing is drawn ahead.
    pub(crate) leases: Option<DrainedLeases>,
    /// Whether other nodes may have this one's part; `None` where nodes do not agree on parts.
    pub(crate) handed_over: Option<bool>,
}

/// Units that the node had drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainedLeases {
    /// Still held.
    pub(crate) held: u64,
    /// Given back since the drain began.
    pub(crate) returned: u64,
    /// Lost since then, until the rate returns them.
    pub(crate) burned: u64,
}

impl DrainState {
    /// Returns whether the node may be stopped without a loss.
    pub(crate) fn may_stop(&self) -> bool {
        let holds = self.leases.is_some_and(|leases| leases.held > 0);
        self.quiet >= QUIET && !holds && self.handed_over != Some(false)
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { ready: watch::Sender::new(true), began: Mutex::default() }
    }
}

impl Drain {
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Returns a receiver that learns when the node becomes ready or ceases to be.
    pub(crate) fn readiness(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Begins. Returns `false` if it had begun.
    pub(crate) fn begin(&self, decider: &Decider) -> bool {
        let mut began = self.began.lock();
        if began.is_some() {
            return false;
        }
        let (now, requests) = (decider.now(), decider.metrics.requests.decided());
        let leases = decider.storage.lease_health();
        *began = Some(Began { at: now, requests, leases, last: now, seen: requests });
        decider.storage.draw_ahead(false);
        self.ready.send_replace(false);
        tracing::info!("drained by an operator: not ready any more, requests are still answered");
        true
    }

    /// Undoes it. Returns whether there was something to undo.
    pub(crate) fn undo(&self, decider: &Decider) -> bool {
        let mut began = self.began.lock();
        if began.take().is_none() {
            return false;
        }
        decider.storage.join_again();
        decider.storage.draw_ahead(true);
        self.ready.send_replace(true);
        tracing::info!("no longer drained: ready again");
        true
    }

    /// Goes on with it: hands the part over once no requests come. Called a few times a second.
    pub(crate) fn go_on(&self, decider: &Decider) {
        let mut began = self.began.lock();
        let Some(began) = &mut *began else { return };
        let (now, requests) = (decider.now(), decider.metrics.requests.decided());
        if requests != began.seen {
            (began.seen, began.last) = (requests, now);
        } else if now.since(began.last) >= QUIET {
            decider.storage.hand_over();
        }
    }

    /// Returns how far it is; `None` if the node serves as usual.
    pub(crate) fn state(&self, decider: &Decider) -> Option<DrainState> {
        let began = (*self.began.lock())?;
        let requests = decider.metrics.requests.decided();
        let quiet = if requests == began.seen { decider.now().since(began.last) } else { Duration::ZERO };
        let health = decider.storage.lease_health();
        let leases = health.zip(began.leases).map(|(now, before)| DrainedLeases {
            held: now.outstanding + now.reserved,
            returned: now.returned - before.returned,
            burned: now.burned - before.burned,
        });
        let handed_over = decider.storage.membership().map(|status| status.joined.is_none());
        Some(DrainState {
            since: began.at,
            quiet,
            requests: requests - began.requests,
            leases,
            handed_over,
        })
    }
}
