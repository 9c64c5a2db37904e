//! The memory budget for the pairs of all buckets, which hold text from strangers for as long as the buckets live.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of reserved bytes.
#[derive(Debug, Default)]
pub(in super::super) struct Budget(Arc<AtomicUsize>);

/// Reserved bytes of the budget; returned when this is dropped.
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
    /// The most bytes of all pairs together, including their containers: a kilobyte for each of the most buckets. The
    /// pairs are stored twice.
    const MOST: usize = 256 << 20;

    /// Reserves this many bytes; `None` if the budget has fewer left.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        // Relaxed: the number stands alone. A reservation that is too large is returned when it is dropped.
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
