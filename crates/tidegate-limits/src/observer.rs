//! Observers: code that is called with each event of a limiter, a guard, a layer or a retrier, for metrics, logs and
//! alerts.
//!
//! A limiter or a layer without an observer pays one branch per check. Events contain digests of keys only, so that a
//! metric or a log line cannot become a list of callers' addresses.

mod events;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::Change;
use tidegate_core::{Outcome, Retry, Tick};

pub use self::events::{
    CoalesceDid, Event, KeyDigest, LayerDid, LayerEvent, LimitMoved, PoolDid, RefusalCause, RetryDecided,
    StepDid, SwitchTurned, TurnedBy, TurnedOff,
};
use crate::refusal_reason::{NoPlace, RefusalReason};

/// Receives the events of limiters, guards, switches, layers, pools, coalesced calls, steps and retriers.
///
/// Methods are called on the thread of the check, after the decision is made and outside every lock: an observer may
/// use the same limiter, and a slow observer delays only that caller. Calls from different threads may arrive in
/// another order than their decisions were made. A panic propagates to the caller of the check; the decision stands,
/// and no place is lost. During another panic it is swallowed by bulkheads and breakers, since two at once abort the
/// process.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tidegate::clock::ManualClock;
/// use tidegate::observer::{Event, Observer};
/// use tidegate::{Limiter, Quota};
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
    /// Returns an observer that passes each event of one part on with a name ([`Observer::on_named`]), so that one
    /// observer can tell the parts apart that share it.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use tidegate::Bulkhead;
    /// use tidegate::observer::{AnyEvent, Observer};
    ///
    /// #[derive(Debug, Default)]
    /// struct Limits(Mutex<Vec<(String, u64)>>);
    ///
    /// impl Observer for Limits {
    ///     fn on_named(&self, name: &str, event: AnyEvent<'_>) {
    ///         if let AnyEvent::Limit(moved) = event {
    ///             self.0.lock().unwrap().push((name.to_owned(), moved.to));
    ///         }
    ///     }
    /// }
    ///
    /// let limits = Arc::new(Limits::default());
    /// let reports = Bulkhead::new(10)?.with_observer(limits.clone().named("reports"));
    /// let search = Bulkhead::new(50)?.with_observer(limits.clone().named("search"));
    /// reports.change(8)?;
    /// search.change(60)?;
    /// assert_eq!(*limits.0.lock().unwrap(), [("reports".to_owned(), 8), ("search".to_owned(), 60)]);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    fn named(self, name: &str) -> Named<Self>
    where
        Self: Sized,
    {
        Named::new(name, self)
    }

    /// Called instead of the method of its kind for each event of a [named](Observer::named) observer; by default calls
    /// that method.
    fn on_named(&self, name: &str, event: AnyEvent<'_>) {
        let _ = name;
        event.tell(self);
    }

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
    /// move it with each finished piece of work; ticks order the changes.
    fn on_limit(&self, moved: &LimitMoved) {
        let _ = moved;
    }

    /// Called when a [`Bulkhead`](crate::Bulkhead) refuses or admits an entry, when an entry is dropped without an
    /// answer, and when admitted work ends.
    ///
    /// An observer that is also given to a layer of `tidegate-tower` around the bulkhead counts one of the two:
    /// `on_layer` if every entry comes through the layer, `on_place` if work also enters the bulkhead directly. How
    /// long work waits in the queue is reported here only.
    fn on_place(&self, did: PlaceDid) {
        let _ = did;
    }

    /// Called when a [`Breaker`](crate::Breaker) refuses a call, and when a call that entered has ended. A change of
    /// state that the call brought about is reported before.
    ///
    /// Around a breaker in a layer of `tidegate-tower`, [`Observer::on_layer`] reports the same calls: count one of the
    /// two, as for [`Observer::on_place`]. The reason of a refusal is reported here only.
    fn on_call(&self, did: &CallDid) {
        let _ = did;
    }

    /// As [`Observer::on_call`], which it calls by default, for a call of one key of a
    /// [`KeyedBreaker`](crate::KeyedBreaker).
    fn on_key_call(&self, did: &CallDid, key: KeyDigest) {
        let _ = key;
        self.on_call(did);
    }

    /// Called when a layer of `tidegate-tower` has refused a request, or when a request that it admitted has ended.
    fn on_layer(&self, event: &LayerEvent<'_>) {
        let _ = event;
    }

    /// Called when one of `Switches` is turned off or on: each time by hand, but by a signal only if the set of
    /// affected priorities changes, also because other policies no longer have a trigger or a switch. The end of a
    /// timed turn-off is not reported: [`TurnedOff::until`] gives it in advance.
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

    /// Called when work of a [`Step`](crate::deadline::Step) is done, and when there was not enough time for it. Work whose
    /// caller went away is not reported.
    fn on_step(&self, did: StepDid) {
        let _ = did;
    }

    /// Called when a [`Retrier`](crate::retries::Retrier) has decided what follows a try that did not succeed.
    fn on_retry(&self, decided: &RetryDecided) {
        let _ = decided;
    }

    /// Called once when a key of `HotKeys` becomes hot, and not again until it has cooled.
    fn on_hot_key(&self, found: &HotKeyFound) {
        let _ = found;
    }
}

/// The methods of [`Observer`], each with the kind of [`AnyEvent`] that carries what it is told.
macro_rules! for_each_event {
    ($write:ident) => {
        $write! {
            on_decision, Decision(event: &Event);
            on_cancel, Cancel(event: &Event);
            on_settle, Settle(event: &Event, used: u64);
            on_change, Change(change: &Change);
            on_key_change, KeyChange(change: &Change, key: KeyDigest);
            on_limit, Limit(moved: &LimitMoved);
            on_place, Place(did: PlaceDid);
            on_call, Call(did: &CallDid);
            on_key_call, KeyCall(did: &CallDid, key: KeyDigest);
            on_layer, Layer(event: &LayerEvent<'_>);
            on_switch, Switch(turned: &SwitchTurned<'_>);
            on_pool, Pool(did: PoolDid);
            on_coalesce, Coalesce(did: CoalesceDid);
            on_step, Step(did: StepDid);
            on_retry, Retry(decided: &RetryDecided);
            on_hot_key, HotKey(found: &HotKeyFound);
        }
    };
}

macro_rules! forward {
    ($($method:ident, $kind:ident($($event:ident: $type:ty),*);)*) => {$(
        fn $method(&self, $($event: $type),*) {
            (**self).$method($($event),*);
        }
    )*};
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    for_each_event!(forward);

    fn on_named(&self, name: &str, event: AnyEvent<'_>) {
        (**self).on_named(name, event);
    }
}

/// An observer that hands each event on with a name: made by [`Observer::named`].
///
/// Costs a call through a pointer for each event.
#[derive(Clone, Debug)]
pub struct Named<O> {
    name: Arc<str>,
    observer: O,
}

impl<O> Named<O> {
    fn new(name: &str, observer: O) -> Self {
        Self { name: name.into(), observer }
    }
}

/// One event of any kind, as passed to [`Observer::on_named`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AnyEvent<'a> {
    /// [`Observer::on_decision`].
    Decision(&'a Event),
    /// [`Observer::on_cancel`].
    Cancel(&'a Event),
    /// [`Observer::on_settle`], with the units really spent.
    Settle(&'a Event, u64),
    /// [`Observer::on_change`].
    Change(&'a Change),
    /// [`Observer::on_key_change`].
    KeyChange(&'a Change, KeyDigest),
    /// [`Observer::on_limit`].
    Limit(&'a LimitMoved),
    /// [`Observer::on_place`].
    Place(PlaceDid),
    /// [`Observer::on_call`].
    Call(&'a CallDid),
    /// [`Observer::on_key_call`].
    KeyCall(&'a CallDid, KeyDigest),
    /// [`Observer::on_layer`].
    Layer(&'a LayerEvent<'a>),
    /// [`Observer::on_switch`].
    Switch(&'a SwitchTurned<'a>),
    /// [`Observer::on_pool`].
    Pool(PoolDid),
    /// [`Observer::on_coalesce`].
    Coalesce(CoalesceDid),
    /// [`Observer::on_step`].
    Step(StepDid),
    /// [`Observer::on_retry`].
    Retry(&'a RetryDecided),
    /// [`Observer::on_hot_key`].
    HotKey(&'a HotKeyFound),
}

impl AnyEvent<'_> {
    /// Passes the event to the method of its kind.
    pub fn tell(self, observer: &(impl Observer + ?Sized)) {
        match self {
            Self::Decision(event) => observer.on_decision(event),
            Self::Cancel(event) => observer.on_cancel(event),
            Self::Settle(event, used) => observer.on_settle(event, used),
            Self::Change(change) => observer.on_change(change),
            Self::KeyChange(change, key) => observer.on_key_change(change, key),
            Self::Limit(moved) => observer.on_limit(moved),
            Self::Place(did) => observer.on_place(did),
            Self::Call(did) => observer.on_call(did),
            Self::KeyCall(did, key) => observer.on_key_call(did, key),
            Self::Layer(event) => observer.on_layer(event),
            Self::Switch(turned) => observer.on_switch(turned),
            Self::Pool(did) => observer.on_pool(did),
            Self::Coalesce(did) => observer.on_coalesce(did),
            Self::Step(did) => observer.on_step(did),
            Self::Retry(decided) => observer.on_retry(decided),
            Self::HotKey(found) => observer.on_hot_key(found),
        }
    }
}

macro_rules! hand_on_with_the_name {
    ($($method:ident, $kind:ident($($event:ident: $type:ty),*);)*) => {$(
        fn $method(&self, $($event: $type),*) {
            self.on_named(&self.name, AnyEvent::$kind($($event),*));
        }
    )*};
}

impl<O: Observer> Observer for Named<O> {
    for_each_event!(hand_on_with_the_name);

    /// The outer of two names wins.
    fn on_named(&self, name: &str, event: AnyEvent<'_>) {
        self.observer.on_named(name, event);
    }
}

/// What became of an entry into a [`Bulkhead`](crate::Bulkhead), and of the work that it admitted.
///
/// Each entry that was tried or polled has one of the first three ends, and each that entered leaves once. Entries that ask for
/// no valid number of places are not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceDid {
    /// It was refused. Told when its caller learns of it: a waiter that gave way to another, at its next poll.
    Refused {
        /// Why.
        cause: NoPlace,
        /// How long it waited in the queue; zero if it was refused at once.
        waited: Duration,
    },
    /// It was dropped before it had an answer: while it waited, or after a try that found no place
    /// ([`Enter::try_now`](crate::Enter::try_now)). A place that it was given meanwhile goes to the next waiter.
    Dropped {
        /// How long it waited in the queue; zero if it was only tried.
        waited: Duration,
    },
    /// It has its places.
    Entered {
        /// How long it waited in the queue; zero if it entered at once.
        waited: Duration,
    },
    /// The work has ended, and its places are returned.
    Left {
        /// How it ended; [`Outcome::Ignored`] if its permit was dropped.
        outcome: Outcome,
        /// How long it held its places, by the bulkhead's clock.
        held: Duration,
    },
}

/// What became of a call that was to go through a [`Breaker`](crate::Breaker) or a
/// [`KeyedBreaker`](crate::KeyedBreaker).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallDid {
    /// It was refused, and not made.
    Refused {
        /// Why.
        reason: RefusalReason,
        /// When a retry is worthwhile.
        retry: Retry,
    },
    /// It has ended. Told of every call that entered, also of those whose end does not count because they began before the last
    /// change of state.
    Ended {
        /// How it ended; [`Outcome::Ignored`] if it was dropped.
        outcome: Outcome,
        /// How long it took since it entered, by the breaker's clock.
        took: Duration,
    },
}

/// A key that has become hot: it makes up more than the chosen share of all, and had not before, or had cooled since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKeyFound {
    /// When, as its caller told the time.
    pub at: Tick,
    /// The digest of the key: see `HotKeys::digest`.
    pub key: KeyDigest,
    /// A lower bound of its count.
    pub least: u64,
    /// The counted total of all keys.
    pub total: u64,
}

impl HotKeyFound {
    /// Creates the event.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(at: Tick, key: KeyDigest, least: u64, total: u64) -> Self {
        Self { at, key, least, total }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Mutex;

    use tidegate_core::breaker::CircuitBreaker;
    use tidegate_core::{Outcome, Quota};

    use super::*;
    use crate::{Breaker, Bulkhead, KeyedBreaker, Limiter, ManualClock};

    const NO_PANIC: &str = "no test panics with the lock";

    #[derive(Debug, Default)]
    struct Names(Mutex<Vec<(String, &'static str)>>);

    impl Observer for Names {
        fn on_named(&self, name: &str, event: AnyEvent<'_>) {
            let kind = match event {
                AnyEvent::Decision(_) => "decision",
                AnyEvent::Change(_) => "change",
                AnyEvent::KeyChange(..) => "key-change",
                AnyEvent::Limit(_) => "limit",
                AnyEvent::Place(_) => "place",
                AnyEvent::Call(_) => "call",
                AnyEvent::KeyCall(..) => "key-call",
                _ => "other",
            };
            self.0.lock().expect(NO_PANIC).push((name.to_owned(), kind));
        }
    }

    #[test]
    fn parts_that_share_an_observer_are_told_apart() {
        let names = Arc::new(Names::default());
        let as_ = |name| Arc::clone(&names).named(name);
        let limiter = Limiter::new(Quota::per_second(1)).unwrap().with_observer(as_("all"));
        let reports = Bulkhead::new(2).unwrap().with_observer(as_("reports"));
        let fragile = || CircuitBreaker::builder().consecutive(1);
        let stock = Breaker::new(fragile()).unwrap().with_observer(as_("stock"));
        let hosts = KeyedBreaker::new(fragile(), 10).unwrap().with_observer(as_("hosts").named("outer"));
        assert!(limiter.with_clock(ManualClock::default()).allow().is_allowed());
        reports.change(3).unwrap();
        reports.enter_n(4).now().unwrap_err();
        stock.try_enter().unwrap().leave(Outcome::Failure);
        hosts.try_enter("a").unwrap().leave(Outcome::Failure);
        let told = names.0.lock().unwrap().clone();
        let told: Vec<_> = told.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        let expected = [
            ("all", "decision"),
            ("reports", "limit"),
            ("reports", "place"),
            ("stock", "change"),
            ("stock", "call"),
            ("outer", "key-change"),
            ("outer", "key-call"),
        ];
        assert_eq!(told, expected);
    }

    #[derive(Debug, Default)]
    struct Unnamed(Mutex<u32>);

    impl Observer for Unnamed {
        fn on_limit(&self, _: &LimitMoved) {
            *self.0.lock().expect(NO_PANIC) += 1;
        }

        fn on_place(&self, _: PlaceDid) {
            *self.0.lock().expect(NO_PANIC) += 10;
        }

        fn on_call(&self, _: &CallDid) {
            *self.0.lock().expect(NO_PANIC) += 100;
        }
    }

    #[test]
    fn an_observer_that_asks_for_no_name_is_told_as_before() {
        let moves = Arc::new(Unnamed::default());
        let reports = Bulkhead::new(2).unwrap().with_observer(Arc::clone(&moves).named("reports"));
        reports.change(3).unwrap();
        assert_eq!(*moves.0.lock().unwrap(), 1);
        drop(reports.try_enter().unwrap());
        let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 10).unwrap();
        let hosts = hosts.with_observer(Arc::clone(&moves).named("hosts"));
        hosts.try_enter("a").unwrap().leave(Outcome::Success);
        assert_eq!(*moves.0.lock().unwrap(), 121);
    }
}
