//! Chooses keys at random, for real requests rather than simulated ones.

use std::str::FromStr;
use std::sync::Arc;

use super::chance::Chance;
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
            // The fallback is never used: the grammar allows at most a million.
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
}
