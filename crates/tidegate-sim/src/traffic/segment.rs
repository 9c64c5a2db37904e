//! One segment of traffic: the times, keys and costs of its requests.

use std::sync::Arc;
use std::time::Duration;

use tidegate::priority::Priority;
use tidegate::{Cost, Outcome};

use super::key_choice::Chance;

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
