//! Observers: code that is called with each decision of a limiter, each change of a breaker, a switch or a moving
//! limit, and the actions of layers, pools, coalesced calls and retriers, for metrics, logs and alerts.
//!
//! A limiter or a layer without an observer pays one branch per check. Events contain no keys, only digests, so that
//! a metric or a log line cannot become a list of callers' addresses.

mod protection;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::Change;
use tidegate_core::{Cost, Decision, Outcome, Retry, Tick};

pub use self::protection::{CoalesceDid, PoolDid, RetryDecided, SwitchTurned, TurnedBy, TurnedOff};
use crate::store::StoreError;

/// Receives decisions of limiters, changes of breakers, switches and bulkhead limits, and actions of layers, pools,
/// coalesced calls and retriers.
///
/// Methods are called on the thread of the check, after the decision is made and outside every lock: an observer may
/// use the same limiter, and a slow observer delays only that caller. Calls from different threads may arrive in
/// another order than their decisions were made. A panic propagates to the caller of the check; the decision stands.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::{Limiter, ManualClock, Quota, observer::{Event, Observer}};
///
/// #[derive(Debug, Default)]
/// struct Refusals(AtomicU64);
///
/// impl Observer for Refusals {
///     fn on_decision(&self, event: &Event) {
///         self.0.fetch_add(u64::from(!event.decision.is_allowed()), Ordering::Relaxed);
///     }
/// }
///
/// let refusals = Arc::new(Refusals::default());
/// let limiter = Limiter::new(Quota::per_second(2))?
///     .with_clock(ManualClock::default())
///     .with_observer(refusals.clone());
/// for _ in 0..5 {
///     let _ = limiter.allow();
/// }
/// assert_eq!(refusals.0.load(Ordering::Relaxed), 3);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called once for each decision of an allow, a reserve or a wait; not for peeks.
    fn on_decision(&self, event: &Event) {
        let _ = event;
    }

    /// Called when an allowed charge is undone, with the event of its decision: a reservation was cancelled, or a
    /// waiter was dropped before it acted. The amount given back may be less than its cost; see
    /// [`crate::Reservation::settle`].
    fn on_cancel(&self, event: &Event) {
        let _ = event;
    }

    /// Called when an allowed charge is settled with the units really spent, 1 or more, with the event of its
    /// decision.
    fn on_settle(&self, event: &Event, used: u64) {
        let _ = (event, used);
    }

    /// Called when a [`Breaker`](crate::Breaker) changes its state, with the cause and the figure. A change by time
    /// alone is reported with the next call that enters, leaves or forces a state. Changes from different threads may
    /// be reported in another order than they happened; their ticks order them.
    fn on_change(&self, change: &Change) {
        let _ = change;
    }

    /// Called when the breaker of one key of a [`KeyedBreaker`](crate::KeyedBreaker) changes its state. By default it
    /// calls [`Observer::on_change`], so that one method receives the changes of every breaker.
    fn on_key_change(&self, change: &Change, key: KeyDigest) {
        let _ = key;
        self.on_change(change);
    }

    /// Called when the number of places of a [`Bulkhead`](crate::Bulkhead) changes, by hand or by its law, which may
    /// move it with each finished piece of work. Changes from different threads may be reported in another order than
    /// they happened; their ticks order them.
    fn on_limit(&self, moved: &LimitMoved) {
        let _ = moved;
    }

    /// Called when a layer of `tidegate-tower` has refused a request, or when a request that it admitted has ended.
    fn on_layer(&self, event: &LayerEvent<'_>) {
        let _ = event;
    }

    /// Called when one of [`Switches`](crate::switches::Switches) is turned off or on: each time by hand, but by a
    /// signal only if the set of affected priorities changes. The end of a timed turn-off is not reported:
    /// [`TurnedOff::until`] gives it in advance.
    fn on_switch(&self, turned: &SwitchTurned<'_>) {
        let _ = turned;
    }

    /// Called when a [`BlockingPool`](crate::blocking_pool::BlockingPool) refuses work, when a caller's time is up,
    /// and when work ends.
    fn on_pool(&self, did: PoolDid) {
        let _ = did;
    }

    /// Called when a call of [`Coalesce`](crate::coalesce::Coalesce) is made, when another caller waits for it, and
    /// when it ends.
    fn on_coalesce(&self, did: CoalesceDid) {
        let _ = did;
    }

    /// Called when a [`Retrier`](crate::retries::Retrier) has decided what follows a try that did not succeed.
    fn on_retry(&self, decided: &RetryDecided) {
        let _ = decided;
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn on_decision(&self, event: &Event) {
        (**self).on_decision(event);
    }

    fn on_cancel(&self, event: &Event) {
        (**self).on_cancel(event);
    }

    fn on_settle(&self, event: &Event, used: u64) {
        (**self).on_settle(event, used);
    }

    fn on_change(&self, change: &Change) {
        (**self).on_change(change);
    }

    fn on_key_change(&self, change: &Change, key: KeyDigest) {
        (**self).on_key_change(change, key);
    }

    fn on_limit(&self, moved: &LimitMoved) {
        (**self).on_limit(moved);
    }

    fn on_layer(&self, event: &LayerEvent<'_>) {
        (**self).on_layer(event);
    }

    fn on_switch(&self, turned: &SwitchTurned<'_>) {
        (**self).on_switch(turned);
    }

    fn on_pool(&self, did: PoolDid) {
        (**self).on_pool(did);
    }

    fn on_coalesce(&self, did: CoalesceDid) {
        (**self).on_coalesce(did);
    }

    fn on_retry(&self, decided: &RetryDecided) {
        (**self).on_retry(decided);
    }
}

/// A change of the number of places of a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitMoved {
    /// When it changed, by the bulkhead's clock.
    pub at: Tick,
    /// The number of places before.
    pub from: u64,
    /// The number of places after.
    pub to: u64,
}

/// An action of a layer around a service on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerEvent<'a> {
    /// The name that the layer was given, or else the word for its kind.
    pub layer: &'a str,
    /// What it did.
    pub did: LayerDid,
    /// The store's error, for [`LayerDid::NotSettled`].
    pub error: Option<&'a StoreError>,
}

impl<'a> LayerEvent<'a> {
    /// Makes an event, for layers in other crates.
    #[must_use]
    pub const fn new(layer: &'a str, did: LayerDid) -> Self {
        Self { layer, did, error: None }
    }

    /// Adds a store's error.
    #[must_use]
    pub const fn with_error(self, error: &'a StoreError) -> Self {
        Self { error: Some(error), ..self }
    }
}

/// An action of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerDid {
    /// It refused a request, or gave up on it.
    Refused {
        /// Why.
        cause: RefusalCause,
        /// When a retry is worthwhile.
        retry: Retry,
    },
    /// A request that it admitted has ended; [`Outcome::Ignored`] if its caller went away before. Reported by layers
    /// that judge how requests end: those of concurrency limits, breakers and gates.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
    /// The store of a gate did not settle a request that has ended. Limits keep the amount charged, which may be more
    /// or less than was spent, and places are returned if possible. [`LayerEvent::error`] has the reason.
    NotSettled,
    /// It retried a call.
    TriedAgain,
    /// It replaced a failure by a fallback.
    FellBack,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCause {
    /// Its caller exceeded a rate limit.
    RateLimit,
    /// The allowed number of requests is in progress.
    Concurrency,
    /// The service was not ready for it.
    Busy,
    /// The breaker is open, because the service failed too often.
    Open,
    /// A policy of a gate refused it.
    Policy,
    /// No decision was possible: a store did not answer.
    Undecided,
    /// It was not begun, because its time was up, or would have been before it could end.
    NoTimeLeft,
    /// It was begun, and its time was up before the answer came. It may have taken effect.
    TimedOut,
    /// It was begun, and the time of the request that it belongs to was up before the answer came: less than half of the
    /// usual time was left for the called service. It may have taken effect, and says nothing of that service.
    CutShort,
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RateLimit => "over the rate limit",
            Self::Concurrency => "too many requests at once",
            Self::Busy => "the service is busy",
            Self::Open => "the circuit is open",
            Self::Policy => "a policy refuses the request",
            Self::Undecided => "the limits could not be looked up",
            Self::NoTimeLeft => "no time is left for the request",
            Self::TimedOut => "no answer came in time",
            Self::CutShort => "no answer came in the short time that was left",
        })
    }
}

/// One decision of a limiter. Plain numbers, `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When the limiter was asked, by its clock.
    pub at: Tick,
    /// The units asked for.
    pub cost: Cost,
    /// The longest delay the caller accepted; zero for an allow, [`Duration::MAX`] for a wait without a deadline.
    pub max_wait: Duration,
    /// The decision, by the binding quota.
    pub decision: Decision,
    /// The index of the quota that `decision` comes from, from 0.
    pub binding: usize,
    /// The digest of the key that was charged; `None` for a limiter without keys.
    pub key: Option<KeyDigest>,
}

/// A number that stands for a key: equal for equal keys of one limiter, but unrelated between limiters or processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest(pub(crate) u64);

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
