//! How hot a key is.

/// How hot a key is when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// A lower bound of the key's count, including the amount just added.
    pub least: u64,
    /// The counted total of all keys.
    pub total: u64,
}

impl Heat {
    /// Returns whether the key is sure to make up more than `share` (0 to 1) of the total, and the total is at least
    /// `at_least`: the moment to answer the key from a cache, or to give it a limit of its own. No key makes up more than 1,
    /// or more than a share that is not a number.
    #[must_use]
    pub fn is_above(&self, share: f64, at_least: u64) -> bool {
        self.total >= at_least && self.least as f64 > share * self.total as f64
    }
}
