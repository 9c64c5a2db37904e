//! Computes how the whole is divided by demand.

use std::time::Duration;

use crate::Part;

/// The time over which a node's demand is averaged: a burst of one second moves the average by a fifth.
pub(super) const AVERAGED_OVER: Duration = Duration::from_secs(5);

/// The part of the whole that is divided evenly as each node's permanent part, with an engine or without: small,
/// because what idle nodes have of it is not used.
const ALWAYS: u32 = Part::WHOLE / 32;

/// One part in this many of the pool is divided evenly among the members, so that a node that was idle can begin:
/// small, for the same reason.
const EVENLY: u64 = 32;

/// Changes up to this percentage of a part are not made, so that shares do not follow every fluctuation.
const SLACK: u64 = 10;

/// A change must exceed this many standard deviations of the counted demand, so that shares do not follow chance.
const BEYOND: u128 = 2;

/// Changes smaller than this are not made: a 256th of the whole.
const SMALL: u32 = Part::WHOLE / 256;

/// The rules by which the whole is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    most: u32,
}

impl Division {
    /// Divides among at most `most` nodes, 1 to 32,768; other numbers count as the nearest. The deployment must never
    /// have more nodes: a node that cannot ask the engine relies on that.
    #[must_use]
    pub fn among(most: u64) -> Self {
        Self { most: u32::try_from(most).unwrap_or(u32::MAX).clamp(1, ALWAYS) }
    }

    /// Returns the permanent part of each node, as a number out of [`Part::WHOLE`].
    #[must_use]
    pub const fn permanent_part(&self) -> u32 {
        ALWAYS / self.most
    }

    /// Makes the part of a node: its permanent part, until it is given more.
    #[must_use]
    pub fn part(&self) -> Part {
        Part::permanent(self.permanent_part())
    }

    /// Returns the pool that the document divides, with the given number of members.
    #[must_use]
    pub(super) fn pool(&self, members: usize) -> u32 {
        let nodes = u32::try_from(members).unwrap_or(u32::MAX).max(self.most);
        Part::WHOLE.saturating_sub(self.permanent_part().saturating_mul(nodes))
    }

    /// Returns whether there are more members than the stated maximum.
    #[must_use]
    pub(super) fn is_exceeded(&self, members: usize) -> bool {
        members > self.most as usize
    }

    /// Divides a pool by demand, each part rounded down: a small piece of it evenly, the rest in proportion. Without
    /// any demand, all of it evenly.
    #[must_use]
    pub(super) fn divide(&self, pool: u32, demands: &[u64]) -> Vec<u32> {
        let nodes = demands.len().max(1) as u128;
        let all: u128 = demands.iter().map(|demand| u128::from(*demand)).sum();
        let pool = u128::from(pool);
        let evenly = if all == 0 { pool } else { pool / u128::from(EVENLY) };
        let part = |demand: &u64| {
            let by_demand = ((pool - evenly) * u128::from(*demand)).checked_div(all).unwrap_or(0);
            // The conversion is exact: at most the pool.
            u32::try_from(evenly / nodes + by_demand).unwrap_or(0)
        };
        demands.iter().map(part).collect()
    }

    /// Returns whether parts are far enough from their targets to be changed. `pairs` are the part that each member has
    /// and the part that it should have; `counted` is the number of units that the demand was counted from. The fewer
    /// units were counted, the larger a difference may be by chance.
    #[must_use]
    pub(super) fn is_worth_it(
        &self,
        pool: u32,
        counted: u64,
        pairs: impl Iterator<Item = (u32, u32)>,
    ) -> bool {
        // A part of `want/pool` of n units drawn at random varies by the square root of `want/pool · (1 − want/pool) / n`.
        let by_chance = |apart: u32, want: u32| {
            let variance = u128::from(want) * u128::from(pool.saturating_sub(want));
            u128::from(apart).pow(2) * u128::from(counted) <= BEYOND.pow(2) * variance
        };
        let (mut used, mut far) = (0u32, false);
        for (have, want) in pairs {
            used = used.saturating_add(have);
            let apart = have.abs_diff(want);
            let matters = apart >= SMALL && u64::from(apart) * 100 > SLACK * u64::from(have.max(want));
            // A member without a part is always given one.
            far |= matters && (have == 0 || !by_chance(apart, want));
        }
        far || pool.saturating_sub(used) > pool / 16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_node_has_nearly_all_and_an_idle_one_can_begin() {
        let division = Division::among(10);
        let pool = division.pool(10);
        let parts = division.divide(pool, &[1000, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let hundredths =
            |part: u32| u64::from(part + division.permanent_part()) * 100 / u64::from(Part::WHOLE);
        assert!(hundredths(parts[0]) >= 93, "{}", hundredths(parts[0]));
        assert!(parts[1] > 0);
        assert_eq!(division.divide(pool, &[0, 0]), [pool / 2, pool / 2]);
        assert!(division.divide(pool, &[]).is_empty());
    }

    #[test]
    fn small_changes_are_left() {
        let division = Division::among(4);
        let whole = Part::WHOLE;
        let counted =
            |counted, pairs: &[(u32, u32)]| division.is_worth_it(whole, counted, pairs.iter().copied());
        let worth = |pairs: &[(u32, u32)]| counted(1_000_000, pairs);
        assert!(!worth(&[(whole / 2, whole / 2), (whole / 2, whole / 2)]));
        assert!(!worth(&[(whole / 20 * 10, whole / 20 * 9), (whole / 20 * 10, whole / 20 * 11)]));
        assert!(worth(&[(whole / 20 * 12, whole / 20 * 10), (whole / 20 * 8, whole / 20 * 10)]));
        assert!(worth(&[(0, whole / 2), (whole, whole / 2)]), "a new member");
        assert!(worth(&[(whole / 2, whole / 2)]), "half of it is nobody's");
        assert!(!worth(&[(whole, whole - 1), (0, 1)]));
        let even_to_uneven = [(whole / 2, whole / 10 * 6), (whole / 2, whole / 10 * 4)];
        assert!(!counted(90, &even_to_uneven), "54 and 36 of 90 may be chance");
        assert!(counted(100, &even_to_uneven));
        assert!(
            counted(4, &[(whole / 32, whole / 32 * 31), (whole / 32 * 31, whole / 32)]),
            "four of four elsewhere"
        );
        assert!(counted(1, &[(0, whole / 2), (whole, whole / 2)]), "a new member");
    }

    proptest! {
        #[test]
        fn parts_never_add_up_to_more(most in 1u64..40_000, demands in prop::collection::vec(any::<u64>(), 0..50)) {
            let division = Division::among(most);
            let pool = division.pool(demands.len());
            let parts = division.divide(pool, &demands);
            let pool_used: u64 = parts.iter().map(|part| u64::from(*part)).sum();
            prop_assert!(pool_used <= u64::from(pool));
            let own = u64::from(division.permanent_part()) * u64::from(division.most).max(demands.len() as u64);
            prop_assert!(u64::from(pool) + own <= u64::from(Part::WHOLE) || pool == 0);
        }
    }
}
