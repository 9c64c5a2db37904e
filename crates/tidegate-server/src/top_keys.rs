//! The keys that a policy refuses most, in bounded memory.
//!
//! A label per key would make as many time series as an attacker has addresses, so metrics name policies only and keys are
//! counted here: one space-saving sketch per policy. It holds [`KEYS`] counters; a new key takes over the smallest one and
//! inherits its count as its error. A key's true count lies between `count - error` and `count`, and any key with more than
//! one part in [`KEYS`] of all is sure to be listed.
//!
//! Only refusals and near-limit passes are counted, so an allowed request far from its limit costs nothing here.
//!
//! # Source
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;

use parking_lot::Mutex;

/// Counters per sketch: finds every key with more than 0.2 % of the refusals, in about 100 KB at ordinary key lengths.
pub(crate) const KEYS: usize = 512;
/// The longest key that is kept, in bytes; a longer one is cut.
pub(crate) const MAX_KEY: usize = 256;

/// A space-saving sketch. Adding takes one short lock; taking over a counter looks through all of them, about 200 ns.
#[derive(Debug, Default)]
pub(crate) struct TopKeys {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    places: HashMap<Box<str>, usize, RandomState>,
    keys: Vec<Box<str>>,
    /// Apart from the rest, so that the smallest is found in a run over plain numbers.
    counts: Vec<u64>,
    errors: Vec<u64>,
    total: u64,
}

/// One key of a sketch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) key: Box<str>,
    /// How often it was counted: the true number, or up to `error` more.
    pub(crate) count: u64,
    /// The most by which `count` is too high.
    pub(crate) error: u64,
}

impl TopKeys {
    /// Counts one more of a key.
    pub(crate) fn add(&self, key: &str) {
        let mut cut = key.len().min(MAX_KEY);
        while !key.is_char_boundary(cut) {
            cut -= 1;
        }
        self.inner.lock().add(&key[..cut]);
    }

    /// Returns the `most` largest, largest first, and how many were counted in all.
    pub(crate) fn largest(&self, most: usize) -> (Vec<Counted>, u64) {
        let inner = self.inner.lock();
        let mut order: Vec<usize> = (0..inner.counts.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(inner.counts[*at]));
        let largest = order
            .into_iter()
            .take(most)
            .map(|at| Counted {
                key: inner.keys[at].clone(),
                count: inner.counts[at],
                error: inner.errors[at],
            })
            .collect();
        (largest, inner.total)
    }
}

impl Inner {
    fn add(&mut self, key: &str) {
        self.total = self.total.saturating_add(1);
        if let Some(at) = self.places.get(key) {
            self.counts[*at] = self.counts[*at].saturating_add(1);
            return;
        }
        let boxed: Box<str> = key.into();
        if self.keys.len() < KEYS {
            self.places.insert(boxed.clone(), self.keys.len());
            self.keys.push(boxed);
            self.counts.push(1);
            self.errors.push(0);
            return;
        }
        let smallest = self.counts.iter().copied().min().unwrap_or(0);
        let at = self.counts.iter().position(|count| *count == smallest).unwrap_or(0);
        let old = std::mem::replace(&mut self.keys[at], boxed.clone());
        self.places.remove(&old);
        self.places.insert(boxed, at);
        self.errors[at] = smallest;
        self.counts[at] = smallest.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_key_is_found_among_many_that_come_once() {
        let sketch = TopKeys::default();
        for at in 0..20_000 {
            sketch.add(&format!("once-{at}"));
            if at % 20 == 0 {
                sketch.add("heavy");
            }
        }
        let (largest, total) = sketch.largest(1);
        assert_eq!(total, 21_000);
        assert_eq!(&*largest[0].key, "heavy");
        assert!(largest[0].count >= 1000 && largest[0].count - largest[0].error <= 1000, "{largest:?}");
        assert!(largest[0].error <= total / KEYS as u64);
        assert_eq!(sketch.largest(10_000).0.len(), KEYS, "memory is bounded");
    }

    #[test]
    fn a_long_key_is_cut_between_characters() {
        let sketch = TopKeys::default();
        sketch.add(&"é".repeat(1000));
        sketch.add(&format!("x{}", "é".repeat(1000)));
        assert!(sketch.largest(2).0.iter().all(|counted| counted.key.len() <= MAX_KEY));
    }
}
