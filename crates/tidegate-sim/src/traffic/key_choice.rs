//! Chooses keys at random, for real requests rather than simulated ones.

use std::str::FromStr;
use std::sync::Arc;

use super::grammar;
use super::segment::Keys;

/// A random choice of keys, in the form of traffic: `uniform:N`, `zipf:S:N`, or `one`. Cheap to clone: a table of 4
/// bytes per key is shared.
///
/// # Examples
/// ```
/// use tidegate_sim::traffic::KeyChoice;
///
/// let keys: KeyChoice = "zipf:1.1:1000".parse()?;
/// assert_eq!(keys.count(), 1000);
/// let mut drawn = keys.draws(7);
/// assert!(drawn.draw() < 1000);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyChoice(Keys);

/// A sequence of keys; the same seed gives the same keys.
#[derive(Clone, Debug)]
pub struct KeyDraws {
    keys: KeyChoice,
    chance: Chance,
}

impl KeyChoice {
    /// Returns the number of keys, from 1 to 1,000,000.
    #[must_use]
    pub fn count(&self) -> u32 {
        match &self.0 {
            Keys::One(_) => 1,
            Keys::Uniform(count) => *count,
            // The grammar allows at most a million.
            Keys::Zipf(shares) => u32::try_from(shares.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns a sequence of keys for a seed.
    #[must_use]
    pub fn draws(&self, seed: u64) -> KeyDraws {
        KeyDraws { keys: self.clone(), chance: Chance(seed) }
    }
}

impl KeyDraws {
    /// Returns the next key, counted from 0; for `zipf`, 0 is the most frequent one.
    pub fn draw(&mut self) -> u32 {
        self.keys.0.draw(&mut self.chance)
    }
}

impl FromStr for KeyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "one" => Ok(Self(Keys::One(Arc::from("one")))),
            text => grammar::keys(text).map(Self).map_err(|error| {
                match error.what.strip_suffix("use uniform:N or zipf:S:N") {
                    Some(what) => format!("{what}use one, uniform:N or zipf:S:N"),
                    None => error.what,
                }
            }),
        }
    }
}

/// A small random generator that gives the same numbers on every platform and in every version.
///
/// The number inside is its state: at first the seed.
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

    /// Returns a number below `count`, or 0 if that is 0; its bias, below 2⁻³², is negligible.
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
    fn keys_are_drawn_as_often_as_they_should_be() {
        let mut counts = [0u32; 4];
        let mut draws = "uniform:4".parse::<KeyChoice>().unwrap().draws(1);
        (0..10_000).for_each(|_| counts[draws.draw() as usize] += 1);
        assert!(counts.iter().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
        let mut draws = "zipf:1:2".parse::<KeyChoice>().unwrap().draws(1);
        let first = (0..9_000).filter(|_| draws.draw() == 0).count();
        assert!((5_800..6_200).contains(&first), "{first}");
        let mut one = "one".parse::<KeyChoice>().unwrap().draws(1);
        assert_eq!((one.draw(), one.draw()), (0, 0));
    }

    #[test]
    fn what_is_no_choice_of_keys_is_told_with_what_would_be() {
        for (text, says) in [
            (
                "zip:1:2",
                "`zip:1:2` is not a choice of keys; did you mean `zipf`? use one, uniform:N or zipf:S:N",
            ),
            ("", "`` is not a choice of keys; use one, uniform:N or zipf:S:N"),
            ("uniform:0", "`0` is not a number of keys from 1 to 1000000"),
            ("zipf:11:5", "the exponent of zipf is 0 to 10"),
        ] {
            assert_eq!(text.parse::<KeyChoice>().unwrap_err(), says, "{text}");
        }
    }

    #[test]
    fn exponential_gaps_have_mean_and_variance_one() {
        let mut chance = Chance(3);
        let all: Vec<f64> = (0..100_000).map(|_| chance.exponential() as f64 / 2f64.powi(32)).collect();
        let mean = all.iter().sum::<f64>() / 1e5;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
