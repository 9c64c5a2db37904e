//! One segment of traffic: the times, keys and costs of its requests.

use std::sync::Arc;

use tidegate::{Cost, Priority};

use super::chance::Chance;
use super::service::Service;

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

/// A rate as an exact ratio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) count: u64,
    pub(super) period: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Steady { pace: Pace, span: u64 },
    Ramp { from: Pace, to: Pace, span: u64 },
    Poisson { pace: Pace, span: u64 },
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
        let at = |pace: Pace, span: u64| u128::from(pace.count) * u128::from(span) / u128::from(pace.period);
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
            Self::Steady { pace: Pace { count: 0, .. }, .. }
            | Self::Poisson { pace: Pace { count: 0, .. }, .. } => {
                return None;
            }
            Self::Steady { pace, span } => {
                let at = u128::from(number) * u128::from(pace.period) / u128::from(pace.count);
                (u64::try_from(at).unwrap_or(u64::MAX), span)
            }
            Self::Poisson { pace, span } => {
                // The gap is a fixed-point multiple of the mean, with 32 fractional bits.
                let gap = u128::from(chance.exponential()) * u128::from(pace.period) / u128::from(pace.count);
                (last.saturating_add(u64::try_from(gap >> 32).unwrap_or(u64::MAX)), span)
            }
            Self::Ramp { from, to, span } => (ramp(from, to, span, number)?, span),
        };
        (at < span).then_some(at)
    }
}

/// Returns the time when the area under a ramp reaches `number`: the solution of a quadratic equation in the form
/// without cancellation. Root and division are exact to the last bit on every platform, so this is as repeatable as
/// integers. 53 bits of precision are a nanosecond in a hundred days.
fn ramp(from: Pace, to: Pace, span: u64, number: u64) -> Option<u64> {
    let per_nano = |pace: Pace| pace.count as f64 / pace.period as f64;
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
    /// Makes a choice among `count` keys in which the share of each falls with its rank.
    ///
    /// The shares are accumulated on a grid of 2³², so that the last bit of a platform's power function does not
    /// affect the choice.
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
