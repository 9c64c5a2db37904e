//! Memory divided into cache lines of four cells; it stays blank until it is touched.

use std::ops::Range;

use super::cache_line::WAYS;

/// The size of a page of memory, in bytes. Where pages are larger, prefaulting writes to some of them more often than
/// needed.
pub(super) const PAGE: usize = 4096;

/// Cells of sixteen bytes, four to a cache line.
#[derive(Debug)]
pub(super) struct Lines<T> {
    cells: Box<[T]>,
    /// The index of the cell where the first line starts: the allocation begins anywhere, lines at multiples of 64
    /// bytes.
    start: usize,
    count: usize,
}

impl<T: Blank> Lines<T> {
    /// Makes blank lines; `None` if the system has not enough memory.
    pub(super) fn new(count: usize) -> Option<Self> {
        let cells = blank((count + 1) * WAYS - 1)?;
        Some(Self { start: aligned(&cells), cells, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the index of a cell, counted from the first line.
    #[inline]
    pub(super) fn number(&self, cell: &T) -> usize {
        let from_first = std::ptr::from_ref(cell).addr() - self.cells.as_ptr().addr();
        from_first / size_of::<T>() - self.start
    }

    /// Returns one cell of each page in the given range; fewer at the end of the memory, and none beyond it.
    pub(super) fn pages(&self, pages: Range<usize>) -> impl Iterator<Item = &T> {
        const CELLS: usize = PAGE / 16;
        self.cells.iter().step_by(CELLS).skip(pages.start).take(pages.len())
    }

    #[inline(always)]
    pub(super) fn get(&self, line: usize) -> &[T; WAYS] {
        let cells = &self.cells[self.start + line * WAYS..];
        cells.first_chunk().expect("there are as many cells as the lines need")
    }
}

/// A type whose blank value has zeros in all of its bytes.
#[cfg(not(tidegate_loom))]
pub(super) trait Blank: Default + bytemuck::Zeroable {}
#[cfg(not(tidegate_loom))]
impl<T: Default + bytemuck::Zeroable> Blank for T {}

/// Loom's atomics cannot be zeroed, so they are made one by one.
#[cfg(tidegate_loom)]
pub(super) trait Blank: Default {}
#[cfg(tidegate_loom)]
impl<T: Default> Blank for T {}

/// Returns blank cells, in memory that the system provides when it is first touched: so making a table for a million
/// keys takes no time, and its pages are touched afterwards (`prefault`). `None` if there is not enough memory.
#[cfg(not(tidegate_loom))]
pub(super) fn blank<T: Blank>(cells: usize) -> Option<Box<[T]>> {
    // Not allocated as whole lines: with an alignment of 64 bytes, the allocator would write zeros instead of returning
    // blank memory.
    bytemuck::try_zeroed_slice_box(cells).ok()
}

#[cfg(tidegate_loom)]
pub(super) fn blank<T: Blank>(cells: usize) -> Option<Box<[T]>> {
    Some((0..cells).map(|_| T::default()).collect())
}

/// Returns the index of the first cell that starts a cache line; 0 if there is none, which only costs speed.
fn aligned<T>(cells: &[T]) -> usize {
    Some(cells.as_ptr().align_offset(64)).filter(|start| *start < WAYS).unwrap_or(0)
}
