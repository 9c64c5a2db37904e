//! One segment of traffic: the times, keys and costs of its requests; and a choice of keys alone, for real requests.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::priority::Priority;
use tidegate::{Cost, Outcome};

use super::grammar;

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) shape: Shape,
    pub(super) keys: Keys,
    pub(super) cost: Cost,
    pub(super) taking: Option<Service>,
    /// The share of requests that fail, in millionths.
    pub(super) failing: Option<u32>,
    /// The attributes of each request, without its key.
    pub(super) attributes: Arc<[(Box<str>, Box<str>)]>,
    pub(super) priority: Priority,
}

/// An exact ratio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) count: u64,
    pub(super) period: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Steady { pace: Ratio, span: u64 },
    Ramp { from: Ratio, to: Ratio, span: u64 },
    Poisson { pace: Ratio, span: u64 },
    Burst { count: u64 },
    Idle { span: u64 },
}

#[derive(Clone, Debug)]
pub(super) enum Keys {
    One(Arc<str>),
    Uniform(u32),
    /// The cumulative shares of the keys, out of 2³².
    Zipf(Arc<[u32]>),
}

impl Shape {
    /// Returns the length of the segment, in nanoseconds.
    pub(super) fn span(self) -> u64 {
        match self {
            Self::Steady { span, .. }
            | Self::Ramp { span, .. }
            | Self::Poisson { span, .. }
            | Self::Idle { span } => span,
            Self::Burst { .. } => 0,
        }
    }

    /// Returns how many requests it makes, on average if they are random.
    pub(super) fn requests(self) -> u128 {
        let at = |pace: Ratio, span: u64| u128::from(pace.count) * u128::from(span) / u128::from(pace.period);
        match self {
            Self::Steady { pace, span } | Self::Poisson { pace, span } => at(pace, span),
            Self::Ramp { from, to, span } => (at(from, span) + at(to, span)) / 2,
            Self::Burst { count } => u128::from(count),
            Self::Idle { .. } => 0,
        }
    }

    /// Returns the time of request `number`, counted from the segment's start; `None` after the last request.
    pub(super) fn offset(self, number: u64, last: u64, chance: &mut Chance) -> Option<u64> {
        let (at, span) = match self {
            Self::Idle { .. } => return None,
            Self::Burst { count } => return (number < count).then_some(0),
            Self::Steady { pace: Ratio { count: 0, .. }, .. }
            | Self::Poisson { pace: Ratio { count: 0, .. }, .. } => {
                return None;
            }
            Self::Steady { pace, span } => {
                let at = u128::from(number) * u128::from(pace.period) / u128::from(pace.count);
                (u64::try_from(at).unwrap_or(u64::MAX), span)
            }
            Self::Poisson { pace, span } => {
                // A fixed-point multiple of the mean, with 32 fractional bits.
                let gap = u128::from(chance.exponential()) * u128::from(pace.period) / u128::from(pace.count);
                (last.saturating_add(u64::try_from(gap >> 32).unwrap_or(u64::MAX)), span)
            }
            Self::Ramp { from, to, span } => (ramp(from, to, span, number)?, span),
        };
        (at < span).then_some(at)
    }
}

/// The time when the area under a ramp reaches `number`: the solution of a quadratic equation in the form without
/// cancellation. Root and division are exact to the last bit on every platform. 53 bits of precision are a nanosecond
/// in a hundred days.
fn ramp(from: Ratio, to: Ratio, span: u64, number: u64) -> Option<u64> {
    let per_nano = |pace: Ratio| pace.count as f64 / pace.period as f64;
    let (from, to, number) = (per_nano(from), per_nano(to), number as f64);
    let slope = (to - from) / span as f64;
    let root = from * from + 2.0 * slope * number;
    if number == 0.0 {
        return (from > 0.0 || to > 0.0).then_some(0);
    }
    if root < 0.0 {
        return None;
    }
    let at = 2.0 * number / (from + root.sqrt());
    at.is_finite().then_some(at as u64)
}

impl Keys {
    /// The share of each key falls with its rank.
    ///
    /// The shares are accumulated on a grid of 2³², so that the last bit of a platform's power function does not affect
    /// the choice.
    pub(super) fn zipf(exponent: f64, count: u64) -> Self {
        let weight = |rank: u64| (rank as f64).powf(-exponent);
        let total: f64 = (1..=count).map(weight).sum();
        let mut sum = 0.0;
        let shares = (1..=count).map(|rank| {
            sum += weight(rank);
            (sum / total * f64::from(u32::MAX)).round() as u32
        });
        Self::Zipf(shares.collect())
    }

    /// Returns the next key, counted from 0. A single key consumes no random number.
    pub(super) fn draw(&self, chance: &mut Chance) -> u32 {
        match self {
            Self::One(_) | Self::Uniform(1) => 0,
            Self::Uniform(count) => chance.below(*count),
            Self::Zipf(shares) => {
                let at = (chance.bits() >> 32) as u32;
                shares.partition_point(|share| *share < at).min(shares.len() - 1) as u32
            }
        }
    }
}

/// The unit of shares.
pub(super) const MILLION: u32 = 1_000_000;

/// Changes the traffic's seed for durations and failures, so that the times of requests do not depend on these.
const APART: u64 = 0x5bf0_3635_d1c6_2f4b;

/// How long requests take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    Always(u64),
    /// Uniform between two times, both included.
    Between(u64, u64),
    /// Exponential with this mean: most are short, one in a hundred takes over 4.6 times the mean.
    Exponential(u64),
}

impl Service {
    fn draw(self, chance: &mut Chance) -> Duration {
        Duration::from_nanos(match self {
            Self::Always(nanos) => nanos,
            Self::Between(low, high) => {
                // The number of choices may be one more than 64 bits hold.
                let choices = u128::from(high - low) + 1;
                low + ((u128::from(chance.bits()) * choices) >> 64) as u64
            }
            Self::Exponential(mean) => {
                let nanos = (u128::from(chance.exponential()) * u128::from(mean)) >> 32;
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        })
    }
}

/// The random numbers for durations and failures, separate from those for times and keys.
#[derive(Clone, Debug)]
pub(super) struct Fate(Chance);

impl Fate {
    pub(super) fn of(seed: u64) -> Self {
        Self(Chance(seed ^ APART))
    }

    /// Returns how long one request takes and how it ends, if the segment tells. `failing` is in millionths.
    pub(super) fn of_one(
        &mut self,
        taking: Option<Service>,
        failing: Option<u32>,
    ) -> (Option<Duration>, Option<Outcome>) {
        let took = taking.map(|service| service.draw(&mut self.0));
        let outcome = failing.map(|share| match self.0.below(MILLION) < share {
            true => Outcome::Failure,
            false => Outcome::Success,
        });
        (took, outcome)
    }
}

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
