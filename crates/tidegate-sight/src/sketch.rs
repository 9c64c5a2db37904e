//! Finds the keys with the largest amounts, with a fixed number of counters.
//!
//! A key without a counter takes over the smallest, whose count becomes the new key's error. The true amount lies between
//! `count - error` and `count`. [`tidegate::gate::hot_keys::HotKeys`] does the same behind a lock of its own, and scans all
//! counters for the smallest; here one thread counts, and the smallest is found where the last one was.
//!
//! # Source
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 ("Space-Saving").

use crate::board::mixed;

/// Counters of a list: each key with more than a 512th of the amounts has one.
pub(crate) const COUNTERS: usize = 512;

/// The counters of one list, at most 512, in 14 KiB. Allocates nothing before the first amount.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    pub(crate) counters: Vec<Counter>,
    /// A hash table with linear probing: the indexes of counters, at [`home`] of the key or after it.
    table: Vec<u16>,
    /// No counter is smaller, and none before `cursor` is as small.
    floor: u64,
    cursor: usize,
    /// Of all keys.
    pub(crate) total: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub(crate) key: u64,
    pub(crate) count: u64,
    pub(crate) error: u64,
}

/// Twice the counters, so that a probe is short.
const TABLE: usize = 2 * COUNTERS;

const EMPTY: u16 = u16::MAX;

fn home(key: u64) -> usize {
    mixed(key) as usize % TABLE
}

impl Sketch {
    /// Adds an amount to a key. Up to `error` of it may be too much.
    pub(crate) fn add(&mut self, key: u64, amount: u64, error: u64) {
        if amount == 0 {
            return;
        }
        if self.table.is_empty() {
            self.table = vec![EMPTY; TABLE];
        }
        self.total = self.total.saturating_add(amount);
        let mut at = home(key);
        while self.table[at] != EMPTY {
            let counter = &mut self.counters[usize::from(self.table[at])];
            if counter.key == key {
                counter.count = counter.count.saturating_add(amount);
                counter.error = counter.error.saturating_add(error);
                return;
            }
            at = (at + 1) % TABLE;
        }
        if self.counters.len() < COUNTERS {
            // Below 512.
            self.table[at] = self.counters.len() as u16;
            self.counters.push(Counter { key, count: amount, error });
            return;
        }
        let smallest = self.smallest();
        let counter = &mut self.counters[smallest];
        let old = counter.key;
        *counter = Counter {
            key,
            count: counter.count.saturating_add(amount),
            error: counter.count.saturating_add(error),
        };
        self.remove(old, smallest);
        self.insert(key, smallest);
    }

    /// Returns the index of a smallest counter. Counts only grow, so the search goes on where it ended, and all counters
    /// are read once for as many calls as there are smallest ones.
    fn smallest(&mut self) -> usize {
        let floor = self.floor;
        let mut after = self.counters.iter().skip(self.cursor);
        if let Some(at) = after.position(|counter| counter.count <= floor) {
            self.cursor += at;
            return self.cursor;
        }
        self.floor = self.counters.iter().map(|counter| counter.count).min().unwrap_or(0);
        self.cursor = self.counters.iter().position(|counter| counter.count == self.floor).unwrap_or(0);
        self.cursor
    }

    /// Removes the table's entry of a key whose counter has this index and another key already.
    fn remove(&mut self, old: u64, index: usize) {
        let mut hole = home(old);
        while usize::from(self.table[hole]) != index {
            hole = (hole + 1) % TABLE;
        }
        let mut at = hole;
        loop {
            at = (at + 1) % TABLE;
            if self.table[at] == EMPTY {
                break;
            }
            let home = home(self.counters[usize::from(self.table[at])].key);
            // Moves back if that is not before its home.
            if (at + TABLE - home) % TABLE >= (at + TABLE - hole) % TABLE {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = EMPTY;
    }

    /// Inserts a key that is not in the table.
    fn insert(&mut self, key: u64, index: usize) {
        let mut at = home(key);
        while self.table[at] != EMPTY {
            at = (at + 1) % TABLE;
        }
        // Below 512.
        self.table[at] = index as u16;
    }

    /// Returns the `most` counters with the largest lower bound, largest first.
    pub(crate) fn largest(&self, most: usize) -> Vec<Small> {
        let mut order: Vec<(u64, u64, usize)> = (0..)
            .zip(&self.counters)
            .map(|(at, counter)| (counter.count - counter.error.min(counter.count), counter.count, at))
            .collect();
        if order.len() > most && most > 0 {
            order.select_nth_unstable_by(most - 1, |a, b| b.cmp(a));
        }
        order.truncate(most);
        order.sort_unstable_by(|a, b| b.cmp(a));
        let small = |(_, _, at): (u64, u64, usize)| {
            let Counter { key, count, error } = self.counters[at];
            Small { key, count: count as f32, error: error as f32 }
        };
        order.into_iter().map(small).collect()
    }

    /// Halves all amounts, so that what was long ago counts less.
    pub(crate) fn halve(&mut self) {
        for counter in &mut self.counters {
            (counter.count, counter.error) = (counter.count / 2, counter.error / 2);
        }
        (self.floor, self.cursor, self.total) = (self.floor / 2, 0, self.total / 2);
    }

    /// Removes all keys, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.counters.clear();
        self.table.fill(EMPTY);
        (self.floor, self.cursor, self.total) = (0, 0, 0);
    }

    /// The bytes that it has allocated.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.counters.capacity() * size_of::<Counter>() + self.table.capacity() * size_of::<u16>()
    }
}

/// A counter in half of the memory: exact up to 16,777,216, and above to seven digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    pub(crate) key: u64,
    pub(crate) count: f32,
    pub(crate) error: f32,
}

impl Small {
    pub(crate) fn least(&self) -> f64 {
        f64::from(self.count) - f64::from(self.error)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with an exact count: each true amount lies within the error, and each heavy key is listed.
        #[test]
        fn true_amounts_lie_within_the_error(amounts in proptest::collection::vec((0..900_u64, 1..5_u64), 0..4_000)) {
            let (mut sketch, mut plain, mut total) = (Sketch::default(), HashMap::<u64, u64>::new(), 0);
            for (key, amount) in amounts {
                // Low keys are frequent.
                let key = key * key / 900;
                sketch.add(key, amount, 0);
                *plain.entry(key).or_default() += amount;
                total += amount;
            }
            prop_assert_eq!(sketch.total, total);
            for counter in &sketch.counters {
                let truly = plain[&counter.key];
                prop_assert!(counter.count - counter.error <= truly && truly <= counter.count);
                prop_assert!(counter.error <= total / COUNTERS as u64);
            }
            for (key, amount) in plain {
                let listed = sketch.counters.iter().filter(|counter| counter.key == key).count();
                prop_assert!(listed == 1 || listed == 0 && amount <= total / COUNTERS as u64);
            }
            let largest = sketch.largest(10);
            prop_assert!(largest.is_sorted_by(|a, b| a.least() >= b.least()));
        }
    }
}
