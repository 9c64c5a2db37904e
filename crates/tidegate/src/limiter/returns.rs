//! What the leases of a limiter have given back, and the number by which leases know their limiter.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::Tick;

/// Returns a number for a new limiter.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the numbers only have to differ.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What the leases of one limiter have given back.
///
/// When a word is lowered, the word itself does not tell by how much. A draw still holds less by what was given back since: by what
/// lay before it in the line of arrivals, and not by what lay behind it. Counting both gives back too little at times, and never too much.
// Aligned, so that writing it disturbs no check.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Returns {
    /// In scaled time; wraps.
    pub(super) sum: AtomicU64,
    /// The tick, in nanoseconds, from which no receipt of a reservation can be settled any more. Until then leases are given back under
    /// the lock, as charges are settled: a receipt knows its place only by a word that nobody has lowered since.
    pub(super) receipts: AtomicU64,
    /// Held while a lease is given back: two at once would not see each other in the sum.
    pub(super) giving: Mutex<()>,
}

impl Returns {
    /// Notes a receipt that may be settled until `tick`, while the word is away.
    pub(super) fn issued(&self, tick: Tick) {
        // Relaxed: the word that is put back releases it, and whoever gives back has looked at the word before.
        self.receipts.fetch_max(tick.as_nanos(), Ordering::Relaxed);
    }
}
