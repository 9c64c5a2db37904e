//! Merges identical calls in flight into one, so that an expired cache entry does not cause a stampede.
//!
//! When a popular cache entry expires, every reader misses it and asks for it again, and a service that answered one
//! call a minute gets ten thousand at once. Here the first caller's call is made, and callers with the same key wait
//! for its answer.

mod caller;

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use tidegate_core::Tick;

use self::caller::{Caller, Waiting};
use crate::clock;
use crate::clock::{Clock, SystemClock};
use crate::job::message_of;
use crate::observer::{CoalesceDid, Observer};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::{deadline, priority};

/// Calls by key, at most one in flight per key. Clones share them.
///
/// Costs an allocation per call that is made, and stores a key per call in flight. A caller that goes before the answer
/// is there looks through all callers that wait for it. Bound the number of calls, and of callers, with a
/// [`Bulkhead`](crate::Bulkhead).
///
/// # Examples
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use tidegate::coalesce::Coalesce;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// static CALLS: AtomicU32 = AtomicU32::new(0);
/// async fn load(id: u32) -> String {
///     CALLS.fetch_add(1, Ordering::Relaxed);
///     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
///     format!("article {id}")
/// }
///
/// let articles = Coalesce::new();
/// let readers = (0..100).map(|_| articles.call(7, || load(7)));
/// let answers = futures_util::future::join_all(readers).await;
/// assert!(answers.iter().all(|answer| answer.as_deref() == Ok("article 7")));
/// assert_eq!(CALLS.load(Ordering::Relaxed), 1);
/// # }
/// ```
pub struct Coalesce<K, V> {
    calls: Arc<Mutex<Calls<K, V>>>,
    /// How many calls were ever begun; each call's number is taken from it.
    begun: Arc<AtomicU64>,
    /// How long after its beginning a call may be joined.
    joinable_for: Duration,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

type Answer<V> = Result<V, CoalesceError>;

/// The calls in flight that callers may join.
type Calls<K, V> = HashMap<K, InFlight<V>, RandomState>;

/// A call in flight, which lives as long as a caller waits for it.
struct InFlight<V> {
    number: u64,
    begun: Tick,
    call: WeakShared<BoxFuture<'static, Answer<V>>>,
    waiting: Arc<Waiting>,
}

/// How long a call may be joined unless [`Coalesce::joinable_for`] says otherwise.
const JOINABLE_FOR: Duration = Duration::from_secs(30);

/// Why a caller of [`Coalesce::call`] has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoalesceError {
    /// The shared call panicked; every caller that shares it gets this error.
    #[error("the shared call panicked: {message}")]
    Panicked {
        /// The panic's message; `no message` if its payload is not text.
        message: Arc<str>,
    },
    /// The deadline that this caller carries passed before there was an answer. The call goes on if others wait for it.
    #[error("no answer of the shared call came in time")]
    TimedOut,
}

impl<K, V> Coalesce<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Makes an empty list of calls.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells `observer` of calls that are made, of callers that join them, and of their ends
    /// ([`Observer::on_coalesce`]), for calls through the returned list and its clones.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Sets how long after its beginning a call may be joined; 30 s if not set. A caller that comes later makes a new
    /// call, which replaces the old one for later callers; callers that already wait for the old one get its answer. So a
    /// call that hangs holds up its key for this long at most. `Duration::MAX`: a call may always be joined.
    #[must_use]
    pub fn joinable_for(self, longest: Duration) -> Self {
        Self { joinable_for: longest, ..self }
    }

    /// Sets the clock for the callers' deadlines and for the age of calls; the default is the [`SystemClock`].
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Makes the call, or waits for the one in flight for the same key. In the second case `call` is not used, so it
    /// has to be the same for equal keys.
    ///
    /// All callers get a clone of one answer: wrap large ones in an `Arc`. A failure is an answer too, and like all
    /// answers it is not kept after the call has ended.
    ///
    /// The call carries no [deadline](crate::deadline::carried), because it may outlast the first caller's, and no
    /// [priority](crate::priority::carried), because callers that join may have a higher one. Set its own with
    /// [`carry_through`](crate::deadline::carry_through). Each caller waits until the deadline that it carries itself. A
    /// caller whose deadline has passed neither makes a call nor joins one.
    ///
    /// # Errors
    /// [`CoalesceError::Panicked`] if the call panicked, and [`CoalesceError::TimedOut`] at the caller's deadline.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call goes on for the other callers that wait for it; when the last of them drops
    /// its future, the call is dropped.
    pub async fn call<F>(&self, key: K, call: impl FnOnce() -> F + Send + 'static) -> Result<V, CoalesceError>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let Some(deadline) = deadline::carried() else { return self.join(key, call).await };
        let until = deadline.tick(&*self.clock);
        if self.clock.now() >= until {
            return Err(CoalesceError::TimedOut);
        }
        let answer = clock::before(&*self.clock, until, self.join(key, call)).await;
        answer.unwrap_or(Err(CoalesceError::TimedOut))
    }

    /// Waits for the call in flight for the key, or makes it.
    fn join<F>(&self, key: K, call: impl FnOnce() -> F + Send + 'static) -> Caller<Answer<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let now = self.clock.now();
        let found = self.calls.lock().get(&key).and_then(|call| self.joinable(call, now));
        match found {
            Some(caller) => {
                self.notify(CoalesceDid::Joined);
                caller
            }
            None => self.begin(key, call, now),
        }
    }

    /// Returns the call if it may still be joined.
    fn joinable(&self, in_flight: &InFlight<V>, now: Tick) -> Option<Caller<Answer<V>>> {
        // The age comes first: the call must not be dropped here, under the lock, which its `Listed` takes.
        let young = now.since(in_flight.begun) < self.joinable_for;
        let call = if young { in_flight.call.upgrade()? } else { return None };
        Some(Caller::new(call, Arc::clone(&in_flight.waiting)))
    }

    /// Returns how many keys have a call in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.calls.lock().len()
    }

    fn begin<F>(&self, key: K, call: impl FnOnce() -> F + Send + 'static, begun: Tick) -> Caller<Answer<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        // Relaxed: it only matters that no two calls have the same number.
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let observer = self.observer.clone();
        let listed = Listed { calls: Arc::downgrade(&self.calls), key: key.clone(), number };
        // Made before the lock is taken, so it is dropped after the lock is released on every path: dropping a call
        // takes the lock.
        let waiting = Arc::new(Waiting::new());
        let told = Arc::clone(&waiting);
        let shared = async move {
            let _listed = listed;
            told.learn().await;
            let nobodys = deadline::carry_nothing(priority::carry_nothing(async move { call().await }));
            let answer = AssertUnwindSafe(nobodys).catch_unwind().await;
            if let Some(observer) = observer {
                observer.on_coalesce(CoalesceDid::Ended { panicked: answer.is_err() });
            }
            answer.map_err(|panic| CoalesceError::Panicked { message: message_of(panic).into() })
        }
        .boxed()
        .shared();
        let weak = shared.downgrade();
        let caller = Caller::new(shared, Arc::clone(&waiting));
        let Some(call) = weak else { return caller };
        let made = InFlight { number, begun, call, waiting };
        let others = match self.calls.lock().entry(key) {
            Entry::Occupied(mut entry) => {
                let others = self.joinable(entry.get(), begun);
                if others.is_none() {
                    // All callers of the old call have gone, or it is too old. Its `Listed` finds another number here, and
                    // leaves the new entry alone.
                    entry.insert(made);
                }
                others
            }
            Entry::Vacant(entry) => {
                entry.insert(made);
                None
            }
        };
        self.notify(if others.is_some() { CoalesceDid::Joined } else { CoalesceDid::Called });
        // If another caller was faster, its call is used and this one is dropped.
        others.unwrap_or(caller)
    }

    fn notify(&self, did: CoalesceDid) {
        if let Some(observer) = &self.observer {
            observer.on_coalesce(did);
        }
    }
}

/// A call's entry in the list. Removed when the call ends or is dropped, unless a later call has replaced it.
struct Listed<K: Hash + Eq, V: Clone> {
    calls: Weak<Mutex<Calls<K, V>>>,
    key: K,
    number: u64,
}

impl<K: Hash + Eq, V: Clone> Drop for Listed<K, V> {
    fn drop(&mut self) {
        let Some(calls) = self.calls.upgrade() else { return };
        let mut calls = calls.lock();
        if calls.get(&self.key).is_some_and(|call| call.number == self.number) {
            let gone = calls.remove_entry(&self.key);
            drop(calls);
            drop(gone);
        }
    }
}

impl<K, V> Coalesce<K, V> {
    fn on(clock: impl Clock + 'static) -> Self {
        Self {
            calls: Arc::new(Mutex::new(Calls::default())),
            begun: Arc::default(),
            joinable_for: JOINABLE_FOR,
            clock: Arc::new(clock),
            observer: None,
        }
    }
}

impl<K, V> Default for Coalesce<K, V> {
    fn default() -> Self {
        Self::on(SystemClock::new())
    }
}

impl<K, V> Clone for Coalesce<K, V> {
    fn clone(&self) -> Self {
        Self {
            calls: Arc::clone(&self.calls),
            begun: Arc::clone(&self.begun),
            joinable_for: self.joinable_for,
            clock: Arc::clone(&self.clock),
            observer: self.observer.clone(),
        }
    }
}

impl<K, V> fmt::Debug for Coalesce<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce").field("in_flight", &self.calls.lock().len()).finish()
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;
