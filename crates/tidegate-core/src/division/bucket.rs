//! What one holder is given.

/// A token bucket that one holder is given. It starts full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Units that come back in each period of the division; 0 is no bucket.
    pub rate: u64,
    /// Units that it holds at most, and at first.
    pub burst: u64,
}
