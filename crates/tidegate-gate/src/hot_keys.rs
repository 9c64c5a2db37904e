//! Hot keys: finds the few keys that make up much of the traffic, in bounded memory.
//!
//! A count per key would need memory for all keys, and outsiders choose how many there are. So the number of counters
//! is fixed: a key without a counter takes over the smallest one, whose count becomes the new key's error. A key's true
//! count lies between `count - error` and `count`, and every key with more than `1 / counters` of the total is sure to
//! have a counter.
//!
//! # Source
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 ("Space-Saving").

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{QuotaError, Tick};

use tidegate_limits::observer::{HotKeyFound, KeyDigest, Observer};

/// Counts keys in a fixed number of counters. Shared by reference; adding takes one short lock.
///
/// Counting a key that has a counter takes about 50 ns. A key that takes over the smallest counter looks for it under the
/// lock: among all of them at worst, among a few in a flood of such keys. A few hundred counters are enough, because a key
/// that is worth special treatment makes up a hundredth of the total or more. Memory: each counter has room for the longest
/// of its keys twice, and about 70 bytes.
///
/// # Examples
/// ```
/// use tidegate::Tick;
/// use tidegate::gate::hot_keys::HotKeys;
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
    /// No count is less, and each before the index is more. Counts only grow between halvings, so the search for the
    /// smallest goes on where the last one ended: in a flood of keys without a counter it looks at a few counts each time.
    smallest: Smallest,
    total: u64,
    /// The last halving; at first the tick of the first key.
    halved: Option<Tick>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Smallest {
    count: u64,
    at: usize,
}

/// The largest number of counters.
const MAX_COUNTERS: usize = 1 << 16;

impl<K: Hash + Eq + Clone> HotKeys<K> {
    /// Makes an empty sketch of `counters` counters, 1 to 65,536.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] if `counters` is out of range.
    pub fn new(counters: usize) -> Result<Self, QuotaError> {
        if counters == 0 || counters > MAX_COUNTERS {
            let want = "is not a number of counters; use 1 to 65536";
            return Err(QuotaError::Parameter { name: "counters", value: counters.to_string(), want });
        }
        let inner = HotCounters {
            places: HashMap::default(),
            keys: Vec::new(),
            counts: Vec::new(),
            errors: Vec::new(),
            hot: Vec::new(),
            smallest: Smallest::default(),
            total: 0,
            halved: None,
        };
        let (telling, digests) = (None, Digests::default());
        Ok(Self { counters, half_life: None, telling, digests, inner: Mutex::new(inner) })
    }

    /// Halves all counts once per half-life, when the first key after it is added, and rounds them down. Zero turns
    /// halving off. A clock that is set back by more than [`MAX_STEP_BACK`] starts a new half-life. Each halving lowers
    /// a count or the total by less than one unit too much.
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
        if self.keys.len() < counters {
            let (owned, at) = (key.to_owned(), self.keys.len());
            self.places.insert(owned.clone(), at);
            self.keys.push(owned);
            self.counts.push(0);
            self.errors.push(0);
            self.hot.push(false);
            // A new counter is the smallest, and others may be as small.
            self.smallest = Smallest::default();
            return at;
        }
        let Smallest { count: smallest, at } = self.find_smallest();
        // The memory of the old key is used again.
        let kept = &mut self.keys[at];
        let mut owned = match self.places.remove_entry((*kept).borrow()) {
            Some((old, _)) => old,
            None => kept.clone(),
        };
        key.clone_into(kept);
        key.clone_into(&mut owned);
        self.places.insert(owned, at);
        self.errors[at] = smallest;
        self.hot[at] = false;
        at
    }

    /// Finds the first of the smallest counts.
    fn find_smallest(&mut self) -> Smallest {
        let Smallest { count, at } = self.smallest;
        let same = |from: usize, wanted: u64| {
            let mut rest = self.counts.iter().enumerate().skip(from);
            rest.find(|(_, count)| **count == wanted).map(|(at, _)| at)
        };
        self.smallest = match same(at, count) {
            Some(at) => Smallest { count, at },
            None => {
                let count = self.counts.iter().copied().min().unwrap_or(0);
                Smallest { count, at: same(0, count).unwrap_or(0) }
            }
        };
        self.smallest
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
        self.smallest = Smallest::default();
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

/// How hot a key is when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// A lower bound of the key's count, including the amount just added.
    pub least: u64,
    /// The counted total of all keys.
    pub total: u64,
}

impl Heat {
    /// Returns whether the key is sure to make up more than `share` (0 to 1) of the total, and the total is at least
    /// `at_least`: the moment to answer the key from a cache, or to give it a limit of its own. No key makes up more
    /// than 1, or more than a share that is not a number.
    #[must_use]
    pub fn is_above(&self, share: f64, at_least: u64) -> bool {
        self.total >= at_least && self.least as f64 > share * self.total as f64
    }
}

/// Whom to tell, and from which share on.
#[derive(Debug)]
pub(super) struct Telling {
    observer: Arc<dyn Observer>,
    share: f64,
    at_least: u64,
}

impl Telling {
    pub(super) fn new(observer: impl Observer + 'static, share: f64, at_least: u64) -> Self {
        Self { observer: Arc::new(observer), share, at_least }
    }

    /// Returns whether the key becomes hot with this heat. `is_hot` is its state before, and becomes the one after.
    pub(super) fn becomes_hot(&self, is_hot: &mut bool, heat: Heat) -> bool {
        let was_hot = *is_hot;
        // It cools at half the share: one that stays near the share would otherwise be told over and over.
        let (share, at_least) =
            if was_hot { (self.share / 2.0, self.at_least / 2) } else { (self.share, self.at_least) };
        *is_hot = heat.is_above(share, at_least);
        *is_hot && !was_hot
    }

    pub(super) fn tell(&self, key: KeyDigest, heat: Heat, at: Tick) {
        self.observer.on_hot_key(&HotKeyFound::new(at, key, heat.least, heat.total));
    }
}

/// Digests under keys of their own: the hashes by which the table places its keys stay unknown.
#[derive(Debug, Default)]
pub(super) struct Digests(RandomState);

impl Digests {
    pub(super) fn digest(&self, key: &(impl Hash + ?Sized)) -> KeyDigest {
        KeyDigest(self.0.hash_one(key))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    //! Tests of hot keys and of what an observer is told.

    #![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use tidegate_limits::observer::{AnyEvent, HotKeyFound};

    #[test]
    fn a_heavy_key_is_found_among_many_that_come_once() {
        let sketch: HotKeys = HotKeys::new(512).unwrap();
        for at in 0..20_000 {
            sketch.add(&*format!("once-{at}"), 1, Tick::EPOCH);
            if at % 20 == 0 {
                sketch.add("heavy", 1, Tick::EPOCH);
            }
        }
        let (largest, total) = sketch.largest(1);
        assert_eq!(total, 21_000);
        assert_eq!(largest[0].key, "heavy");
        assert!(largest[0].count >= 1000 && largest[0].least() <= 1000, "{largest:?}");
        assert!(largest[0].error <= total / 512);
        assert_eq!(sketch.largest(10_000).0.len(), 512, "memory is bounded");
    }

    #[test]
    fn what_was_hot_fades() {
        let minute = Duration::from_secs(60);
        let sketch: HotKeys = HotKeys::new(4).unwrap().fading(minute);
        sketch.add("yesterday", 1000, Tick::EPOCH);
        assert_eq!(sketch.add("today", 100, Tick::from_secs(59)), Heat { least: 100, total: 1100 });
        assert_eq!(sketch.add("today", 0, Tick::from_secs(60)), Heat { least: 50, total: 550 });
        assert_eq!(
            sketch.add("today", 0, Tick::from_secs(50)),
            Heat { least: 50, total: 550 },
            "a step back"
        );
        assert_eq!(sketch.add("today", 0, Tick::from_secs(301)), Heat { least: 3, total: 34 });
        assert_eq!(sketch.add("today", 0, Tick::MAX), Heat { least: 0, total: 0 });
    }

    #[test]
    fn a_clock_that_was_set_back_goes_on_fading() {
        let minute = Duration::from_secs(60);
        let sketch: HotKeys = HotKeys::new(4).unwrap().fading(minute);
        sketch.add("key", 8, Tick::from_secs(100_000));
        assert_eq!(sketch.add("key", 0, Tick::from_secs(100)).least, 8);
        assert_eq!(sketch.add("key", 0, Tick::from_secs(160)).least, 4);
    }

    /// Reading with an amount of 0 used to take the smallest counter from the key that had it.
    #[test]
    fn asking_takes_no_counter() {
        let sketch: HotKeys = HotKeys::new(1).unwrap();
        sketch.add("key", 5, Tick::EPOCH);
        assert_eq!(sketch.add("other", 0, Tick::EPOCH), Heat { least: 0, total: 5 });
        assert_eq!(sketch.largest(9).0, [Counted { key: "key".to_owned(), count: 5, error: 0 }]);
    }

    /// Keys of types other than text: numbers, pairs, shared text.
    #[test]
    fn keys_are_of_any_kind() {
        let (numbers, pairs) = (HotKeys::<u64>::new(2).unwrap(), HotKeys::<(u8, u8)>::new(2).unwrap());
        let shared = HotKeys::<Arc<str>>::new(2).unwrap();
        let text = Arc::<str>::from("key");
        assert_eq!(numbers.add(&7, 1, Tick::EPOCH).least, 1);
        assert_eq!(pairs.add(&(7, 8), 1, Tick::EPOCH).least, 1);
        assert_eq!(shared.add(&text, 1, Tick::EPOCH).least, 1);
    }

    #[test]
    fn a_share_is_judged_once_there_is_enough_to_judge_by() {
        let heat = Heat { least: 6, total: 10 };
        assert!(heat.is_above(0.5, 10) && !heat.is_above(0.6, 10) && !heat.is_above(0.5, 11));
    }

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<HotKeyFound>>);

    impl Observer for Heard {
        fn on_hot_key(&self, found: &HotKeyFound) {
            self.0.lock().unwrap().push(*found);
        }
    }

    impl Heard {
        /// The keys that were told since the last call.
        fn take(&self) -> Vec<KeyDigest> {
            self.0.lock().unwrap().drain(..).map(|found| found.key).collect()
        }
    }

    fn sketch(counters: usize) -> (Arc<Heard>, HotKeys) {
        let heard = Arc::new(Heard::default());
        let sketch = HotKeys::new(counters).unwrap().fading(Duration::from_secs(60));
        (Arc::clone(&heard), sketch.with_observer(heard, 0.5, 100))
    }

    #[test]
    fn a_key_is_told_once_when_it_crosses_the_share() {
        let (heard, sketch) = sketch(10);
        sketch.add("hot", 99, Tick::EPOCH);
        assert_eq!(heard.take(), [], "too few to judge by");
        let heat = sketch.add("hot", 1, Tick::from_secs(1));
        let found = heard.0.lock().unwrap().clone();
        let expected = HotKeyFound::new(Tick::from_secs(1), sketch.digest("hot"), heat.least, 100);
        assert_eq!(found, [expected]);
        heard.take();
        // Now around a half of the total, above and below by turns.
        sketch.add("other", 100, Tick::from_secs(1));
        for _ in 0..50 {
            sketch.add("hot", 1, Tick::from_secs(1));
            sketch.add("other", 1, Tick::from_secs(1));
        }
        assert!(!heard.take().contains(&sketch.digest("hot")), "it never cooled");
        assert_ne!(sketch.digest("hot"), sketch.digest("other"));
    }

    #[test]
    fn a_key_that_has_cooled_is_told_again() {
        let (heard, sketch) = sketch(10);
        sketch.add("hot", 100, Tick::EPOCH);
        sketch.add("other", 350, Tick::EPOCH);
        assert_eq!(heard.take(), [sketch.digest("hot"), sketch.digest("other")]);
        sketch.add("hot", 0, Tick::EPOCH);
        sketch.add("hot", 1000, Tick::EPOCH);
        assert_eq!(heard.take(), [sketch.digest("hot")], "less than a quarter in between");
        // All traffic fades: after an hour of silence nothing is hot.
        let later = Tick::from_secs(3600);
        sketch.add("hot", 1, later);
        sketch.add("hot", 200, later);
        assert_eq!(heard.take(), [sketch.digest("hot")]);
    }

    /// A counter that another key takes over begins cold, and the key that it had is told anew.
    #[test]
    fn a_counter_that_is_taken_over_is_not_hot() {
        let (heard, sketch) = sketch(1);
        sketch.add("one", 100, Tick::EPOCH);
        assert_eq!(heard.take(), [sketch.digest("one")]);
        sketch.add("two", 1000, Tick::EPOCH);
        assert_eq!(heard.take(), [sketch.digest("two")], "1000 of 1100 are sure");
        sketch.add("one", 10_000, Tick::EPOCH);
        assert_eq!(heard.take(), [sketch.digest("one")]);
    }

    #[test]
    fn an_observer_may_use_the_sketch_and_gets_the_name() {
        #[derive(Debug)]
        struct Asks(Arc<Mutex<Option<Arc<HotKeys>>>>, Arc<Mutex<Vec<String>>>);
        impl Observer for Asks {
            fn on_named(&self, name: &str, event: AnyEvent<'_>) {
                let AnyEvent::HotKey(found) = event else { return };
                let sketch = self.0.lock().unwrap().clone().unwrap();
                let (largest, _) = sketch.largest(1);
                assert_eq!(sketch.digest(&*largest[0].key), found.key);
                self.1.lock().unwrap().push(format!("{name}: {}", largest[0].key));
            }
        }
        let (place, heard) = (Arc::default(), Arc::default());
        let observer = Asks(Arc::clone(&place), Arc::clone(&heard)).named("tenants");
        let sketch = Arc::new(HotKeys::new(10).unwrap().with_observer(observer, 0.5, 1));
        *place.lock().unwrap() = Some(Arc::clone(&sketch));
        sketch.add("busy", 1, Tick::EPOCH);
        assert_eq!(*heard.lock().unwrap(), ["tenants: busy"]);
    }

    proptest! {
        /// Compared with a search from the start: which key is pushed out does not depend on where the last search ended.
        #[test]
        fn the_first_of_the_smallest_is_taken_over(keys in proptest::collection::vec((0..30_u8, 1..4_u64, 0..30_u64), 0..300), counters in 1..9_usize) {
            let sketch = HotKeys::<u8>::new(counters).unwrap().fading(Duration::from_secs(60));
            // Key, count, error.
            let mut plain: Vec<(u8, u64, u64)> = Vec::new();
            let (mut now, mut halved) = (0, None);
            for (key, amount, pause) in keys {
                now += pause;
                let since = *halved.get_or_insert(now);
                for _ in 0..(now - since) / 60 {
                    plain.iter_mut().for_each(|(_, count, error)| {
                        *count /= 2;
                        *error = error.div_ceil(2).min(*count);
                    });
                }
                halved = Some(now - (now - since) % 60);
                let at = match plain.iter().position(|(known, ..)| *known == key) {
                    Some(at) => at,
                    None if plain.len() < counters => {
                        plain.push((key, 0, 0));
                        plain.len() - 1
                    }
                    None => {
                        let smallest = plain.iter().map(|(_, count, _)| *count).min().unwrap();
                        let at = plain.iter().position(|(_, count, _)| *count == smallest).unwrap();
                        plain[at] = (key, smallest, smallest);
                        at
                    }
                };
                plain[at].1 += amount;
                sketch.add(&key, amount, Tick::from_secs(now));
            }
            let inner = sketch.inner.lock();
            let kept: Vec<_> = (0..inner.keys.len()).map(|at| (inner.keys[at], inner.counts[at], inner.errors[at])).collect();
            prop_assert_eq!(kept, plain);
        }

        /// Compared with an exact count per key: every true count lies within the error, every heavy key has a counter,
        /// and the errors keep their bound.
        #[test]
        fn true_counts_lie_within_the_error(keys in proptest::collection::vec((0..60_u8, 1..5_u64), 0..500), counters in 1..20_usize) {
            let sketch: HotKeys<String> = HotKeys::new(counters).unwrap();
            let mut plain: HashMap<String, u64> = HashMap::new();
            for (key, amount) in keys {
                // Squared, so that the low keys are the frequent ones.
                let key = (u16::from(key) * u16::from(key) / 60).to_string();
                let heat = sketch.add(&*key, amount, Tick::EPOCH);
                let count = plain.entry(key).or_default();
                *count += amount;
                prop_assert!(heat.least <= *count);
            }
            let (largest, total) = sketch.largest(usize::MAX);
            prop_assert_eq!(total, plain.values().sum::<u64>());
            for counted in &largest {
                let truly = plain[&counted.key];
                prop_assert!(counted.least() <= truly && truly <= counted.count);
                prop_assert!(counted.error <= total / counters as u64);
            }
            for (key, count) in plain {
                let listed = largest.iter().any(|counted| counted.key == key);
                prop_assert!(listed || count <= total / counters as u64);
            }
        }
    }
}
