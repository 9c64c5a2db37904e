//! How long made-up requests take, and how many of them fail.

use std::time::Duration;

use tidegate::Outcome;

use super::chance::Chance;

/// The unit of shares: a millionth.
pub(super) const MILLION: u32 = 1_000_000;

/// The seed of times and failures is the traffic's own, changed by this, so that the same requests come whether or not a line says how
/// they go.
const APART: u64 = 0x5bf0_3635_d1c6_2f4b;

/// How long requests take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    /// Each as long.
    Always(u64),
    /// Anything between two times, ends included, equally likely.
    Between(u64, u64),
    /// By chance with this mean: most are short, one in a hundred takes 4.6 means.
    Exponential(u64),
}

impl Service {
    fn draw(self, chance: &mut Chance) -> Duration {
        Duration::from_nanos(match self {
            Self::Always(nanos) => nanos,
            Self::Between(low, high) => {
                // A product of 128 bits: a number below the count of choices, of which one more than `high - low` fit 64 bits.
                let choices = u128::from(high - low) + 1;
                low + ((u128::from(chance.next()) * choices) >> 64) as u64
            }
            Self::Exponential(mean) => {
                let nanos = (u128::from(chance.exponential()) * u128::from(mean)) >> 32;
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        })
    }
}

/// Chance for times and failures, apart from that of who comes when.
#[derive(Clone, Debug)]
pub(super) struct Fate(Chance);

impl Fate {
    pub(super) fn of(seed: u64) -> Self {
        Self(Chance(seed ^ APART))
    }

    /// Returns how long one request takes and how it ends, where the segment says so. `failing` is in millionths.
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
