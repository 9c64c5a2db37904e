//! A level over time in bounded memory, such as how many calls are in flight.
//!
//! As in [`series`](crate::series), a fixed number of bins double their width when time runs past the last bin. A level
//! holds until it is set again. Each bin keeps the highest level within it.

use std::time::Duration;

use tidegate::Tick;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
