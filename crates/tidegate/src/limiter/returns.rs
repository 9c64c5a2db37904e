//! The units that the leases of a limiter have given back, and the numbers that identify limiters to leases.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::Tick;

/// Returns a number for a new limiter.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the numbers only have to differ.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The sum of the units that the leases of one limiter have given back.
///
/// When a word is lowered, the word itself does not record by how much. A draw still holds less by the amounts given
/// back since that lay before it in the order of arrival times, but not by those that lay after it. Subtracting both
/// gives back too little at times, but never too much.
// Aligned, so that writing it does not disturb checks.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Returns {
    /// In units of scaled time; wraps around.
    pub(super) sum: AtomicU64,
    /// The tick, in nanoseconds, after which no receipt of a reservation can be settled. Until then leases are given
    /// back under the lock, as charges are settled: a receipt finds its position only if the word was not lowered
    /// since.
    pub(super) receipts: AtomicU64,
    /// Held while a lease is given back: two at once would not see each other in the sum.
    pub(super) giving: Mutex<()>,
}

impl Returns {
    /// Records a receipt that may be settled until `tick`. Called under the limiter's lock, while `NO_WORD` stands in
    /// place of the word.
    pub(super) fn issued(&self, tick: Tick) {
        // Relaxed: putting the word back releases it, and a thread that gives back has loaded the word before.
        self.receipts.fetch_max(tick.as_nanos(), Ordering::Relaxed);
    }
}
