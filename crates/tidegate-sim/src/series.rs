//! Amounts, levels and durations over time in bounded memory.
//!
//! When time runs past the last bin, neighbours are joined and every bin becomes twice as wide. So an hour and a year
//! take the same memory. Joining hides bursts, so each bin also keeps the largest amount of the narrow bins that it was
//! made of.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::Tick;

/// Amounts of several lanes (offered, admitted, denied) over time.
///
/// Holds `16 × lanes × bins` bytes.
#[derive(Clone, Debug)]
pub struct Series {
    lanes: usize,
    bins: usize,
    /// The width of a bin at first, in nanoseconds: the resolution of the peaks.
    narrow: u64,
    width: u64,
    start: Option<u64>,
    /// The sums of all lanes of the first bin, then those of the next bin, and so on.
    sums: Vec<u64>,
    peaks: Vec<u64>,
    /// The current narrow bin and its amounts, which are not in `peaks` yet.
    at: u64,
    now: Vec<u64>,
    /// A log repeats the same second many times.
    last: Option<(u64, usize)>,
}

/// One bin of one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The start of the bin.
    pub at: Tick,
    /// The average over the bin, per second.
    pub per_second: f64,
    /// The highest amount within one resolution, per second.
    pub peak_per_second: f64,
}

impl Series {
    /// Makes a series of at least two bins that are `width` wide at first; `width` is also the resolution of the peaks.
    /// A width of zero is one nanosecond.
    #[must_use]
    pub(crate) fn new(lanes: usize, bins: usize, width: Duration) -> Self {
        let width = u64::try_from(width.as_nanos()).unwrap_or(u64::MAX / 4).clamp(1, u64::MAX / 4);
        Self {
            lanes,
            bins: bins.next_multiple_of(2).max(2),
            narrow: width,
            width,
            start: None,
            sums: Vec::new(),
            peaks: Vec::new(),
            at: 0,
            now: vec![0; lanes],
            last: None,
        }
    }

    /// A time before the first counts as the first.
    ///
    /// # Panics
    /// If `lane` is out of range.
    #[inline]
    pub(crate) fn add(&mut self, at: Tick, lane: usize, amount: u64) {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        let at = at.as_nanos();
        let bin = match self.last {
            Some((last, bin)) if last == at => bin,
            _ => self.bin(at),
        };
        // A cost may be as large as it gets: sums then stay at the largest number.
        let sum = &mut self.sums[bin * self.lanes + lane];
        *sum = sum.saturating_add(amount);
        self.now[lane] = self.now[lane].saturating_add(amount);
    }

    fn bin(&mut self, at: u64) -> usize {
        // At multiples of their width, so on full seconds or minutes.
        let start = *self.start.get_or_insert(at - at % self.narrow);
        let since = at.saturating_sub(start);
        let narrow = since / self.narrow;
        if narrow != self.at {
            self.fold();
            self.at = narrow;
        }
        let mut bin = since / self.width;
        while bin >= self.bins as u64 {
            self.join();
            bin = since / self.width;
        }
        let bin = bin as usize;
        if self.sums.len() < (bin + 1) * self.lanes {
            self.sums.resize((bin + 1) * self.lanes, 0);
            self.peaks.resize((bin + 1) * self.lanes, 0);
        }
        self.last = Some((at, bin));
        bin
    }

    fn fold(&mut self) {
        let first = ((self.at * self.narrow) / self.width) as usize * self.lanes;
        for (lane, now) in self.now.iter_mut().enumerate() {
            if let Some(peak) = self.peaks.get_mut(first + lane) {
                *peak = (*peak).max(*now);
            }
            *now = 0;
        }
    }

    fn join(&mut self) {
        let lanes = self.lanes;
        let halve = |values: &mut Vec<u64>, join: fn(u64, u64) -> u64| {
            let used = values.len() / lanes;
            for bin in 0..used.div_ceil(2) {
                for lane in 0..lanes {
                    let (left, right) =
                        (values[2 * bin * lanes + lane], values.get((2 * bin + 1) * lanes + lane));
                    values[bin * lanes + lane] = join(left, right.copied().unwrap_or(0));
                }
            }
            values.truncate(used.div_ceil(2) * lanes);
        };
        halve(&mut self.sums, u64::saturating_add);
        halve(&mut self.peaks, u64::max);
        self.width *= 2;
    }

    /// Returns the current width of a bin.
    #[must_use]
    pub fn width(&self) -> Duration {
        Duration::from_nanos(self.width)
    }

    /// Returns the width of a bin at first: the time over which peaks are measured.
    #[must_use]
    pub fn resolution(&self) -> Duration {
        Duration::from_nanos(self.narrow)
    }

    #[cfg(test)]
    pub(crate) fn total(&self, lane: usize) -> u64 {
        self.sums.iter().skip(lane).step_by(self.lanes.max(1)).copied().fold(0, u64::saturating_add)
    }

    /// Returns the bins of a lane in order; empty if nothing was added.
    ///
    /// # Panics
    /// While it is iterated, if there is no such lane.
    pub fn points(&self, lane: usize) -> impl Iterator<Item = Point> {
        let start = self.start.unwrap_or(0);
        let mut whole = self.clone();
        whole.fold();
        (0..self.sums.len() / self.lanes.max(1)).map(move |bin| {
            let place = bin * whole.lanes + lane;
            Point {
                at: Tick::from_nanos(start + bin as u64 * whole.width),
                per_second: whole.sums[place] as f64 * 1e9 / whole.width as f64,
                peak_per_second: whole.peaks[place] as f64 * 1e9 / whole.narrow as f64,
            }
        })
    }
}

/// A level over time, such as how many calls are in flight. It holds until it is set again. Each bin keeps the highest
/// level within it.
///
/// Uses 8 bytes for each bin.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// The most bins; an even number.
    bins: usize,
    /// The width of a bin in nanoseconds.
    width: u64,
    start: Option<u64>,
    highest: Vec<u64>,
    now: u64,
}

impl Levels {
    /// Makes a level of 0, with at least two bins that are at first `width` wide. A width of zero becomes one
    /// nanosecond.
    #[must_use]
    pub(crate) fn new(bins: usize, width: Duration) -> Self {
        let width = u64::try_from(width.as_nanos()).unwrap_or(u64::MAX / 4).clamp(1, u64::MAX / 4);
        Self { bins: bins.next_multiple_of(2).max(2), width, start: None, highest: Vec::new(), now: 0 }
    }

    /// A time before the first counts as the first. A time before the latest raises the bin that it falls into.
    pub(crate) fn set(&mut self, at: Tick, level: u64) {
        let at = at.as_nanos();
        let start = *self.start.get_or_insert(at - at % self.width);
        let since = at.saturating_sub(start);
        while since / self.width >= self.bins as u64 {
            let pairs = self.highest.chunks(2);
            self.highest = pairs.map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
            self.width *= 2;
        }
        let bin = (since / self.width) as usize;
        if self.highest.len() <= bin {
            self.highest.resize(bin + 1, self.now);
        }
        self.highest[bin] = self.highest[bin].max(level);
        self.now = level;
    }

    #[must_use]
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    #[must_use]
    pub(crate) const fn width(&self) -> Duration {
        Duration::from_nanos(self.width)
    }

    /// The start of each bin, and the highest level within it.
    pub(crate) fn points(&self) -> impl Iterator<Item = (Tick, u64)> {
        let start = self.start.unwrap_or(0);
        let at = move |bin: usize| Tick::from_nanos(start.saturating_add(bin as u64 * self.width));
        self.highest.iter().enumerate().map(move |(bin, level)| (at(bin), *level))
    }

    #[must_use]
    pub(crate) fn most(&self) -> u64 {
        self.highest.iter().copied().max().unwrap_or(0)
    }
}

/// The durations of requests over time, for percentiles.
///
/// Durations are kept to three significant digits, each with its count: at most 900 values per power of ten, usually
/// a few hundred in all.
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

    /// A cost that cannot be worked out may count as the largest there is.
    #[test]
    fn the_largest_amounts_overflow_nothing() {
        let mut series = Series::new(1, 4, Duration::from_secs(1));
        for second in 100..113u64 {
            series.add(Tick::from_secs(second), 0, u64::MAX);
        }
        assert_eq!(series.total(0), u64::MAX);
    }

    #[test]
    fn bins_double_and_nothing_is_lost() {
        let mut series = Series::new(2, 4, Duration::from_secs(1));
        for second in 100..113u64 {
            series.add(Tick::from_secs(second), 0, 3);
            series.add(Tick::from_secs(second), 1, u64::from(second == 105) * 7);
        }
        assert_eq!(series.width(), Duration::from_secs(4));
        assert_eq!((series.total(0), series.total(1)), (39, 7));
        let points: Vec<_> = series.points(0).collect();
        assert_eq!(points.len(), 4);
        assert_eq!(points[1], Point { at: Tick::from_secs(104), per_second: 3.0, peak_per_second: 3.0 });
        assert_eq!(points[3].per_second, 0.75);
        let burst: Vec<_> = series.points(1).map(|point| point.peak_per_second).collect();
        assert_eq!(burst, [0.0, 7.0, 0.0, 0.0]);
    }

    #[test]
    fn any_span_fits() {
        let mut series = Series::new(1, 8, Duration::from_millis(1));
        series.add(Tick::EPOCH, 0, 1);
        series.add(Tick::MAX, 0, 1);
        series.add(Tick::EPOCH, 0, 1);
        assert_eq!(series.total(0), 3);
        assert!(series.points(0).count() <= 8);
    }

    #[test]
    fn a_level_holds_until_it_is_set_again() {
        let mut levels = Levels::new(8, Duration::from_secs(1));
        for (second, level) in [(100, 3), (100, 5), (100, 2), (103, 4)] {
            levels.set(Tick::from_secs(second), level);
        }
        let points: Vec<_> =
            levels.points().map(|(at, level)| (at.as_nanos() / 1_000_000_000, level)).collect();
        assert_eq!(points, [(100, 5), (101, 2), (102, 2), (103, 4)]);
        assert_eq!((levels.most(), levels.now()), (5, 4));
    }

    #[test]
    fn any_span_fits_and_the_highest_stays() {
        let mut levels = Levels::new(4, Duration::from_millis(1));
        levels.set(Tick::EPOCH, 9);
        levels.set(Tick::from_nanos(1), 1);
        levels.set(Tick::MAX, 2);
        levels.set(Tick::EPOCH, 3);
        let points: Vec<_> = levels.points().map(|(_, level)| level).collect();
        assert!(points.len() <= 4 && points[0] == 9, "{points:?}");
    }

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
