//! The median of latencies, from a histogram of fixed size.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// Cells for each doubling of the latency: neighbouring cells differ by an eighth at most.
const CELLS_A_DOUBLING: usize = 8;
/// Cells for latencies up to 2⁶⁴ ns, and one for longer ones.
const CELLS: usize = 64 * CELLS_A_DOUBLING + 1;
/// The index of the cell for longer latencies.
const ENDLESS: usize = CELLS - 1;

/// A histogram of latencies: 2 KiB on the heap, allocated at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Median {
    cells: Box<[u32]>,
    count: u32,
}

impl Median {
    pub(super) fn new() -> Self {
        Self { cells: vec![0; CELLS].into_boxed_slice(), count: 0 }
    }

    /// Counts a latency in nanoseconds, 1 or more; infinity counts as longer than any other. Ignores samples beyond
    /// 2³² − 1.
    pub(super) fn add(&mut self, latency: f64) {
        if self.count < u32::MAX {
            self.cells[cell(latency)] += 1;
            self.count += 1;
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the median, off by a sixteenth at most, and empties the histogram; `None` if it was empty.
    pub(super) fn take(&mut self) -> Option<f64> {
        let (half, mut sum, mut found) = (self.count.div_ceil(2), 0, None);
        for (cell, count) in self.cells.iter_mut().enumerate() {
            sum += core::mem::take(count);
            if sum >= half && sum > 0 {
                found = found.or(Some(cell));
            }
        }
        self.count = 0;
        found.map(middle)
    }
}

impl Bytes for Median {
    fn write(&self, out: &mut Writer) {
        self.cells.iter().for_each(|&cell| out.u32(cell));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if from.left() < CELLS * size_of::<u32>() {
            return Err(DecodeError::Short);
        }
        let (mut median, mut sum) = (Self::new(), 0u64);
        for cell in &mut median.cells {
            *cell = from.u32()?;
            sum += u64::from(*cell);
        }
        median.count = u32::try_from(sum).map_err(|_| DecodeError::Value { field: "latencies" })?;
        Ok(median)
    }
}

fn cell(latency: f64) -> usize {
    if latency == f64::INFINITY {
        return ENDLESS;
    }
    let nanos = (latency as u64).max(1);
    let doubling = nanos.ilog2();
    // The three bits below the highest bit select the eighth of the doubling. Below 8 ns some cells stay empty.
    let eighth = if doubling >= 3 { nanos >> (doubling - 3) } else { nanos << (3 - doubling) };
    doubling as usize * CELLS_A_DOUBLING + (eighth & 7) as usize
}

/// Returns the latency at the middle of a cell.
fn middle(cell: usize) -> f64 {
    if cell == ENDLESS {
        return f64::INFINITY;
    }
    let (doubling, eighth) = (cell / CELLS_A_DOUBLING, cell % CELLS_A_DOUBLING);
    // A power of two is exact, and so are its eighths and sixteenths.
    (1u128 << doubling) as f64 * (1.0 + (eighth as f64 + 0.5) / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_are_shorter_and_what_never_ended_is_longest() {
        let mut median = Median::new();
        assert_eq!(median.take(), None);
        for latency in [1e6, 1e6, 9e9, f64::INFINITY] {
            median.add(latency);
        }
        assert!(median.take().is_some_and(|found| (found / 1e6 - 1.0).abs() < 0.07));
        for latency in [1.0, f64::INFINITY, f64::INFINITY] {
            median.add(latency);
        }
        assert_eq!(median.take(), Some(f64::INFINITY));
        assert_eq!(median.take(), None, "all is forgotten");
    }

    proptest! {
        #[test]
        fn the_median_is_off_by_a_sixteenth_at_most(mut latencies in prop::collection::vec(8u64.., 1..100)) {
            let mut median = Median::new();
            latencies.iter().for_each(|&latency| median.add(latency as f64));
            latencies.sort_unstable();
            let exact = latencies[(latencies.len() - 1) / 2] as f64;
            prop_assert!(median.take().is_some_and(|found| (found / exact - 1.0).abs() <= 1.0 / 15.0));
        }
    }
}
