//! One breaker per key, in memory that is bounded up front.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::{Change, CircuitBreaker, CircuitBreakerState, Condition, Force, Forced};
use tidegate_core::{Ask, Cost, Outcome, Quota, QuotaError, Receipt, Retry, State, Tick};

use super::shared;
use crate::answer::Denied;
use crate::clock::{Clock, SystemClock, Time};
use crate::key::Key;
use crate::observer::{KeyDigest, Observer};
use crate::store::{Absent, BreakerView, Charge, Handling, MemoryStore, Occupancy, Op, Settled, Step, Store};

/// One breaker per key, for at most a chosen number of keys: a service that has many addresses, or many services.
///
/// Keys are hashed under a secret seed, as those of a [`KeyedLimiter`](crate::KeyedLimiter), and a key whose breaker is as new takes no
/// room; so its time window, [`ttl`](super::BreakerBuilder::ttl) and [`forget_after`](super::BreakerBuilder::forget_after) say for how long
/// a key is kept. In a full table the key that is nearest to that is forgotten first. A call changes the state of its key in place, and
/// allocates nothing while the key is closed, but for its first call. [Observers](KeyedBreaker::with_observer) are told a digest of the key.
///
/// # Examples
/// ```
/// use tidegate::breaker::{CircuitBreaker, KeyedBreaker};
/// use tidegate::{ManualClock, Outcome};
///
/// let hosts = KeyedBreaker::new(CircuitBreaker::builder().consecutive(1), 1000)?.with_clock(ManualClock::default());
/// hosts.try_enter("10.0.0.7")?.leave(Outcome::Failure);
/// assert!(hosts.try_enter("10.0.0.7").is_err());
/// assert!(hosts.try_enter("10.0.0.8").is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyedBreaker {
    shared: Arc<Keys>,
}

struct Keys {
    quota: Arc<Quota>,
    time: Time,
    store: MemoryStore,
    capacity: usize,
    observer: Option<Arc<dyn Observer>>,
    digests: RandomState,
}

impl KeyedBreaker {
    /// Makes a closed breaker for each key, with room for `capacity` keys, 1 to [`MemoryStore::MAX_KEYS`], living by the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] names the number that is out of range, or the capacity where the system has no memory for it.
    pub fn new<L>(law: L, capacity: usize) -> Result<Self, QuotaError>
    where
        L: TryInto<CircuitBreaker>,
        QuotaError: From<L::Error>,
    {
        let (quota, time) = (Arc::new(Quota::Breaker(law.try_into()?)), Time::new(SystemClock::new()));
        let (store, digests) = (MemoryStore::with_capacity(capacity)?, RandomState::new());
        Ok(Self { shared: Arc::new(Keys { quota, time, store, capacity, observer: None, digests }) })
    }

    /// Returns a breaker that lives by `clock`. A step of construction: every key is closed, and nothing is shared with earlier clones.
    ///
    /// # Panics
    /// Where the system has no memory for the table once more.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        self.again(Time::new(clock), self.shared.observer.clone())
    }

    /// Returns a breaker whose changes of state `observer` is told, with a digest of the key ([`Observer::on_key_change`]). What time brings
    /// about is told when a call of the key next asks to enter, or leaves; that a key was forgotten or [reset](KeyedBreaker::reset) is not
    /// told. A step of construction, as [`KeyedBreaker::with_clock`] is.
    ///
    /// # Panics
    /// As [`KeyedBreaker::with_clock`].
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.again(self.shared.time.again(), Some(Arc::new(observer)))
    }

    fn again(&self, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        let Keys { quota, store, capacity, .. } = &*self.shared;
        let store = store.again(*capacity).expect("the system has memory for the table once more");
        let (quota, capacity, digests) = (Arc::clone(quota), *capacity, RandomState::new());
        Self { shared: Arc::new(Keys { quota, time, store, capacity, observer, digests }) }
    }

    /// Enters the breaker of a key, now or not at all.
    ///
    /// # Errors
    /// [`Denied`], as [`Breaker::try_enter`](crate::Breaker::try_enter).
    pub fn try_enter(&self, key: impl Key) -> Result<KeyedCall, Denied> {
        key.with_bytes(|key| {
            let receipt = self.shared.enter(key).map_err(shared::refused)?;
            Ok(KeyedCall { shared: Arc::clone(&self.shared), key: key.into(), receipt: Some(receipt) })
        })
    }

    /// Says when a call of the key may enter: after no time where it may now. Changes nothing.
    #[must_use]
    pub fn retry(&self, key: impl Key) -> Retry {
        key.with_bytes(|key| self.shared.settle(key, Op::Peek).lines[0].decision.retry())
    }

    /// Returns which state the breaker of a key is in now.
    #[must_use]
    pub fn state(&self, key: impl Key) -> Condition {
        self.look(key).condition
    }

    /// Returns what a person has forced the breaker of a key to, until when, and why.
    #[must_use]
    pub fn forced(&self, key: impl Key) -> Option<Forced> {
        self.look(key).forced
    }

    /// Puts the breaker of one key in a state by hand, for so long, or until [`KeyedBreaker::auto`] where that is `None`; as
    /// [`Breaker::force`](crate::Breaker::force) does.
    ///
    /// Forced keys lie in the table beside all others, so there are never more of them than it has room for. One with an end gives its room
    /// back when that has passed and nobody has asked for the key for [`forget_after`](super::BreakerBuilder::forget_after) since, five minutes
    /// under a law that [never forgets](super::BreakerBuilder::never_forget); at once where it was forced to let calls through and none came.
    /// One without an end is kept until it is released or [reset](KeyedBreaker::reset). In a full table a key that is forced open makes way only where all that it could make way for are
    /// refused as well; one forced to let calls through may make way as any other key, and then goes by its calls again.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::{CircuitBreaker, Force, KeyedBreaker};
    ///
    /// let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 1000)?;
    /// hosts.force("10.0.0.7", Force::Open, Some(Duration::from_secs(600)), "its disk is being replaced");
    /// assert!(hosts.try_enter("10.0.0.7").is_err());
    /// assert!(hosts.try_enter("10.0.0.8").is_ok());
    /// hosts.auto("10.0.0.7");
    /// assert!(hosts.try_enter("10.0.0.7").is_ok(), "a probe");
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn force(&self, key: impl Key, to: Force, time: Option<Duration>, reason: &str) {
        let now = self.shared.time.now();
        let forced = Forced::new(to, time.map(|time| now.after(time)), reason);
        key.with_bytes(|key| {
            self.shared.change(key, (now, Absent::Begins), |law, state, at, tell| {
                law.force_in_place(state, at, Some(forced), tell);
            })
        });
    }

    /// Ends what was forced by hand for a key: from now on it goes by its calls again. After [`Force::Open`] it is tried by probes first.
    pub fn auto(&self, key: impl Key) {
        key.with_bytes(|key| {
            let now = self.shared.time.now();
            self.shared.change(key, (now, Absent::Stays), |law, state, at, tell| {
                law.force_in_place(state, at, None, tell);
            })
        });
    }

    fn look(&self, key: impl Key) -> BreakerView {
        let looked = key.with_bytes(|key| self.shared.settle(key, Op::Breaker(Handling::Look)));
        *looked.breaker.expect("a step of breakers tells how the last one stands")
    }

    /// Forgets a key, and what was forced for it: its breaker is closed, and calls that entered before say nothing.
    pub fn reset(&self, key: impl Key) {
        key.with_bytes(|key| self.shared.settle(key, Op::Reset));
    }

    /// Returns how many keys are held, and how many were evicted.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.shared.store.occupancy()
    }
}

impl Keys {
    /// The law of all keys.
    fn law(&self) -> &CircuitBreaker {
        match &*self.quota {
            Quota::Breaker(law) => law,
            _ => unreachable!("the quota was made of a breaker"),
        }
    }

    fn enter(&self, key: &[u8]) -> Result<Receipt, Retry> {
        let now = self.time.now();
        let entered = self.change(key, (now, Absent::Begins), |law, state, at, tell| {
            law.enter_in_place(state, Ask::allow(at, Cost::ONE), tell)
        });
        entered.expect("a key without a state is given one")
    }

    /// Leaves the breaker of a key; one that was reset meanwhile is younger than the receipt, and learns nothing from it.
    fn leave(&self, key: &[u8], receipt: &Receipt, outcome: Outcome) {
        let now = self.time.now();
        self.change(key, (now, Absent::Stays), |law, state, at, tell| {
            law.leave_in_place(state, at, receipt, outcome, tell);
        });
    }

    /// Changes the breaker of a key, and then tells the observer what has changed. `None` where the key has none, and stays so.
    fn change<R>(
        &self,
        key: &[u8],
        (now, absent): (Tick, Absent),
        change: impl FnOnce(&CircuitBreaker, &mut CircuitBreakerState, Tick, &mut dyn FnMut(Change)) -> R,
    ) -> Option<R> {
        let mut changes: SmallVec<[Change; 1]> = SmallVec::new();
        let mut tell = |change| {
            if self.observer.is_some() {
                changes.push(change);
            }
        };
        let result = self.store.change(key, (&self.quota, absent), now, |cell, at| match &mut cell.state {
            State::Breaker(state) => change(self.law(), state, at, &mut tell),
            _ => unreachable!("the state is of the breaker that all keys have"),
        });
        if let (Some(observer), [_, ..]) = (&self.observer, &*changes) {
            let digest = KeyDigest(self.digests.hash_one(key));
            changes.iter().for_each(|change| observer.on_key_change(change, digest));
        }
        result
    }

    /// Settles what is seldom asked, by a copy of the state.
    fn settle(&self, key: &[u8], op: Op<'_>) -> Settled {
        let charges = [Charge::new(key, &self.quota, Cost::ONE)];
        let step = Step::new(self.time.now(), op, &charges);
        self.store.settle(&step).expect("a store in memory always settles a step of one charge")
    }
}

impl fmt::Debug for KeyedBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreaker").field("occupancy", &self.occupancy()).finish_non_exhaustive()
    }
}

/// A call that a [`KeyedBreaker`] has let through; dropped, it says nothing, as a [`Call`](super::Call). It holds a copy of its key.
#[must_use = "a call that is dropped at once says nothing of the service"]
pub struct KeyedCall {
    shared: Arc<Keys>,
    key: SmallVec<[u8; 32]>,
    receipt: Option<Receipt>,
}

impl KeyedCall {
    /// Says how the call went; how long it took is from entering until now.
    pub fn leave(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(receipt) = self.receipt.take() else { return };
        self.shared.leave(&self.key, &receipt, outcome);
    }
}

impl Drop for KeyedCall {
    fn drop(&mut self) {
        self.end(Outcome::Ignored);
    }
}

impl fmt::Debug for KeyedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedCall").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
