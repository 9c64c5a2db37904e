//! How much work a request takes.

use std::time::Duration;

use tidegate_sim::traffic::Chance;

/// A distribution of work, as time of one processor at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Always the same.
    Exactly(Duration),
    /// Uniform between the two.
    Even(Duration, Duration),
    /// Exponential with this mean: most requests take less, some several times as much.
    Exponential(Duration),
    /// One request in `one_in` is expensive, all others are cheap.
    Mixed {
        /// The work of a cheap request.
        cheap: Duration,
        /// The work of an expensive request.
        dear: Duration,
        /// The number of requests per expensive one.
        one_in: u32,
    },
    /// Pareto with exponent 4/3 and this minimum, cut off at a hundred times the minimum: one request in 460 takes as
    /// much work as 30 average ones.
    HeavyTailed(Duration),
    /// A cache that is empty at first: a request misses with probability `half / (half + served)`, and then costs
    /// `miss`.
    Cached {
        /// The work of a cache hit.
        hit: Duration,
        /// The work of a cache miss.
        miss: Duration,
        /// The number of served requests after which half of the requests hit.
        half: u32,
    },
}

/// The mean of the heavy-tailed work, as a multiple of its minimum: 4 − 3 / 100^(1/3).
const HEAVY_MEAN: f64 = 3.353_671;

impl Work {
    /// Returns the mean; for a cache, the mean once it is full.
    #[must_use]
    pub fn mean(self) -> Duration {
        self.mean_after(u64::MAX)
    }

    /// Returns the mean work of a request after `served` others.
    #[must_use]
    pub fn mean_after(self, served: u64) -> Duration {
        match self {
            Self::Exactly(work) | Self::Exponential(work) => work,
            Self::Even(least, most) => (least + most) / 2,
            Self::Mixed { cheap, dear, one_in } => (cheap * (one_in - 1) + dear) / one_in,
            Self::HeavyTailed(least) => least.mul_f64(HEAVY_MEAN),
            Self::Cached { hit, miss, half } => {
                let share = f64::from(half) / (f64::from(half) + served as f64);
                hit + (miss - hit).mul_f64(share)
            }
        }
    }

    /// Draws the work of one request, in nanoseconds, after `served` others have been served.
    pub(in super::super) fn draw(self, chance: &mut Chance, served: u64) -> f64 {
        let nanos = |span: Duration| span.as_nanos() as f64;
        match self {
            Self::Exactly(work) => nanos(work),
            Self::Even(least, most) => nanos(least) + (nanos(most) - nanos(least)) * chance.share(),
            Self::Exponential(mean) => nanos(mean) * (chance.exponential() as f64 / 4_294_967_296.0),
            Self::Mixed { cheap, dear, one_in } => {
                nanos(if chance.below(one_in) == 0 { dear } else { cheap })
            }
            Self::HeavyTailed(least) => {
                // Computes U^(−3/4) with square roots alone, which all machines round alike.
                let root = (1.0 - chance.share()).sqrt();
                nanos(least) * (1.0 / (root * root.sqrt())).min(100.0)
            }
            Self::Cached { hit, miss, half } => {
                let misses = chance.share() * (f64::from(half) + served as f64) < f64::from(half);
                nanos(if misses { miss } else { hit })
            }
        }
    }
}
