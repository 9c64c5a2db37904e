//! The durations of requests over time, in bounded memory, for percentiles.
//!
//! Durations are kept to three significant digits, each with its count: at most 900 values per power of ten, usually
//! a few hundred in all.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::Tick;

/// Bins double their width when time runs past the last bin.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// The most bins; an even number.
    bins: usize,
    /// The width of a bin in nanoseconds.
    width: u64,
    start: Option<u64>,
    times: Vec<Times>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Times {
    fn add(&mut self, nanos: u64) {
        *self.counts.entry(rounded(nanos)).or_default() += 1;
        self.total += 1;
    }

    fn add_all(&mut self, others: Self) {
        for (nanos, count) in others.counts {
            *self.counts.entry(nanos).or_default() += count;
        }
        self.total += others.total;
    }

    /// Returns a percentile of the durations, to three significant digits; `None` without requests. With fewer than a
    /// hundred requests, the 99th percentile is the longest.
    #[must_use]
    pub(crate) fn percentile(&self, percent: u32) -> Option<Duration> {
        let rank = (u128::from(self.total) * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0u128;
        let found = self.counts.iter().find(|(_, count)| {
            seen += u128::from(**count);
            seen >= rank
        });
        found.map(|(nanos, _)| Duration::from_nanos(*nanos))
    }

    #[must_use]
    pub(crate) const fn count(&self) -> u64 {
        self.total
    }
}

/// Rounds to three significant digits.
fn rounded(nanos: u64) -> u64 {
    let mut unit = 1;
    while nanos / unit >= 1_000 {
        unit *= 10;
    }
    nanos.saturating_add(unit / 2) / unit * unit
}

impl Served {
    /// Makes an empty record, with at least two bins that are at first `width` wide. A width of zero becomes one
    /// nanosecond.
    #[must_use]
    pub(crate) fn new(bins: usize, width: Duration) -> Self {
        let width = u64::try_from(width.as_nanos()).unwrap_or(u64::MAX / 4).clamp(1, u64::MAX / 4);
        Self { bins: bins.next_multiple_of(2).max(2), width, start: None, times: Vec::new() }
    }

    /// A time before the first counts as the first.
    pub(crate) fn add(&mut self, at: Tick, took: Duration) {
        let at = at.as_nanos();
        let start = *self.start.get_or_insert(at - at % self.width);
        let since = at.saturating_sub(start);
        while since / self.width >= self.bins as u64 {
            let mut rest = std::mem::take(&mut self.times).into_iter();
            while let Some(mut first) = rest.next() {
                first.add_all(rest.next().unwrap_or_default());
                self.times.push(first);
            }
            self.width *= 2;
        }
        let bin = (since / self.width) as usize;
        if self.times.len() <= bin {
            self.times.resize_with(bin + 1, Times::default);
        }
        self.times[bin].add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    #[must_use]
    pub(crate) const fn width(&self) -> Duration {
        Duration::from_nanos(self.width)
    }

    /// The start of each bin, and the durations within it.
    pub(crate) fn points(&self) -> impl Iterator<Item = (Tick, &Times)> {
        let start = self.start.unwrap_or(0);
        let at = move |bin: usize| Tick::from_nanos(start.saturating_add(bin as u64 * self.width));
        self.times.iter().enumerate().map(move |(bin, times)| (at(bin), times))
    }

    /// Returns the end of the last bin; `None` without requests.
    #[must_use]
    pub(crate) fn end(&self) -> Option<Tick> {
        self.points().last().map(|(at, _)| at.after(self.width()))
    }

    #[must_use]
    pub(crate) fn all(&self) -> Times {
        let mut all = Times::default();
        self.times.iter().for_each(|times| all.add_all(times.clone()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut served = Served::new(4, Duration::from_secs(1));
        for millis in 1..=200u64 {
            served.add(Tick::from_secs(millis / 10), Duration::from_millis(millis));
        }
        let all = served.all();
        let at = |percent| all.percentile(percent).map(|took| took.as_millis());
        assert_eq!(
            (all.count(), at(0), at(50), at(99), at(100)),
            (200, Some(1), Some(100), Some(198), Some(200))
        );
        assert_eq!(Times::default().percentile(99), None);
        assert!(served.points().count() <= 4);
        assert_eq!(served.points().map(|(_, times)| times.count()).sum::<u64>(), 200);
    }

    #[test]
    fn three_digits_are_kept() {
        let rows = [(0, 0), (999, 999), (1_234, 1_230), (20_000_000, 20_000_000), (1_235_000, 1_240_000)];
        for (nanos, want) in rows {
            assert_eq!(rounded(nanos), want);
        }
        let mut served = Served::new(2, Duration::ZERO);
        served.add(Tick::EPOCH, Duration::MAX);
        served.add(Tick::MAX, Duration::ZERO);
        assert_eq!(served.all().count(), 2);
    }
}
