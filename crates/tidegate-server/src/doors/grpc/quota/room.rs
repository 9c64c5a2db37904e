//! Room for the pairs of all buckets: what a stranger writes into them is kept as long as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes the pairs of all buckets have together.
#[derive(Debug, Default)]
pub(in super::super) struct Room(Arc<AtomicUsize>);

/// Room that is taken until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    all: Arc<AtomicUsize>,
    pub(super) bytes: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Room {
    /// The most bytes of all pairs together, with what holds them: a kilobyte for each of the most buckets. They are kept twice.
    const MOST: usize = 256 << 20;

    /// Takes room for so many bytes; `None` where there is none.
    pub(super) fn take(&self, bytes: usize) -> Option<Taken> {
        // Relaxed: a number that is read by itself. What is too much goes back when it is dropped.
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let taken = Taken { all: Arc::clone(&self.0), bytes };
        (before.saturating_add(bytes) <= Self::MOST).then_some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let room = Room::default();
        let held = room.take(Room::MOST - 1).unwrap();
        assert!(room.take(2).is_none());
        let last = room.take(1).unwrap();
        assert!(room.take(1).is_none());
        drop((held, last));
        assert!(room.take(Room::MOST).is_some());
    }
}
