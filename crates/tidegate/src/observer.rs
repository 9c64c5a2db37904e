//! Observers: code that is told of each decision, of each change of a breaker, a switch or a limit that moves, and of what layers, pools,
//! coalesced calls and retriers do, for metrics, logs and alerts.
//!
//! A limiter or a layer without an observer pays one branch per check. Events carry no keys, only digests, so that a metric or a log
//! line cannot become a list of callers' addresses.

mod protection;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::Change;
use tidegate_core::{Cost, Decision, Outcome, Retry, Tick};

pub use self::protection::{CoalesceDid, PoolDid, RetryDecided, SwitchTurned, TurnedBy, TurnedOff};
use crate::store::StoreError;

/// Is told what a limiter decided, how a breaker, a switch or the limit of a bulkhead changed, and what a layer, a pool, a coalesced call or a
/// retrier did.
///
/// Calls come on the thread of the check, after the decision is made and outside every lock: an observer may use the same
/// limiter, and a slow one slows that caller only. Calls of different threads may arrive in another order than their
/// decisions were made. A panic goes through to the caller of the check; what was decided stays decided.
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
    /// Called once for every allow, reserve or wait that was decided; not for peeks.
    fn on_decision(&self, event: &Event) {
        let _ = event;
    }

    /// Called when an allowed charge is undone, with the event of its decision: a reservation that was cancelled, a waiter
    /// that was dropped before it acted. What it gave back may be less than its cost; see [`crate::Reservation::settle`].
    fn on_cancel(&self, event: &Event) {
        let _ = event;
    }

    /// Called when an allowed charge is settled with the units really spent, 1 or more; with the event of its decision.
    fn on_settle(&self, event: &Event, used: u64) {
        let _ = (event, used);
    }

    /// Called when a [`Breaker`](crate::Breaker) changes its state: who or what changed it, and by which figure. A change that time brings
    /// about is told when somebody next enters, leaves or forces. Changes of different threads may be told in another order than they came
    /// about; their ticks order them.
    fn on_change(&self, change: &Change) {
        let _ = change;
    }

    /// Called when the breaker of one key of a [`KeyedBreaker`](crate::KeyedBreaker) changes its state. Goes to [`Observer::on_change`] unless
    /// written, so that one method hears of every breaker.
    fn on_key_change(&self, change: &Change, key: KeyDigest) {
        let _ = key;
        self.on_change(change);
    }

    /// Called when the number of places of a [`Bulkhead`](crate::Bulkhead) was changed: by its law, which may move it with each piece of work
    /// that ends, or by hand. Changes of different threads may be told in another order than they came about; their ticks order them.
    fn on_limit(&self, moved: &LimitMoved) {
        let _ = moved;
    }

    /// Called when a layer of `tidegate-tower` has refused a request, or when a request that it let pass has ended.
    fn on_layer(&self, event: &LayerEvent<'_>) {
        let _ = event;
    }

    /// Called when one of [`Switches`](crate::switches::Switches) is turned off or on: each time by hand, and by a signal where it is then off
    /// for other priorities than before. That the time of what was turned off is over is not told: [`TurnedOff::until`] says it beforehand.
    fn on_switch(&self, turned: &SwitchTurned<'_>) {
        let _ = turned;
    }

    /// Called when a [`BlockingPool`](crate::blocking_pool::BlockingPool) refused work, when a caller's time was up, and when work ended.
    fn on_pool(&self, did: PoolDid) {
        let _ = did;
    }

    /// Called when a call of [`Coalesce`](crate::coalesce::Coalesce) goes out, when another caller waits for it, and when it ends.
    fn on_coalesce(&self, did: CoalesceDid) {
        let _ = did;
    }

    /// Called when a [`Retrier`](crate::retries::Retrier) decided what follows a try that did not succeed.
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

/// Another number of places in a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitMoved {
    /// When, by the bulkhead's clock.
    pub at: Tick,
    /// How many places there were.
    pub from: u64,
    /// How many there are.
    pub to: u64,
}

/// What a layer around a service did with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerEvent<'a> {
    /// The name that the layer was given, or the word for its kind.
    pub layer: &'a str,
    /// What it did.
    pub did: LayerDid,
    /// What a store said, of [`LayerDid::NotSettled`].
    pub error: Option<&'a StoreError>,
}

impl<'a> LayerEvent<'a> {
    /// Makes an event: for layers of other crates.
    #[must_use]
    pub const fn new(layer: &'a str, did: LayerDid) -> Self {
        Self { layer, did, error: None }
    }

    /// Adds what a store said.
    #[must_use]
    pub const fn with_error(self, error: &'a StoreError) -> Self {
        Self { error: Some(error), ..self }
    }
}

/// What a layer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerDid {
    /// It refused a request, or gave it up.
    Refused {
        /// Why.
        cause: RefusalCause,
        /// When asking again is worthwhile.
        retry: Retry,
    },
    /// A request that it let pass has ended; [`Outcome::Ignored`] where its caller went away before. Told by layers that judge how requests
    /// end: those of concurrency, breakers and gates.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
    /// The store of a gate did not settle a request that has ended: limits keep what they were charged, which may be more or less than was spent,
    /// and places are left if they can be. [`LayerEvent::error`] says why.
    NotSettled,
    /// It tried a call again.
    TriedAgain,
    /// It put something else in the place of a failure.
    FellBack,
}

/// What stood in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCause {
    /// Its caller asked too often.
    RateLimit,
    /// As many as there may be are being served already.
    Concurrency,
    /// The service was not ready for it.
    Busy,
    /// The service is left alone, because it failed too often.
    Open,
    /// A policy of a gate refuses it.
    Policy,
    /// Nobody could decide about it: a store did not answer.
    Undecided,
    /// Its time was up before it was begun, or would have been before it could end.
    NoTimeLeft,
    /// Its time was up before the answer came.
    TimedOut,
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
        })
    }
}

/// One decision. Plain numbers, `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When the limiter was asked, by its clock.
    pub at: Tick,
    /// The units asked for.
    pub cost: Cost,
    /// The longest delay the caller accepted; zero for an allow, [`Duration::MAX`] for a wait without a deadline.
    pub max_wait: Duration,
    /// What was decided, by the quota that binds.
    pub decision: Decision,
    /// Which of the limiter's quotas `decision` comes from, counted from 0.
    pub binding: usize,
    /// The digest of the key that was charged; `None` for a limiter without keys.
    pub key: Option<KeyDigest>,
}

/// A number that stands for a key: equal for equal keys of one limiter, unrelated from one limiter or process to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest(pub(crate) u64);

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
