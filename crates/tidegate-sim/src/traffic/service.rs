//! The durations and failures of generated requests.

use std::time::Duration;

use tidegate::Outcome;

use super::chance::Chance;

/// The unit of shares: a millionth.
pub(super) const MILLION: u32 = 1_000_000;

/// Changes the traffic's seed for durations and failures, so that the times of requests are the same whether or not a
/// line specifies these.
const APART: u64 = 0x5bf0_3635_d1c6_2f4b;

/// How long requests take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    /// Always the same.
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
                // Take a product of 128 bits: the number of choices, `high - low + 1`, may be one more than 64 bits
                // hold.
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
