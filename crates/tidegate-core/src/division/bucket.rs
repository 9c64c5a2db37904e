//! The bucket of one holder.

/// A token bucket that one holder is given. It starts full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Units that return in each period of the division; 0: there is no bucket.
    pub rate: u64,
    /// Units that it holds at most, and at the start.
    pub burst: u64,
}

impl Bucket {
    /// Says whether the bucket `by` differs enough to be handed out in place of this one: its rate differs by more
    /// than an eighth, or its burst is at least twice as large. Any bucket is worth more than none.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::division::Bucket;
    /// let has = Bucket { rate: 800, burst: 80 };
    /// assert!(!has.is_worth_replacing(Bucket { rate: 900, burst: 100 }));
    /// assert!(has.is_worth_replacing(Bucket { rate: 699, burst: 80 }));
    /// assert!(has.is_worth_replacing(Bucket { rate: 800, burst: 160 }));
    /// ```
    #[must_use]
    pub const fn is_worth_replacing(self, by: Self) -> bool {
        by.rate.abs_diff(self.rate) > self.rate / 8 || by.burst / 2 >= self.burst
    }
}
