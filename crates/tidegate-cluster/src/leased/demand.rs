//! Measures a node's demand for one key, which sizes its draws.

use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::time::nanos;

/// The time over which the demand is averaged, in nanoseconds: long enough that one gap between requests does not
/// shrink a draw.
const AVERAGED_OVER: u64 = 200_000_000;

/// Up to this many units are drawn even if they last longer than the target, as long as they are likely to be spent
/// before they expire: otherwise a key that is hit a few times a second would need a draw at each hit.
const FEW: u64 = 8;

/// The recent demand for one key on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// The averaged demand, in thousandths of a unit per second.
    rate: u64,
    /// Units asked for since the last draw, whether they were granted or not.
    asked: u64,
    since: Tick,
}

impl Demand {
    /// Counts units that were asked for.
    #[inline]
    pub(super) const fn record(&mut self, units: u64) {
        self.asked = self.asked.saturating_add(units);
    }

    /// Returns how many units to draw, so that they last for `target`, and restarts the count. A few units are drawn
    /// even if they last longer, up to half of the time for which units may be held, `lasts`.
    ///
    /// At most twice what was asked for since the last draw: a key that was hit once draws nothing ahead, and a key
    /// that is hit all the time reaches its full size within a few draws.
    pub(super) fn sized(&mut self, now: Tick, target: Duration, lasts: Duration) -> u64 {
        let passed = nanos(now.since(self.since)).max(1);
        let known = self.since > Tick::EPOCH;
        let sample = u128::from(self.asked) * 1_000_000_000_000 / u128::from(passed);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        if !known {
            self.rate = 0;
        } else if passed >= AVERAGED_OVER || sample > self.rate {
            self.rate = sample;
        } else {
            // Decreases slowly, by the share of the averaging time that has passed.
            let down = u128::from(self.rate - sample) * u128::from(passed) / u128::from(AVERAGED_OVER);
            self.rate -= u64::try_from(down).unwrap_or(self.rate);
        }
        let within = |span: Duration| {
            let units = u128::from(self.rate) * u128::from(nanos(span)) / 1_000_000_000_000;
            u64::try_from(units).unwrap_or(u64::MAX)
        };
        let units = within(target).max(within(lasts / 2).min(FEW)).min(self.asked.saturating_mul(2));
        (self.asked, self.since) = (0, now);
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(50);
    const LASTS: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn a_key_that_is_hit_now_and_then_draws_nothing_ahead() {
        let mut demand = Demand::default();
        for second in 0..10 {
            demand.record(1);
            assert_eq!(demand.sized(ms(second * 1000), TARGET, LASTS), 0);
        }
    }

    #[test]
    fn a_key_that_is_hit_a_few_times_a_second_draws_a_few() {
        let mut demand = Demand::default();
        let drawn: Vec<u64> = (0..5)
            .map(|draw| {
                demand.record(8);
                demand.sized(ms(draw * 400), TARGET, LASTS)
            })
            .collect();
        assert_eq!(drawn, [0, 8, 8, 8, 8]);
    }

    #[test]
    fn a_key_that_is_hit_all_the_time_draws_what_lasts_for_the_target_within_a_few_draws() {
        let mut demand = Demand::default();
        let (mut at, mut drawn) = (0, Vec::new());
        // A thousand a second; each draw is made when the one before is spent.
        for _ in 0..8 {
            let units = demand.sized(ms(at), TARGET, LASTS).max(1);
            drawn.push(units);
            demand.record(units);
            at += units;
        }
        assert_eq!(drawn, [1, 2, 4, 8, 16, 32, 50, 50]);
    }
}
