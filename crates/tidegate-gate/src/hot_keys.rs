//! Hot keys: finds the few keys that make up much of the traffic, in bounded memory.
//!
//! One key may be a large part of all traffic (a tenant's loop, an article that everybody reads), and it is not known
//! beforehand which. A count per key would need memory for all keys, and outsiders choose how many there are. So the
//! number of counters is fixed: a key without a counter takes over the smallest one, whose count becomes the new key's
//! error. A key's true count lies between `count - error` and `count`, and every key with more than `1 / counters` of
//! the total is sure to have a counter.
//!
//! Counts are totals since the start, or fade: they are halved once per half-life, so that old traffic stops counting.
//!
//! # Source
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 ("Space-Saving").

mod heat;
mod observed;

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{QuotaError, Tick};

pub use self::heat::Heat;
use self::observed::{Digests, Telling};
use tidegate_limits::observer::{KeyDigest, Observer};

/// Counts keys in a fixed number of counters. Shared by reference; adding takes one short lock.
///
/// Counting a key that has a counter takes about 50 ns. A key that takes over the smallest counter scans all of them
/// under the lock: about 200 ns with 512, and proportionally more with more. A few hundred counters are enough, because
/// a key that is worth special treatment makes up a hundredth of the total or more. Memory: each counter holds its key
/// twice and about 70 bytes.
///
/// # Examples
/// ```
/// use tidegate::{Tick, hot_keys::HotKeys};
///
/// let hot = HotKeys::new(100)?;
/// for reader in 0..1000 {
///     let article = if reader % 3 == 0 { "the-news".to_owned() } else { format!("article-{reader}") };
///     hot.add(&*article, 1, Tick::EPOCH);
/// }
/// let (largest, total) = hot.largest(1);
/// assert_eq!((largest[0].key.as_str(), total), ("the-news", 1000));
/// assert!(largest[0].least() > total / 4, "surely more than a quarter of all");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct HotKeys<K = String> {
    counters: usize,
    half_life: Option<Duration>,
    telling: Option<Telling>,
    digests: Digests,
    inner: Mutex<HotCounters<K>>,
}

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted<K> {
    /// The key.
    pub key: K,
    /// The counted amount: the true amount, or up to `error` more.
    pub count: u64,
    /// The most by which `count` may be too high.
    pub error: u64,
}

impl<K> Counted<K> {
    /// Returns a lower bound of the key's true amount: the count minus its possible error.
    #[must_use]
    pub const fn least(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }
}

#[derive(Debug)]
struct HotCounters<K> {
    places: HashMap<K, usize, RandomState>,
    keys: Vec<K>,
    /// Separate from the keys, so that the search for the smallest scans plain numbers.
    counts: Vec<u64>,
    errors: Vec<u64>,
    /// Whether the observer was told of the key, and it has not cooled since; always false without an observer.
    hot: Vec<bool>,
    total: u64,
    /// The last halving; at first the tick of the first key.
    halved: Option<Tick>,
}

impl<K: Hash + Eq + Clone> HotKeys<K> {
    /// The largest number of counters.
    pub const MAX_COUNTERS: usize = 1 << 16;

    /// Makes an empty sketch of `counters` counters, 1 to [`HotKeys::MAX_COUNTERS`].
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] if `counters` is out of range.
    pub fn new(counters: usize) -> Result<Self, QuotaError> {
        if counters == 0 || counters > Self::MAX_COUNTERS {
            let want = "is not a number of counters; use 1 to 65536";
            return Err(QuotaError::Parameter { name: "counters", value: counters.to_string(), want });
        }
        let inner = HotCounters {
            places: HashMap::default(),
            keys: Vec::new(),
            counts: Vec::new(),
            errors: Vec::new(),
            hot: Vec::new(),
            total: 0,
            halved: None,
        };
        let (telling, digests) = (None, Digests::default());
        Ok(Self { counters, half_life: None, telling, digests, inner: Mutex::new(inner) })
    }

    /// Halves all counts once per half-life, when the first key after it is added. Counts are rounded down to whole
    /// numbers, so each halving lowers a count or the total by less than one unit too much. Zero turns halving off. A
    /// clock that is set back by more than [`MAX_STEP_BACK`] starts a new half-life.
    #[must_use]
    pub fn fading(self, half_life: Duration) -> Self {
        Self { half_life: (!half_life.is_zero()).then_some(half_life), ..self }
    }

    /// Tells `observer` when a key that is added becomes hot ([`Observer::on_hot_key`]): when [`Heat::is_above`] holds for
    /// this share and this total. A key is told once, and again only if it has cooled in between: its share or the
    /// total was at most half of these when it was added, or another key has taken over its counter.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static, share: f64, at_least: u64) -> Self {
        Self { telling: Some(Telling::new(observer, share, at_least)), ..self }
    }

    /// Returns the digest by which an observer gets this key, to find the key of an event among the
    /// [largest](Self::largest).
    #[must_use]
    pub fn digest<Q>(&self, key: &Q) -> KeyDigest
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.digests.digest(key)
    }

    /// Adds an amount to a key's count, and returns how hot the key is. The key is cloned if it takes a counter.
    ///
    /// An amount of 0 only reads: a key without a counter takes none. `now` only matters for counts that fade.
    pub fn add<Q>(&self, key: &Q, amount: u64, now: Tick) -> Heat
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut inner = self.inner.lock();
        if let Some(half_life) = self.half_life {
            inner.fade(half_life, now);
        }
        if amount == 0 && !inner.places.contains_key(key) {
            return Heat { least: 0, total: inner.total };
        }
        let at = inner.place_of(key, self.counters);
        inner.total = inner.total.saturating_add(amount);
        inner.counts[at] = inner.counts[at].saturating_add(amount);
        let heat = Heat { least: inner.counts[at] - inner.errors[at], total: inner.total };
        if let Some(telling) = &self.telling
            && telling.becomes_hot(&mut inner.hot[at], heat)
        {
            drop(inner);
            telling.tell(self.digest(key), heat, now);
        }
        heat
    }

    /// Returns the `most` keys with the largest counts, largest first, and the total of all keys.
    #[must_use]
    pub fn largest(&self, most: usize) -> (Vec<Counted<K>>, u64) {
        let inner = self.inner.lock();
        let mut order: Vec<usize> = (0..inner.counts.len()).collect();
        order.sort_by_key(|at| Reverse(inner.counts[*at]));
        let counted = |at: usize| Counted {
            key: inner.keys[at].clone(),
            count: inner.counts[at],
            error: inner.errors[at],
        };
        (order.into_iter().take(most).map(counted).collect(), inner.total)
    }

    /// Returns the number of counters.
    #[must_use]
    pub const fn counters(&self) -> usize {
        self.counters
    }
}

impl<K: Hash + Eq + Clone> HotCounters<K> {
    /// Returns the index of a key's counter. A key without one gets a new one, or takes over the smallest with its
    /// count as the error.
    fn place_of<Q>(&mut self, key: &Q, counters: usize) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(at) = self.places.get(key) {
            return *at;
        }
        let owned = key.to_owned();
        if self.keys.len() < counters {
            let at = self.keys.len();
            self.places.insert(owned.clone(), at);
            self.keys.push(owned);
            self.counts.push(0);
            self.errors.push(0);
            self.hot.push(false);
            return at;
        }
        let smallest = self.counts.iter().copied().min().unwrap_or(0);
        let at = self.counts.iter().position(|count| *count == smallest).unwrap_or(0);
        let old = std::mem::replace(&mut self.keys[at], owned.clone());
        self.places.remove(old.borrow());
        self.places.insert(owned, at);
        self.errors[at] = smallest;
        self.hot[at] = false;
        at
    }

    /// Halves the counts once for each whole half-life since the last halving. If the clock steps back, time stands
    /// still.
    fn fade(&mut self, half_life: Duration, now: Tick) {
        let halved = self.halved.filter(|halved| halved.since(now) <= MAX_STEP_BACK);
        let since = *self.halved.insert(halved.unwrap_or(now));
        let times = now.since(since).as_nanos() / half_life.as_nanos();
        if times == 0 {
            return;
        }
        let shift = u32::try_from(times).unwrap_or(u32::MAX);
        let halved = |count: u64| count.checked_shr(shift).unwrap_or(0);
        // The error is rounded up, so that the lower bound stays one.
        let rounded_up =
            |error: u64| halved(error) + u64::from(error & !(u64::MAX.checked_shl(shift).unwrap_or(0)) != 0);
        for (count, error) in self.counts.iter_mut().zip(&mut self.errors) {
            *count = halved(*count);
            *error = rounded_up(*error).min(*count);
        }
        self.total = halved(self.total);
        let behind = now.since(since).as_nanos() % half_life.as_nanos();
        self.halved = Some(now.before(Duration::from_nanos(u64::try_from(behind).unwrap_or(u64::MAX))));
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
