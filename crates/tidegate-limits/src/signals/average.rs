//! A moving average weighted by time.

use tidegate_core::Tick;
use tidegate_core::time::nanos;

/// The time after which half of a change is taken over, in seconds: longer than a garbage collection, shorter than an
/// overload.
const HALF: f64 = 1.0;

/// An average in which a sample weighs by the time since the previous one.
///
/// It is kept as a fraction, so it gets arbitrarily close to a lasting value. Averages of processor time are often
/// kept in whole thousandths and rounded down; such an average would stop below full load and never cross a threshold
/// near it.
#[derive(Debug, Default)]
pub(super) struct Average(Option<(f64, Tick)>);

impl Average {
    /// Adds a sample and returns the average. A sample at the tick of the previous one, or earlier, changes nothing.
    pub(super) fn add(&mut self, now: Tick, sample: f64) -> f64 {
        let Some((average, at)) = self.0 else {
            self.0 = Some((sample, now));
            return sample;
        };
        let span = nanos(now.since(at)) as f64 / 1e9;
        let average = average + (sample - average) * (span / (span + HALF));
        self.0 = Some((average, at.max(now)));
        average
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reaches_full_scale_and_zero() {
        let mut average = Average::default();
        average.add(Tick::EPOCH, 0.0);
        let mut at = |quarter: u64, sample| average.add(Tick::from_nanos(quarter * 250_000_000), sample);
        let full: Vec<f64> = (1..=40).map(|quarter| at(quarter, 1000.0)).collect();
        assert!(full[6] < 800.0 && full[7] > 800.0, "eight samples, two seconds: {full:?}");
        assert!(full[39] > 999.5, "{full:?}");
        assert!((41..=90).map(|quarter| at(quarter, 0.0)).last().unwrap() < 0.5);
        assert!(at(1, 1000.0) < 0.5, "a clock that steps back stands still");
        assert!(at(u64::MAX / 250_000_000, 7.0) > 6.9, "after centuries only the last sample counts");
    }
}
