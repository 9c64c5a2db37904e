//! Counts distinct hashes in 1 KiB, exactly while there are few.

/// The hashes kept. Up to here the count is exact; beyond it the standard error is one over the square root of this
/// number, 9 %.
const KEPT: usize = 128;

/// Estimates the number of distinct hashes from the smallest of them.
///
/// # Source
/// Bar-Yossef, Jayram, Kumar, Sivakumar, Trevisan: Counting distinct elements in a data stream, 2002 (k minimum values).
#[derive(Clone, Debug, Default)]
pub(in crate::suggest) struct Few(Vec<u64>);

impl Few {
    pub(in crate::suggest) fn add(&mut self, hash: u64) {
        let is_full = self.0.len() == KEPT;
        if is_full && self.0.last().is_some_and(|largest| hash >= *largest) {
            return;
        }
        if let Err(place) = self.0.binary_search(&hash) {
            if is_full {
                self.0.pop();
            }
            self.0.insert(place, hash);
        }
    }

    /// Returns the number of distinct hashes.
    pub(in crate::suggest) fn about(&self) -> u64 {
        match self.0.last() {
            Some(largest) if self.0.len() == KEPT => {
                let part = (*largest as f64 / u64::MAX as f64).max(f64::MIN_POSITIVE);
                ((KEPT - 1) as f64 / part).round() as u64
            }
            _ => self.0.len() as u64,
        }
    }

    /// Returns the hashes kept, a fair sample of all.
    pub(in crate::suggest) fn kept(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Says whether [`Few::about`] is exact.
    pub(in crate::suggest) fn is_exact(&self) -> bool {
        self.0.len() < KEPT
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use foldhash::quality::FixedState;

    use super::*;

    #[test]
    fn few_are_counted_and_many_estimated() {
        let hasher = FixedState::with_seed(0);
        for many in [0u64, 1, 127, 1_000, 50_000] {
            let mut few = Few::default();
            for number in (0..many).chain(0..many) {
                few.add(hasher.hash_one(number));
            }
            let wrong = few.about().abs_diff(many);
            assert!(wrong * 4 <= many && (!few.is_exact() || wrong == 0), "{} for {many}", few.about());
        }
    }
}
