//! One breaker per key, in memory that is bounded up front.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::{CircuitBreaker, Condition, Force, Forced};
use tidegate_core::{Cost, Finish, Outcome, Quota, QuotaError, Receipt, Retry, Tick};

use super::observed::Observed;
use super::shared;
use crate::answer::Denied;
use crate::clock::{Clock, SystemClock, Time};
use crate::key::Key;
use crate::observer::Observer;
use crate::store::{BreakerView, Charge, Ending, Handling, MemoryStore, Occupancy, Op, Settled, Step, Store};

/// One breaker per key, for at most a chosen number of keys: a service that has many addresses, or many services.
///
/// Keys are hashed under a secret seed, as those of a [`KeyedLimiter`](crate::KeyedLimiter), and a key whose breaker is as new takes no
/// room; so its time window, [`ttl`](super::BreakerBuilder::ttl) and [`forget_after`](super::BreakerBuilder::forget_after) say for how long
/// a key is kept. In a full table the key that is nearest to that is forgotten first. Each call copies the state of its key twice, which
/// allocates. [Observers](KeyedBreaker::with_observer) are told a digest of the key.
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
    observed: Option<Observed>,
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
        let store = MemoryStore::with_capacity(capacity)?;
        Ok(Self { shared: Arc::new(Keys { quota, time, store, capacity, observed: None }) })
    }

    /// Returns a breaker that lives by `clock`. A step of construction: every key is closed, and nothing is shared with earlier clones.
    ///
    /// # Panics
    /// Where the system has no memory for the table once more.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let observed = self.shared.observed.as_ref().map(Observed::again);
        self.again(Time::new(clock), observed)
    }

    /// Returns a breaker whose changes of state `observer` is told, with a digest of the key ([`Observer::on_key_change`]). What time brings
    /// about is told when a call of the key next enters or leaves; that a key was forgotten or [reset](KeyedBreaker::reset) is not told. Each
    /// call then takes a lock that all keys share, and looks at its key once more. A step of construction, as [`KeyedBreaker::with_clock`] is.
    ///
    /// # Panics
    /// As [`KeyedBreaker::with_clock`].
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.again(self.shared.time.again(), Some(Observed::by(Arc::new(observer))))
    }

    fn again(&self, time: Time, observed: Option<Observed>) -> Self {
        let Keys { quota, store, capacity, .. } = &*self.shared;
        let store = store.again(*capacity).expect("the system has memory for the table once more");
        let (quota, capacity) = (Arc::clone(quota), *capacity);
        Self { shared: Arc::new(Keys { quota, time, store, capacity, observed }) }
    }

    /// Enters the breaker of a key, now or not at all.
    ///
    /// # Errors
    /// [`Denied`], as [`Breaker::try_enter`](crate::Breaker::try_enter).
    pub fn try_enter(&self, key: impl Key) -> Result<KeyedCall, Denied> {
        key.with_bytes(|key| {
            let settled = self.shared.settle(key, Op::Take);
            let line = &settled.lines[0];
            let Some(receipt) = line.receipt else { return Err(shared::refused(line.decision.retry())) };
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
        self.handle(key, Handling::Look).condition
    }

    /// Returns what a person has forced the breaker of a key to, until when, and why.
    #[must_use]
    pub fn forced(&self, key: impl Key) -> Option<Forced> {
        self.handle(key, Handling::Look).forced
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
        key.with_bytes(|key| self.shared.settle_from(now, key, Op::Breaker(Handling::Force(&forced))));
    }

    /// Ends what was forced by hand for a key: from now on it goes by its calls again. After [`Force::Open`] it is tried by probes first.
    pub fn auto(&self, key: impl Key) {
        self.handle(key, Handling::Release);
    }

    fn handle(&self, key: impl Key, handling: Handling<'_>) -> BreakerView {
        let handled = key.with_bytes(|key| self.shared.settle(key, Op::Breaker(handling)));
        *handled.breaker.expect("a step of breakers tells how the last one stands")
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
    fn settle(&self, key: &[u8], op: Op<'_>) -> Settled {
        self.settle_from(self.time.now(), key, op)
    }

    fn settle_from(&self, now: Tick, key: &[u8], op: Op<'_>) -> Settled {
        match (&self.observed, &*self.quota) {
            (Some(observed), Quota::Breaker(law)) => {
                observed.settle(law, (now, key, op), |op| self.settle_at(now, key, op))
            }
            _ => self.settle_at(now, key, op),
        }
    }

    fn settle_at(&self, now: Tick, key: &[u8], op: Op<'_>) -> Settled {
        let charges = [Charge::new(key, &self.quota, Cost::ONE)];
        let step = Step::new(now, op, &charges);
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
        let endings = [Ending::new(receipt, Finish { used: 0, outcome })];
        self.shared.settle(&self.key, Op::Finish(&endings));
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
