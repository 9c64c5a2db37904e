//! The memory budget of the pairs of all buckets: what a stranger writes into them is kept as long as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes are reserved.
#[derive(Debug, Default)]
pub(in super::super) struct Budget(Arc<AtomicUsize>);

/// Bytes of the budget, reserved until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    all: Arc<AtomicUsize>,
    pub(super) bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// The most bytes of all pairs together, with what holds them: a kilobyte for each of the most buckets. They are kept twice.
    const MOST: usize = 256 << 20;

    /// Reserves so many bytes; `None` where the budget has fewer.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        // Relaxed: a number that is read by itself. What is too much goes back when it is dropped.
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved { all: Arc::clone(&self.0), bytes };
        (before.saturating_add(bytes) <= Self::MOST).then_some(reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = Budget::default();
        let held = budget.reserve(Budget::MOST - 1).unwrap();
        assert!(budget.reserve(2).is_none());
        let last = budget.reserve(1).unwrap();
        assert!(budget.reserve(1).is_none());
        drop((held, last));
        assert!(budget.reserve(Budget::MOST).is_some());
    }
}
