//! A generator of numbers that are the same on every run.

/// A small generator (xorshift64*): random traces need reproducible numbers, not high-quality ones.
///
/// # Examples
/// ```
/// use tidegate::store::conformance::Random;
///
/// let same = [Random::seeded(7), Random::seeded(7)].map(|mut random| random.below(100));
/// assert_eq!(same[0], same[1]);
/// ```
///
/// # Source
/// S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts a stream of numbers; different seeds start different streams, 0 included.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next number below `bound`; always 0 for a bound of 0 or 1.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16;
        if bound == 0 { 0 } else { number % bound }
    }
}
