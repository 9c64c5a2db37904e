use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::Tick;

/// How many bits hold the part itself.
const PART_BITS: u32 = 21;

/// The most changes that are remembered. The oldest entry keeps the least of all earlier parts.
const MOST_CHANGES: usize = 64;

/// This node's part of the whole that all nodes share: a fraction of [`Part::WHOLE`], valid until a tick.
///
/// A [driver](crate::shares::Driver) sets it; stores read it with each step, without a lock. Clones share one part.
///
/// # Examples
/// ```
/// use tidegate::Tick;
/// use tidegate::cluster::Part;
///
/// let part = Part::even(4);
/// assert_eq!(part.at(Tick::from_secs(1)), Part::WHOLE / 4);
/// part.set(Part::WHOLE / 2, Tick::from_secs(1), Tick::from_secs(10));
/// assert_eq!(part.at(Tick::from_secs(9)), Part::WHOLE / 2);
/// assert_eq!(part.at(Tick::from_secs(10)), Part::WHOLE / 4, "it has ended: what is always this node's remains");
/// ```
#[derive(Clone)]
pub struct Part {
    shared: Arc<CurrentPart>,
}

struct CurrentPart {
    /// The part, and above it the millisecond at which it ends.
    word: AtomicU64,
    /// The part that this node may always use.
    permanent: u32,
    /// Each part and the tick from which it held, ascending. A reader that sees only one of this list and the word
    /// changed counts the lesser of both parts.
    changes: ArcSwap<Vec<(Tick, u32)>>,
    writes: Mutex<()>,
}

impl Part {
    /// The whole: the parts of all nodes add up to at most this.
    pub const WHOLE: u32 = 1 << 20;

    /// Makes the even part of one of `nodes` nodes, rounded down; it never expires. 0 counts as 1. With more than
    /// [`Part::WHOLE`] nodes the part is zero.
    ///
    /// It holds again when a part that was [set](Part::set) has ended. So `nodes` must be the most nodes that there may
    /// ever be, and code that sets parts must leave this part for each.
    #[must_use]
    pub fn even(nodes: u64) -> Self {
        let permanent = u64::from(Self::WHOLE) / nodes.max(1);
        Self::permanent(u32::try_from(permanent).unwrap_or(Self::WHOLE))
    }

    /// Makes a part that does not end and holds again when one that was [set](Part::set) has ended, at most the whole.
    #[must_use]
    pub fn permanent(permanent: u32) -> Self {
        let permanent = permanent.min(Self::WHOLE);
        let changes = ArcSwap::from_pointee(vec![(Tick::EPOCH, permanent)]);
        Self {
            shared: Arc::new(CurrentPart {
                word: AtomicU64::new(0),
                permanent,
                changes,
                writes: Mutex::default(),
            }),
        }
    }

    /// Sets the part, at most the whole, from `now` until a tick, rounded down to a millisecond.
    pub fn set(&self, part: u32, now: Tick, until: Tick) {
        let part = part.min(Self::WHOLE);
        // Locked throughout, so that the list of changes matches the parts that were valid.
        let _alone = self.shared.writes.lock();
        let mut changes = Vec::clone(&self.shared.changes.load());
        let before = self.shared.word.load(Ordering::Relaxed);
        let ended = Tick::from_nanos((before >> PART_BITS).saturating_mul(1_000_000));
        if ended <= now {
            note(&mut changes, ended, self.shared.permanent);
        }
        note(&mut changes, now, part);
        let until = (until.as_nanos() / 1_000_000).min(u64::MAX >> PART_BITS);
        let word = until << PART_BITS | u64::from(part);
        self.shared.changes.store(Arc::new(changes));
        // Relaxed: in either order, `least` finds the lesser of the former part and this one.
        self.shared.word.store(word, Ordering::Relaxed);
    }

    /// Returns the part at a tick, out of [`Part::WHOLE`].
    #[inline]
    #[must_use]
    pub fn at(&self, now: Tick) -> u32 {
        let word = self.shared.word.load(Ordering::Relaxed);
        if now.as_nanos() / 1_000_000 >= word >> PART_BITS {
            return self.shared.permanent;
        }
        u32::try_from(word & ((1 << PART_BITS) - 1)).unwrap_or(Self::WHOLE)
    }

    /// Returns the least part within a span that ends at `now`.
    ///
    /// Another node may have spent units that this part has gained within that time, so they count only after it.
    /// Visits at most the last 64 changes, without a lock.
    pub(crate) fn least(&self, now: Tick, span: Duration) -> u32 {
        let changes = self.shared.changes.load();
        let mut least = self.at(now);
        for (from, part) in changes.iter().rev() {
            least = least.min(*part);
            if now.since(*from) >= span {
                break;
            }
        }
        least
    }
}

fn note(changes: &mut Vec<(Tick, u32)>, from: Tick, part: u32) {
    if let Some((last, held)) = changes.last() {
        if *held == part {
            return;
        }
        // Ticks in the list do not step back.
        let from = from.max(*last);
        changes.push((from, part));
    }
    if changes.len() > MOST_CHANGES {
        let (first, oldest) = changes.remove(0);
        changes[0] = (first, changes[0].1.min(oldest));
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.shared.word.load(Ordering::Relaxed);
        f.debug_struct("Part")
            .field("set", &(word & ((1 << PART_BITS) - 1)))
            .field("until_ms", &(word >> PART_BITS))
            .field("safe", &self.shared.permanent)
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
        part.set(u32::MAX, Tick::EPOCH, Tick::from_nanos(5_999_999));
        assert_eq!(part.at(Tick::from_nanos(4_999_999)), Part::WHOLE);
        assert_eq!(part.at(Tick::from_nanos(5_000_000)), Part::WHOLE / 3);
        part.set(7, Tick::from_secs(1), Tick::MAX);
        assert_eq!(part.at(Tick::from_secs(1 << 30)), 7);
    }

    #[test]
    fn the_parts_of_any_number_of_nodes_add_up_to_the_whole_at_most() {
        for nodes in [0, 1, 2, 3, 7, 1000, u64::from(Part::WHOLE), u64::MAX] {
            let each = u64::from(Part::even(nodes).at(Tick::from_nanos(0)));
            assert!(nodes == u64::MAX && each == 0 || each * nodes.max(1) <= u64::from(Part::WHOLE));
        }
    }

    #[test]
    fn the_least_part_of_a_span_counts_what_ended_in_it() {
        let (part, at) = (Part::permanent(10), Tick::from_secs);
        let least = |now, span| part.least(at(now), Duration::from_secs(span));
        part.set(100, at(100), at(110));
        assert_eq!((least(100, 1), least(105, 5), least(105, 4)), (10, 100, 100));
        part.set(100, at(108), at(120));
        assert_eq!(least(115, 10), 100, "renewed in time, it did not change");
        part.set(40, at(116), at(126));
        assert_eq!((least(116, 0), least(117, 1)), (40, 40));
        part.set(60, at(118), at(122));
        assert_eq!((least(119, 1), least(119, 2)), (60, 40));
        assert_eq!(least(125, 1), 10, "it has ended, and nobody has set another");
        part.set(60, at(130), at(140));
        assert_eq!((least(135, 5), least(135, 6)), (60, 10));
        for turn in 0..1000u64 {
            part.set(50 + u32::try_from(turn).unwrap() % 7, at(141 + turn), at(200 + turn));
        }
        assert_eq!((least(1140, 3), least(1140, 10_000)), (52, 10), "{part:?}");
    }
}
