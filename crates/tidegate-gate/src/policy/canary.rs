//! Which keys of a policy its canary decides: a share of them, and always the same ones.
//!
//! A hash of the policy's name and the key's values is the key's place among all keys, from 0 to 1. The keys below the
//! share are the canary's. The hash is fixed and has no secret: every node, also after a restart, chooses the same keys, a
//! share that grows only adds keys, and one that shrinks only gives keys back.
//!
//! A caller who may choose its keys can therefore choose on which side they fall, and gains nothing: it gets one of two
//! limits, each of which the operator is ready to give every key, and under either a caller with many keys has the limit
//! as many times over. It can keep out of the canary's figures, as it can by not calling; so the guard goes by the callers
//! that are there.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use twox_hash::XxHash64;

/// A part of a whole, from none to all of it, in millionths: an exact number that a file writes as `0.5%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Portion(u32);

impl Portion {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// All of it.
    pub const ALL: Self = Self(Self::WHOLE);

    const WHOLE: u32 = 1_000_000;

    /// Returns the portion nearest to a number from 0 to 1. Less, or no number, is nothing; more is all.
    #[must_use]
    pub fn of(share: f64) -> Self {
        // In range; what is not a number becomes 0.
        Self((share.clamp(0.0, 1.0) * f64::from(Self::WHOLE)).round() as u32)
    }

    /// Creates a portion from millionths; more than a million are all.
    #[must_use]
    pub(super) const fn millionths(count: u32) -> Self {
        Self(if count < Self::WHOLE { count } else { Self::WHOLE })
    }

    /// Returns the portion as a number from 0 to 1.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }
}

/// As in a file: `5%`, `0.25%`.
impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PERCENT: u32 = Portion::WHOLE / 100;
        let (whole, rest) = (self.0 / PERCENT, self.0 % PERCENT);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{rest:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

/// The choice of the keys of one canary.
#[derive(Debug)]
pub(super) struct ChosenKeys {
    seed: u64,
    asked: Portion,
    /// The share in force, in millionths. Policy sets with the same canary have it in common, so that a share that is set
    /// while they replace each other is not lost.
    in_force: OnceLock<Arc<AtomicU32>>,
}

impl ChosenKeys {
    /// Chooses a share of the keys of a policy.
    pub(super) fn of(policy: &str, asked: Portion) -> Self {
        Self { seed: XxHash64::oneshot(0, policy.as_bytes()), asked, in_force: OnceLock::new() }
    }

    /// Reports whether the key with these values is one of them. Takes one hash of the values.
    pub(super) fn has(&self, values: &[u8]) -> bool {
        // Relaxed: the number stands alone. Of two concurrent checks it does not matter which sees a change first.
        let share = self.share().load(Ordering::Relaxed);
        share > 0 && place(self.seed, values) < share
    }

    /// Returns the share in force.
    pub(super) fn in_force(&self) -> Portion {
        // Relaxed: as above.
        Portion(self.share().load(Ordering::Relaxed))
    }

    /// Puts a share in force, for all sets with the same canary.
    pub(super) fn set(&self, share: Portion) {
        // Relaxed: as above.
        self.share().store(share.0, Ordering::Relaxed);
    }

    /// Goes by the share that is in force for the same canary of another set. If this one was in use already, it keeps its
    /// own.
    pub(super) fn go_on_from(&self, before: &Self) {
        // Taken first: two sets may go on from each other.
        let share = Arc::clone(before.share());
        self.in_force.get_or_init(|| share);
    }

    fn share(&self) -> &Arc<AtomicU32> {
        self.in_force.get_or_init(|| Arc::new(AtomicU32::new(self.asked.0)))
    }
}

/// Returns the place of a key among all keys, in millionths: less than a whole.
fn place(seed: u64, values: &[u8]) -> u32 {
    let hash = XxHash64::oneshot(seed, values);
    // The product of a 64-bit number and a million, without its lower 64 bits, is less than a million.
    ((u128::from(hash) * u128::from(Portion::WHOLE)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_written_as_in_a_file_and_is_exact() {
        for (text, share) in
            [("5%", 0.05), ("0.1%", 0.001), ("12.5%", 0.125), ("0.0001%", 1e-6), ("100%", 1.0)]
        {
            let portion = Portion::of(share);
            assert_eq!((portion.to_string().as_str(), portion.as_f64()), (text, share));
        }
        assert_eq!([-1.0, f64::NAN, 2.0].map(Portion::of), [Portion::NONE, Portion::NONE, Portion::ALL]);
        assert_eq!(Portion::millionths(u32::MAX), Portion::ALL);
    }

    /// Nodes of every version have to choose the same keys: these places must never change.
    #[test]
    fn places_are_the_same_in_every_version() {
        let of = |policy: &str, values: &[u8]| place(ChosenKeys::of(policy, Portion::NONE).seed, values);
        // The reference hash of nothing under the seed 0.
        assert_eq!(XxHash64::oneshot(0, b""), 0xef46_db37_51d8_e999);
        assert_eq!(place(0, b""), 934_674);
        let key = b"\x0c203.0.113.9";
        assert_ne!(of("per-ip", key), of("per-user", key), "each policy chooses others");
    }

    #[test]
    fn a_share_has_about_so_many_keys_and_a_larger_one_has_the_same_and_more() {
        let keys = ChosenKeys::of("per-ip", Portion::of(0.05));
        let chosen = || (0..20_000_u32).filter(|key| keys.has(&key.to_le_bytes())).collect::<Vec<_>>();
        let few = chosen();
        // The mean is 1000, with a standard deviation of 31.
        assert!((850..1150).contains(&few.len()), "{}", few.len());
        keys.set(Portion::of(0.5));
        let many = chosen();
        assert!((9_600..10_400).contains(&many.len()), "{}", many.len());
        assert!(few.iter().all(|key| many.binary_search(key).is_ok()), "a larger share only adds keys");
        keys.set(Portion::ALL);
        assert_eq!(chosen().len(), 20_000);
        keys.set(Portion::NONE);
        assert!(chosen().is_empty());
    }

    #[test]
    fn a_set_with_the_same_canary_has_the_share_in_common_with_the_one_before() {
        let (before, after) = (ChosenKeys::of("a", Portion::ALL), ChosenKeys::of("a", Portion::ALL));
        before.set(Portion::NONE);
        after.go_on_from(&before);
        assert_eq!(after.in_force(), Portion::NONE);
        before.set(Portion::of(0.25));
        assert_eq!(after.in_force(), Portion::of(0.25), "also if it is set late");
    }
}
