//! Random numbers that depend on a seed alone and are the same on all platforms.

/// A small random generator that gives the same numbers on every platform and in every version.
///
/// The number is its state: at first the seed.
///
/// # Source
/// Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014 (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `count`; its bias, below 2⁻³², is negligible.
    pub fn below(&mut self, count: u32) -> u32 {
        ((u64::from((self.bits() >> 32) as u32) * u64::from(count)) >> 32) as u32
    }

    /// Returns a number from 0 up to but not including 1, a multiple of 2⁻³².
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 32) as f64 / 4_294_967_296.0
    }

    /// Returns an exponential variate of mean 1, in units of 2⁻³², by comparisons alone: a logarithm could differ
    /// between platforms.
    ///
    /// Uniform numbers are drawn as long as they fall. A run of odd length gives its first number; a run of even
    /// length is discarded and adds one whole mean.
    ///
    /// # Source
    /// J. von Neumann, Various techniques used in connection with random digits, 1951.
    pub fn exponential(&mut self) -> u64 {
        let mut whole = 0u64;
        loop {
            let first = self.bits() >> 32;
            let (mut before, mut length) = (first, 1u32);
            loop {
                let next = self.bits() >> 32;
                if next >= before {
                    break;
                }
                before = next;
                length += 1;
            }
            if length % 2 == 1 {
                return (whole << 32) + first;
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_gaps_have_mean_and_variance_one() {
        let mut chance = Chance(3);
        let all: Vec<f64> = (0..100_000).map(|_| chance.exponential() as f64 / 2f64.powi(32)).collect();
        let mean = all.iter().sum::<f64>() / 1e5;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
