//! Capacity taken now for use after a delay.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Receipt, Tick};

use super::{Answer, Denied, Limiter};
use crate::clock::Clock;
use crate::keyed::KeyedLimiter;
use crate::observer::{Event, KeyDigest, Observer};

/// Capacity taken now, to be used at [`Reservation::act`].
///
/// Dropping it keeps the charge. The holder may well have passed the tick on (to a queue, a header, another machine) and let go
/// of the record; were the capacity given back then, it would be spent twice. Who does not act says so with
/// [`Reservation::cancel`]. For the opposite, capacity that returns when the holder goes away, there is
/// [`Limiter::wait`], whose future is the holder.
///
/// Two counts of references and a few numbers; no lifetime, so it can be stored.
#[derive(Debug)]
#[must_use = "a reservation is charged: act on it or cancel it"]
pub struct Reservation {
    source: Source,
    held: Held,
}

/// What is needed to take a charge back.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) event: Event,
    /// One per quota.
    pub(crate) receipts: SmallVec<[Receipt; 1]>,
    /// Under which terms the receipts were issued; cancelling under others gives nothing back.
    pub(crate) terms: u64,
}

impl Reservation {
    pub(crate) const fn new(source: Source, held: Held) -> Self {
        Self { source, held }
    }

    /// Returns when the work may act, by the limiter's clock: after the ticks of all that reserved before.
    #[must_use]
    pub fn act(&self) -> Tick {
        // The latest of the quotas; each counts from its own last change where the clock stepped back.
        self.held.receipts.iter().map(|receipt| receipt.act).max().unwrap_or(self.held.event.at)
    }

    /// Returns the delay from the making of the reservation until the work may act; zero means at once. It does not shrink
    /// as time passes.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.held.event.decision.wait()
    }

    /// Returns what was decided.
    #[must_use]
    pub const fn answer(&self) -> Answer {
        self.held.event.answer()
    }

    /// Takes the charge back: gives back what nobody later relied on.
    ///
    /// Those who reserved after this keep their times, so capacity that they were promised on is not handed out again;
    /// cancelling the last reservation leaves the limit as if it had not been made. After its tick has passed, nothing is given
    /// back; of several quotas, each that let it act earlier than the others counts from that earlier tick.
    pub fn cancel(self) {
        self.source.cancel(&self.held);
    }

    /// Holds the thread until the tick.
    pub(crate) fn block(self) -> Answer {
        if !self.wait().is_zero() {
            self.source.clock().block_until(self.act());
        }
        self.answer()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.source.clock()
    }
}

/// Where a reservation or a wait is charged.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Limiter(Limiter),
    Key {
        limiter: KeyedLimiter,
        key: Box<[u8]>,
        /// The limit it was charged under, once it was.
        quota: Option<Arc<Quota>>,
    },
}

impl Source {
    pub(crate) fn clock(&self) -> &dyn Clock {
        match self {
            Self::Limiter(limiter) => limiter.clock(),
            Self::Key { limiter, .. } => limiter.clock(),
        }
    }

    /// Returns the limiter's time, which stands still where its clock steps back.
    pub(crate) fn now(&self) -> Tick {
        match self {
            Self::Limiter(limiter) => limiter.now(),
            Self::Key { limiter, .. } => limiter.now(),
        }
    }

    pub(crate) fn reserve(&self, now: Tick, cost: Cost, max_wait: Duration) -> Result<Reservation, Denied> {
        match self {
            Self::Limiter(limiter) => limiter.reserve_at(now, cost, max_wait),
            Self::Key { limiter, key, .. } => limiter.reserve_at(key, now, cost, max_wait),
        }
    }

    pub(crate) fn peek(&self, cost: Cost) -> Answer {
        match self {
            Self::Limiter(limiter) => limiter.peek(cost),
            Self::Key { limiter, key, .. } => limiter.peek_n(key, cost),
        }
    }

    /// Returns the digest of the key, where there is one.
    pub(crate) fn digest(&self) -> Option<KeyDigest> {
        match self {
            Self::Key { limiter, key, .. } => Some(limiter.digest(key)),
            Self::Limiter(_) => None,
        }
    }

    fn cancel(&self, held: &Held) {
        match self {
            Self::Limiter(limiter) => limiter.cancel(held),
            Self::Key { limiter, key, quota } => limiter.cancel(key, quota.as_ref(), held),
        }
    }

    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
        match self {
            Self::Limiter(limiter) => limiter.tell(event),
            Self::Key { limiter, .. } => limiter.tell(event),
        }
    }
}
