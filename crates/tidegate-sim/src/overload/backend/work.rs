//! How much work a request is.

use std::time::Duration;

use crate::traffic::Chance;

/// A distribution of work, in seconds of one processor at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Always as much.
    Exactly(Duration),
    /// Evenly between the two.
    Even(Duration, Duration),
    /// Exponential with this mean: most take less, some several times as much.
    Exponential(Duration),
    /// One of `one_in` is dear, all others are cheap.
    Mixed {
        /// A cheap one.
        cheap: Duration,
        /// A dear one.
        dear: Duration,
        /// How rare the dear ones are.
        one_in: u32,
    },
    /// Pareto of exponent 4/3 from this least on, cut at a hundred times the least: one request in 460 is as dear as 30 usual ones.
    HeavyTailed(Duration),
    /// A cache that begins empty: a request misses with chance `half / (half + served)`, and costs `miss` then.
    Cached {
        /// Found in the cache.
        hit: Duration,
        /// Not found.
        miss: Duration,
        /// After so many served, half of them hit.
        half: u32,
    },
}

/// The mean of the heavy-tailed work over its least: 4 − 3 / 100^(1/3).
const HEAVY_MEAN: f64 = 3.353_671;

impl Work {
    /// Returns its mean; with a cache, the mean of one that is full.
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

    /// Draws the work of one request, in nanoseconds, when `served` others have been served.
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
                // U^(−3/4) by square roots alone, which every machine rounds alike.
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
