//! Limits by key, in a table of bounded memory.
//!
//! A key that is full again takes no memory, and a flood of new keys cannot grow the table (see [`MemoryStore`] for
//! which key is evicted from a full table).

mod shared;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use tidegate_core::{Cost, NotACost, Quota, QuotaError, Replace, Standing};

use self::shared::{KeySource, KeyedState, Standard};
use crate::answer::{Answer, TakeError};
use crate::clock::{Clock, SystemClock, Time};
use crate::key::Key;
use crate::observer::{KeyDigest, Observer};
use crate::precision::Precision;
use crate::reservation::Reservation;
use crate::store::{MemoryStore, Occupancy, Store};
use crate::sync::unexplored::{AtomicU64, Mutex};
use crate::wait::Wait;

/// One limit for each key, for a bounded number of live keys.
///
/// A [`Key`] is hashed under a secret seed and not stored. A clone shares the state and costs one reference count.
///
/// # Examples
/// ```
/// use tidegate::clock::ManualClock;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::new(Quota::per_minute(2), 100_000)?.with_clock(ManualClock::default());
/// assert!(limiter.allow("ann").is_allowed());
/// assert!(limiter.allow("ann").is_allowed());
/// assert!(!limiter.allow("ann").is_allowed());
/// assert!(limiter.allow("bob").is_allowed(), "everybody has their own");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedLimiter {
    shared: Arc<KeyedState>,
}

impl KeyedLimiter {
    /// Makes a limiter in which every key starts full, with room for `capacity` live keys, 1 to
    /// [`MemoryStore::MAX_KEYS`], on the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] names the setting that is out of range, or the capacity if it is out of range or the system has
    /// too little memory for it.
    pub fn new<Q>(quota: Q, capacity: usize) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let time = Time::new(SystemClock::new());
        let quota = time.followed(&Arc::new(quota.try_into()?));
        let standard = Standard { quota, replace: Replace::AsIs, terms: 0 };
        let shared = KeyedState {
            fast_class: AtomicU64::new(0),
            precision: Precision::default(),
            time,
            store: MemoryStore::with_capacity(capacity)?,
            standard: ArcSwap::from_pointee(standard),
            publishing: Mutex::new(()),
            resolver: None,
            capacity,
            observer: None,
            digests: RandomState::default(),
        };
        shared.publish_class();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a limiter on `clock`. A construction step: the result starts full and shares nothing with earlier clones, because ticks of two
    /// clocks cannot be compared.
    ///
    /// # Panics
    /// If the system has too little memory for a second table.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        self.rebuilt(|shared| {
            shared.time = Time::new(clock);
            let standard = shared.standard.load_full();
            let quota = shared.time.followed(&standard.quota);
            shared.standard.store(Arc::new(Standard { quota, ..*standard }));
        })
    }

    /// Returns a limiter in another [`Precision`]. A construction step.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        self.rebuilt(|shared| shared.precision = precision)
    }

    /// Returns a limiter that stores whole keys instead of fingerprints, in twice the memory and at about twice the
    /// cost of a check; see [`MemoryStore::with_full_keys`]. A construction step.
    ///
    /// # Panics
    /// If the system has too little memory for a table of twice the size.
    #[must_use]
    pub fn with_full_keys(self) -> Self {
        self.rebuilt(|shared| {
            let full = MemoryStore::with_full_keys(shared.capacity);
            shared.store = full.expect("the system has memory for twice the table");
        })
    }

    /// Returns a limiter that reports its decisions to `observer`. Pass an `Arc` to keep access to it. A construction
    /// step.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.rebuilt(|shared| shared.observer = Some(Arc::new(observer)))
    }

    /// Returns a limiter that asks the function `own` for the limit of each key; if it returns `None`, the standard
    /// limit applies. A construction step.
    ///
    /// `own` gets the key's bytes, which [`Key`] documents for each kind of key. It is called once per operation,
    /// outside every lock. It should look up rather than compute, and return clones of one `Arc` per class of keys.
    /// When the limit of a key changes, the units spent are carried over.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::{KeyedLimiter, Quota};
    ///
    /// let paying = Arc::new(Quota::per_minute(1000).gcra()?);
    /// let limiter = KeyedLimiter::new(Quota::per_minute(10), 100_000)?
    ///     .with_clock(ManualClock::default())
    ///     .with_quotas(move |key| key.starts_with(b"paying:").then(|| paying.clone()));
    /// assert_eq!(limiter.standing("paying:ann").remaining, 1000);
    /// assert_eq!(limiter.standing("bob").remaining, 10);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_quotas(self, own: impl Fn(&[u8]) -> Option<Arc<Quota>> + Send + Sync + 'static) -> Self {
        self.rebuilt(|shared| shared.resolver = Some(Arc::new(own)))
    }

    fn rebuilt(&self, replace: impl FnOnce(&mut KeyedState)) -> Self {
        let old = &*self.shared;
        let mut shared = KeyedState {
            fast_class: AtomicU64::new(0),
            precision: old.precision,
            time: old.time.new_like(),
            store: old.store.new_like(old.capacity).expect("the system has memory for the table once more"),
            standard: ArcSwap::new(old.standard.load_full()),
            publishing: Mutex::new(()),
            resolver: old.resolver.clone(),
            capacity: old.capacity,
            observer: old.observer.clone(),
            digests: RandomState::default(),
        };
        replace(&mut shared);
        shared.publish_class();
        Self { shared: Arc::new(shared) }
    }

    /// Spends one unit of the key now, or refuses and changes nothing.
    ///
    /// For a GCRA quota without an observer or limits per key this takes one load of the shared tick ([`Precision`]
    /// changes this), one hash and one short lock of the key's cache line. All others read the clock and take a little
    /// longer. Never allocates for a known key and a quota whose state has a fixed size.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn allow(&self, key: impl Key) -> Answer {
        key.with_bytes(|key| self.shared.decide(key, Cost::ONE))
    }

    /// Spends `cost` of the key now, or refuses and changes nothing. A cost above the burst is never granted.
    ///
    /// # Errors
    /// [`NotACost`], as for [`Limiter::allow_n`](crate::Limiter::allow_n).
    #[inline]
    pub fn allow_n(
        &self,
        key: impl Key,
        cost: impl TryInto<Cost, Error: Into<NotACost>>,
    ) -> Result<Answer, NotACost> {
        let cost = cost.try_into().map_err(Into::into)?;
        Ok(key.with_bytes(|key| self.shared.decide(key, cost)))
    }

    /// Spends one unit of the key now and returns whether it did: [`KeyedLimiter::allow`] without the rest of the answer.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn admit(&self, key: impl Key) -> bool {
        key.with_bytes(|key| self.shared.decide(key, Cost::ONE))
    }

    /// Spends one unit of each of `keys`, in order, as separate calls of [`KeyedLimiter::allow`] would, and passes each
    /// key with its answer to `tell`.
    ///
    /// The keys share one clock reading, and their memory is fetched together. This takes a third of the time of single
    /// calls if there are more keys than the processor's caches hold.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::{KeyedLimiter, Quota};
    ///
    /// let limiter = KeyedLimiter::new(Quota::per_minute(1), 1000)?.with_clock(ManualClock::default());
    /// let mut allowed = Vec::new();
    /// limiter.allow_each(&["ann", "bob", "ann"], |key, answer| {
    ///     if answer.is_allowed() {
    ///         allowed.push(*key);
    ///     }
    /// });
    /// assert_eq!(allowed, ["ann", "bob"]);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn allow_each<K: Key>(&self, keys: &[K], tell: impl FnMut(&K, Answer)) {
        self.shared.decide_each(keys, tell);
    }

    /// Spends one unit of each of `keys`, and tells `tell` for each whether it did; see [`KeyedLimiter::allow_each`].
    pub fn admit_each<K: Key>(&self, keys: &[K], tell: impl FnMut(&K, bool)) {
        self.shared.decide_each(keys, tell);
    }

    /// Spends `cost` of the key now for work that acts after a delay of at most `max_wait`; see
    /// [`crate::Limiter::reserve`].
    ///
    /// # Errors
    /// As [`crate::Limiter::reserve`].
    pub fn reserve(
        &self,
        key: impl Key,
        cost: impl TryInto<Cost, Error: Into<NotACost>>,
        max_wait: Duration,
    ) -> Result<Reservation, TakeError> {
        let cost = cost.try_into().map_err(Into::into)?;
        key.with_bytes(|key| {
            let held = self.shared.charge(key, self.shared.time.now(), cost, max_wait)?;
            Ok(Reservation::new(KeySource::of(&self.shared, key), held))
        })
    }

    /// Waits until `cost` of the key may be spent: first come, first served per key. The future holds a copy of the
    /// key.
    pub fn wait(&self, key: impl Key, cost: impl TryInto<Cost, Error: Into<NotACost>>) -> Wait {
        Wait::new(key.with_bytes(|key| KeySource::of(&self.shared, key)), cost.try_into().map_err(Into::into))
    }

    /// Returns what [`KeyedLimiter::allow`] would answer now. Changes nothing, adds no key to the table and tells no observer.
    #[must_use]
    pub fn peek(&self, key: impl Key) -> Answer {
        key.with_bytes(|key| self.shared.peek(key, Cost::ONE))
    }

    /// Returns what [`KeyedLimiter::allow_n`] would answer; see [`KeyedLimiter::peek`].
    ///
    /// # Errors
    /// [`NotACost`], as for [`KeyedLimiter::allow_n`].
    pub fn peek_n(
        &self,
        key: impl Key,
        cost: impl TryInto<Cost, Error: Into<NotACost>>,
    ) -> Result<Answer, NotACost> {
        let cost = cost.try_into().map_err(Into::into)?;
        Ok(key.with_bytes(|key| self.shared.peek(key, cost)))
    }

    /// Forgets the key: its limit is full again. Earlier reservations give nothing back, unless the key is evicted from a full table.
    pub fn reset(&self, key: impl Key) {
        key.with_bytes(|key| self.shared.reset(key));
    }

    /// Returns the key's current standing.
    #[must_use]
    pub fn standing(&self, key: impl Key) -> Standing {
        self.peek(key).standing()
    }

    /// Returns the current standard limit.
    #[must_use]
    pub fn quota(&self) -> Arc<Quota> {
        Arc::clone(&self.shared.standard.load().quota)
    }

    /// Replaces the standard limit by `quota`, for all keys and all clones. A key carries over the units spent, as `how` determines, when it is
    /// next used; until then it refills at the old rate.
    ///
    /// The cost does not depend on the number of keys. Reservations made before a change give nothing back when settled after it.
    ///
    /// # Errors
    /// [`QuotaError`] if the new quota is out of range; the old one then stays.
    pub fn change<Q>(&self, quota: Q, how: Replace) -> Result<(), QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let quota = self.shared.time.followed(&Arc::new(quota.try_into()?));
        self.shared.standard.rcu(|old| Standard {
            quota: Arc::clone(&quota),
            replace: how,
            terms: old.terms + 1,
        });
        self.shared.publish_class();
        Ok(())
    }

    /// Returns how full the table is, and how many keys were evicted.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.shared.store.occupancy()
    }

    /// Returns the digest that stands for the key in events.
    #[must_use]
    pub fn digest(&self, key: impl Key) -> KeyDigest {
        key.with_bytes(|key| self.shared.digest(key))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::ManualClock;

    /// The same as for a limiter without keys: a check whose tick was read before the last charge is not refused available units.
    #[test]
    fn a_charge_of_a_later_tick_does_not_refuse_what_is_there() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(1000));
        let keys = KeyedLimiter::new(Quota::per_second(1).burst(2), 10).unwrap().with_clock(clock.clone());
        let read = keys.shared.time.now();
        clock.advance(Duration::from_nanos(1));
        assert!(keys.allow("ann").is_allowed());
        assert!(keys.shared.charge(b"ann", read, Cost::ONE, Duration::ZERO).is_ok(), "two were there");
    }
}
