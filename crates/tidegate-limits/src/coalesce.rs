//! Merges identical calls in flight into one, so that an expired cache entry does not cause a stampede.
//!
//! Here the first caller's call is made, and callers with the same key wait for its answer.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tidegate_core::Tick;

use crate::clock::{self, Clock, SystemClock};
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
/// use tidegate::bulkhead::coalesce::Coalesce;
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
    begun: Arc<AtomicU64>,
    joinable_for: Duration,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

type CallResult<V> = Result<V, CoalesceError>;

type Calls<K, V> = HashMap<K, InFlight<V>, RandomState>;

/// A call in flight, which lives as long as a caller waits for it.
struct InFlight<V> {
    number: u64,
    begun: Tick,
    call: WeakShared<BoxFuture<'static, CallResult<V>>>,
    waiting: Arc<CallersWaker>,
}

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
    /// call, which replaces the old one for later callers; callers that already wait for the old one get its answer. So
    /// a call that hangs holds up its key for this long at most. `Duration::MAX`: a call may always be joined.
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
    /// [`carry_through`](crate::deadline::carry_through). Each caller waits until the deadline that it carries itself.
    /// A caller whose deadline has passed neither makes a call nor joins one.
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
        let until = deadline.at(&*self.clock);
        if self.clock.now() >= until {
            return Err(CoalesceError::TimedOut);
        }
        let answer = clock::before(&*self.clock, until, self.join(key, call)).await;
        answer.unwrap_or(Err(CoalesceError::TimedOut))
    }

    fn join<F>(&self, key: K, call: impl FnOnce() -> F + Send + 'static) -> Caller<CallResult<V>>
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

    fn joinable(&self, in_flight: &InFlight<V>, now: Tick) -> Option<Caller<CallResult<V>>> {
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

    fn begin<F>(
        &self,
        key: K,
        call: impl FnOnce() -> F + Send + 'static,
        begun: Tick,
    ) -> Caller<CallResult<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        // Relaxed: it only matters that no two calls have the same number.
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let observer = self.observer.clone();
        let listed = Listed { calls: Arc::downgrade(&self.calls), key: key.clone(), number };
        // Made before the lock is taken, so it is dropped after the lock is released on every path: dropping a call
        // takes the lock.
        let waiting = Arc::new(CallersWaker::new());
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

// One caller of a shared call, and how a caller that goes hands the call on to the others.
//
// Whichever caller is polled polls the call. A call may be woken while one caller polls it. That wakes this caller, and
// not another that came during the poll, since that one has only begun to wait. If the first caller then goes without
// polling again, nobody would poll a call that is ready to go on. So a caller that goes wakes all who are left.

/// Wakes all callers that wait for the call; `None` before the call was first polled.
#[derive(Debug)]
struct CallersWaker(Mutex<Option<Waker>>);

impl CallersWaker {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps the waker of the call that awaits this. A shared call has the same one whenever it is polled.
    async fn learn(&self) {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        *self.0.lock() = Some(waker);
    }

    fn wake(&self) {
        let waker = self.0.lock().clone();
        // After the lock is released, since wakers are foreign code.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Caller<T: Clone> {
    call: Option<Shared<BoxFuture<'static, T>>>,
    waiting: Arc<CallersWaker>,
}

impl<T: Clone> Caller<T> {
    const fn new(call: Shared<BoxFuture<'static, T>>, waiting: Arc<CallersWaker>) -> Self {
        Self { call: Some(call), waiting }
    }
}

impl<T: Clone> Future for Caller<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let call = self.call.as_mut().expect("a caller with its answer is not polled again");
        let answer = Pin::new(call).poll(cx);
        if answer.is_ready() {
            self.call = None;
        }
        answer
    }
}

impl<T: Clone> Drop for Caller<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // Dropped first, since this caller is not to be woken.
            drop(call);
            self.waiting.wake();
        }
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use futures_util::future::poll_fn;
    use tidegate_core::{Criticality, Priority, Tick};

    use super::*;
    use crate::block_on::block_on;
    use crate::clock::ManualClock;
    use crate::deadline::Deadline;

    /// A call that counts itself and ends at its third poll.
    fn slow(calls: &Arc<AtomicU32>) -> impl FnOnce() -> BoxFuture<'static, u32> + Send + 'static {
        let calls = Arc::clone(calls);
        move || {
            let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
            let mut polls = 0;
            poll_fn(move |cx| {
                polls += 1;
                if polls == 3 {
                    return Poll::Ready(number);
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .boxed()
        }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_call_goes_on_when_the_caller_who_began_it_goes() {
        let (coalesce, calls) = (Coalesce::new(), Arc::default());
        let mut first = Box::pin(coalesce.call("key", slow(&calls)));
        let mut second = pin!(coalesce.call("key", slow(&calls)));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        assert_eq!(coalesce.in_flight(), 1);
        drop(first);
        assert_eq!(block_on(second.as_mut()), Ok(1));
        assert_eq!((calls.load(Ordering::Relaxed), coalesce.in_flight()), (1, 0));
    }

    #[derive(Debug, Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Regression: the call was woken while the first caller polled it, which woke that caller alone; the second came during
    /// that poll. When the first then went, nobody polled the call again, and the second waited for good.
    #[test]
    fn a_caller_that_goes_although_it_was_woken_hands_the_call_on() {
        let (coalesce, woken) = (Coalesce::new(), Arc::new(Woken::default()));
        let second: Arc<Mutex<Option<BoxFuture<'static, _>>>> = Arc::default();
        let (joins, waker, comes) = (coalesce.clone(), Waker::from(Arc::clone(&woken)), Arc::clone(&second));
        let mut is_second = false;
        let call = poll_fn(move |cx| {
            if std::mem::replace(&mut is_second, true) {
                return Poll::Ready(7);
            }
            cx.waker().wake_by_ref();
            let joins = joins.clone();
            let mut waits = async move { joins.call("key", std::future::pending).await }.boxed();
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            *comes.lock() = Some(waits);
            Poll::Pending
        });
        let mut first = Box::pin(coalesce.call("key", || call));
        assert!(poll(first.as_mut()).is_pending());
        assert!(!woken.0.load(Ordering::Relaxed), "the first was woken");
        drop(first);
        assert!(woken.0.load(Ordering::Relaxed), "it is the second's turn");
        let second = second.lock().take().expect("it waits");
        assert_eq!((block_on(second), coalesce.in_flight()), (Ok(7), 0));
    }

    #[test]
    fn a_call_that_all_have_left_is_dropped_and_the_next_is_a_new_one() {
        let (coalesce, calls) = (Coalesce::new(), Arc::default());
        let mut first = Box::pin(coalesce.call("key", slow(&calls)));
        assert!(poll(first.as_mut()).is_pending());
        drop(first);
        assert_eq!(coalesce.in_flight(), 0);
        assert_eq!(block_on(coalesce.call("key", slow(&calls))), Ok(2));
        assert_eq!(block_on(coalesce.call("key", slow(&calls))), Ok(3), "an answer is not kept");
    }

    #[test]
    fn a_call_that_hangs_is_not_joined_for_ever() {
        let (clock, calls) = (ManualClock::default(), Arc::new(AtomicU32::new(0)));
        let coalesce = Coalesce::new().joinable_for(Duration::from_secs(5)).with_clock(clock.clone());
        let hangs = || std::future::pending::<u32>();
        let mut first = Box::pin(coalesce.call("key", hangs));
        assert!(poll(first.as_mut()).is_pending());
        clock.advance(Duration::from_secs(5) - Duration::from_nanos(1));
        let mut joins = pin!(coalesce.call("key", slow(&calls)));
        assert!(poll(joins.as_mut()).is_pending());
        assert_eq!(calls.load(Ordering::Relaxed), 0, "still joined");
        clock.advance(Duration::from_nanos(1));
        let mut fresh = pin!(coalesce.call("key", slow(&calls)));
        assert!(poll(fresh.as_mut()).is_pending());
        let mut joins_fresh = pin!(coalesce.call("key", slow(&calls)));
        assert!(poll(joins_fresh.as_mut()).is_pending());
        assert_eq!(coalesce.in_flight(), 1);
        // The end of the old call leaves the entry of the new one alone.
        drop(first);
        assert!(poll(joins.as_mut()).is_pending());
        assert_eq!((block_on(fresh), block_on(joins_fresh)), (Ok(1), Ok(1)));
        assert_eq!((calls.load(Ordering::Relaxed), coalesce.in_flight()), (1, 0));
    }

    #[test]
    fn other_keys_have_calls_of_their_own() {
        let (coalesce, calls) = (Coalesce::new(), Arc::default());
        let mut one = pin!(coalesce.call(1, slow(&calls)));
        let mut two = pin!(coalesce.call(2, slow(&calls)));
        assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
        assert_eq!(coalesce.in_flight(), 2);
        assert_eq!((block_on(two), block_on(one)), (Ok(2), Ok(1)));
    }

    #[test]
    fn a_panic_is_told_to_all_and_then_forgotten() {
        let coalesce: Coalesce<&str, u32> = Coalesce::new();
        let panics = || async { panic!("the database does") };
        let mut one = pin!(coalesce.call("key", panics));
        let mut two = pin!(coalesce.call("key", panics));
        let told = Err(CoalesceError::Panicked { message: "the database does".into() });
        assert_eq!(poll(one.as_mut()), Poll::Ready(told.clone()));
        assert_eq!(block_on(two.as_mut()), told, "a call of its own, which panics too");
        assert_eq!(coalesce.in_flight(), 0);
        assert_eq!(block_on(coalesce.call("key", || async { 5 })), Ok(5));
    }

    /// The first caller's deadline used to bound the answers of all: work that read the time left found that of the
    /// last caller that polled it.
    #[test]
    fn the_call_carries_nobodys_deadline_and_nobodys_priority() {
        let coalesce: Coalesce<&str, Option<Deadline>> = Coalesce::new().with_clock(ManualClock::default());
        let asks = || async { deadline::carried() };
        let ranks: Coalesce<&str, Option<Priority>> = Coalesce::new();
        let rank = ranks.call("key", || async { priority::carried() });
        assert_eq!(block_on(priority::carry_through(Criticality::Sheddable, rank)), Ok(None));
        let mine = Deadline::from(Tick::from_secs(1));
        let answer = block_on(deadline::carry_through(mine, coalesce.call("key", asks)));
        assert_eq!(answer, Ok(None));
        let own = move || deadline::carry_through(Tick::from_secs(9), asks());
        let answer = block_on(deadline::carry_through(mine, coalesce.call("key", own)));
        assert_eq!(answer, Ok(Some(Tick::from_secs(9).into())));
    }

    /// Each caller has its own deadline: the one with the least time leaves, and the call goes on for the other.
    #[test]
    fn a_caller_waits_until_its_own_deadline() {
        let clock = ManualClock::default();
        let coalesce: Coalesce<&str, u32> = Coalesce::new().with_clock(clock.clone());
        let done = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&done);
        let ends = move || {
            poll_fn(move |_| match seen.load(Ordering::Relaxed) {
                0 => Poll::Pending,
                answer => Poll::Ready(answer),
            })
        };
        let mut brief = Box::pin(deadline::carry_through(Tick::from_secs(1), coalesce.call("key", ends)));
        let mut patient = Box::pin(deadline::carry_through(
            Tick::from_secs(9),
            coalesce.call("key", || async { unreachable!("the first call answers both") }),
        ));
        assert!(poll(brief.as_mut()).is_pending() && poll(patient.as_mut()).is_pending());
        clock.advance(Duration::from_secs(1));
        assert_eq!(poll(brief.as_mut()), Poll::Ready(Err(CoalesceError::TimedOut)));
        assert!(poll(patient.as_mut()).is_pending());
        let late = deadline::carry_through(Tick::from_secs(1), coalesce.call("other", || async { 6 }));
        assert_eq!(block_on(late), Err(CoalesceError::TimedOut), "it had passed before");
        done.store(5, Ordering::Relaxed);
        assert_eq!(block_on(patient), Ok(5));
        assert_eq!(coalesce.in_flight(), 0);
    }

    /// The last waiting caller goes on one thread while another comes on a second one: the new caller gets an answer,
    /// from the old call or a new one, and the end of the old call does not remove the new one from the list.
    #[test]
    fn whoever_comes_while_the_last_one_goes_gets_an_answer() {
        let coalesce: Coalesce<&str, u32> = Coalesce::new();
        let (together, mut wrong) = (Barrier::new(2), Vec::new());
        std::thread::scope(|scope| {
            let (coalesce_too, together) = (coalesce.clone(), &together);
            scope.spawn(move || {
                for _ in 0..2000 {
                    let mut last = Box::pin(coalesce_too.call("key", slow(&Arc::default())));
                    let _ = poll(last.as_mut());
                    together.wait();
                    drop(last);
                    together.wait();
                    together.wait();
                }
            });
            for _ in 0..2000 {
                together.wait();
                let mut comes = Box::pin(coalesce.call("key", slow(&Arc::default())));
                let at_once = poll(comes.as_mut());
                together.wait();
                // The old call has ended or was dropped by now, so the list has the new one or none.
                let listed = coalesce.in_flight();
                let answer = if at_once.is_pending() { block_on(comes) } else { Ok(1) };
                let seen = (listed, answer, coalesce.in_flight());
                if seen != (usize::from(at_once.is_pending()), Ok(1), 0) {
                    wrong.push(seen);
                }
                together.wait();
            }
        });
        assert_eq!(wrong, []);
    }

    /// Many threads over few keys: each call's answer reaches all that share it, none is lost, and the list is empty
    /// afterwards.
    #[test]
    fn threads_that_come_and_go_leave_nothing_behind() {
        let coalesce: Coalesce<u32, u32> = Coalesce::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let coalesce = coalesce.clone();
                scope.spawn(move || {
                    let calls = Arc::default();
                    for round in 0..500 {
                        let mut call = Box::pin(coalesce.call(round % 3, slow(&calls)));
                        if (round + thread) % 5 == 0 {
                            let _ = poll(call.as_mut());
                        } else {
                            assert!(block_on(call).is_ok());
                        }
                    }
                });
            }
        });
        assert_eq!(coalesce.in_flight(), 0);
    }

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<CoalesceDid>>);

    impl Observer for Heard {
        fn on_coalesce(&self, did: CoalesceDid) {
            self.0.lock().push(did);
        }
    }

    #[test]
    fn an_observer_hears_who_calls_and_who_waits_for_it() {
        let (heard, calls) = (Arc::new(Heard::default()), Arc::default());
        let coalesce = Coalesce::new().with_observer(heard.clone());
        let mut first = pin!(coalesce.call("key", slow(&calls)));
        assert!(poll(first.as_mut()).is_pending());
        assert_eq!(block_on(coalesce.clone().call("key", slow(&calls))), Ok(1));
        assert_eq!(block_on(first), Ok(1));
        assert!(block_on(coalesce.call("key", || async { panic!("on purpose") })).is_err());
        let ended = |panicked| CoalesceDid::Ended { panicked };
        let expected =
            [CoalesceDid::Called, CoalesceDid::Joined, ended(false), CoalesceDid::Called, ended(true)];
        assert_eq!(*heard.0.lock(), expected);
    }
}
