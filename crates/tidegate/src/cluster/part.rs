//! This node's part of what all nodes have together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Tick;

/// How many bits hold the part itself.
const PART_BITS: u32 = 21;

/// This node's part of what all nodes have together: so many of [`Part::WHOLE`], until a tick.
///
/// Whoever agrees with the other nodes writes it; stores read it with each step, which costs one load. Clones are the same part.
///
/// # Examples
/// ```
/// use tidegate::Tick;
/// use tidegate::cluster::Part;
///
/// let part = Part::even(4);
/// assert_eq!(part.at(Tick::from_secs(1)), Part::WHOLE / 4);
/// part.set(Part::WHOLE / 2, Tick::from_secs(10));
/// assert_eq!(part.at(Tick::from_secs(9)), Part::WHOLE / 2);
/// assert_eq!(part.at(Tick::from_secs(10)), Part::WHOLE / 4, "it has ended: what is always this node's remains");
/// ```
#[derive(Clone)]
pub struct Part {
    shared: Arc<Shared>,
}

struct Shared {
    /// The part, and above it the millisecond at which it ends.
    word: AtomicU64,
    /// What this node may always use.
    safe: u32,
}

impl Part {
    /// All there is: the parts of all nodes add up to this at most.
    pub const WHOLE: u32 = 1 << 20;

    /// Makes an even part of `nodes`, rounded down, that does not end; 0 counts as 1. With more than [`Part::WHOLE`] nodes it is none.
    ///
    /// After a part that was [set](Part::set) has ended, this one holds again: so `nodes` has to be the most nodes that there may ever be,
    /// and what is shared out has to leave each of them that much.
    #[must_use]
    pub fn even(nodes: u64) -> Self {
        let safe = u64::from(Self::WHOLE) / nodes.max(1);
        let safe = u32::try_from(safe).unwrap_or(Self::WHOLE);
        Self { shared: Arc::new(Shared { word: AtomicU64::new(0), safe }) }
    }

    /// Sets the part, of [`Part::WHOLE`], until a tick, to whose millisecond it is rounded down. More than the whole counts as the whole.
    pub fn set(&self, part: u32, until: Tick) {
        let until = (until.as_nanos() / 1_000_000).min(u64::MAX >> PART_BITS);
        let word = until << PART_BITS | u64::from(part.min(Self::WHOLE));
        // Relaxed: the word is all there is to say.
        self.shared.word.store(word, Ordering::Relaxed);
    }

    /// Returns the part at a tick, of [`Part::WHOLE`].
    #[inline]
    #[must_use]
    pub fn at(&self, now: Tick) -> u32 {
        let word = self.shared.word.load(Ordering::Relaxed);
        if now.as_nanos() / 1_000_000 >= word >> PART_BITS {
            return self.shared.safe;
        }
        u32::try_from(word & ((1 << PART_BITS) - 1)).unwrap_or(Self::WHOLE)
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.shared.word.load(Ordering::Relaxed);
        f.debug_struct("Part")
            .field("set", &(word & ((1 << PART_BITS) - 1)))
            .field("until_ms", &(word >> PART_BITS))
            .field("safe", &self.shared.safe)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_at_its_millisecond_and_is_never_more_than_the_whole() {
        let part = Part::even(3);
        assert_eq!(part.at(Tick::from_nanos(0)), Part::WHOLE / 3);
        part.set(u32::MAX, Tick::from_nanos(5_999_999));
        assert_eq!(part.at(Tick::from_nanos(4_999_999)), Part::WHOLE);
        assert_eq!(part.at(Tick::from_nanos(5_000_000)), Part::WHOLE / 3);
        part.set(7, Tick::MAX);
        assert_eq!(part.at(Tick::from_secs(1 << 30)), 7);
    }

    #[test]
    fn the_parts_of_any_number_of_nodes_add_up_to_the_whole_at_most() {
        for nodes in [0, 1, 2, 3, 7, 1000, u64::from(Part::WHOLE), u64::MAX] {
            let each = u64::from(Part::even(nodes).at(Tick::from_nanos(0)));
            assert!(nodes == u64::MAX && each == 0 || each * nodes.max(1) <= u64::from(Part::WHOLE));
        }
    }
}
