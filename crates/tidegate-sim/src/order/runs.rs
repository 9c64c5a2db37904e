//! Held lines, stored as a few runs that are each in time order.
//!
//! A line is appended to the first run that ends no later than the line's time. The next line to leave is the earliest
//! of the runs' first lines. So lines are written and read sequentially, even if a line waited for a day. The heads of
//! the lines lie apart from their texts: which line is next is decided by heads alone, close together in memory, and
//! the texts of many lines can be loaded at the same time once they are wanted. In the worst case, a log that runs
//! backwards, there are as many runs as lines, and each line costs a binary search over the runs.
//!
//! # Source
//! The runs are the piles of patience sorting; D. Aldous, P. Diaconis: Longest increasing subsequences, 1999.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderedLine<'a> {
    pub(crate) mark: u64,
    /// The position of the time in the line, if the caller knows it.
    pub(crate) time_at: u32,
    pub(crate) bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLine<'a> {
    pub(crate) time: u64,
    pub(crate) line: OrderedLine<'a>,
}

/// The bytes of a [`Head`].
pub(super) const HEAD: usize = size_of::<Head>();

/// What is kept of a line besides its text.
#[derive(Clone, Copy, Debug)]
struct Head {
    time: u64,
    /// The caller's mark.
    mark: u64,
    /// The length of the text, at most 64 KiB.
    length: u32,
    /// The position of the time in the text.
    time_at: u32,
}

/// The capacity of a run's second piece of memory. From then on, each piece is twice as long as the one before, up to
/// [`LONGEST_PIECE`]. The first piece holds one line, since in a log that runs backwards each line is a run.
const SECOND_PIECE: usize = 512;
/// Two pages. A longer line gets a piece of its own.
const LONGEST_PIECE: usize = 8 << 10;

/// Runs kept when empty, since a log that goes back often starts them again. With two pieces each, they take 1 MiB.
const KEPT_RUNS: usize = 64;

/// A position in the texts of a run.
#[derive(Clone, Copy, Debug, Default)]
struct TextPosition {
    /// The number of the piece of memory, counted from the first piece that the run had.
    piece: u64,
    at: u32,
}

/// A line that was taken: its head, and where its text lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenLine {
    head: Head,
    text: TextPosition,
    run: u32,
}

impl TakenLine {
    #[inline]
    pub(super) const fn time(&self) -> u64 {
        self.head.time
    }

    /// Returns the bytes that the line takes while it is held.
    #[inline]
    pub(super) const fn size(&self) -> usize {
        HEAD + self.head.length as usize
    }
}

#[derive(Debug, Default)]
struct Run {
    /// The heads of the lines that have not been taken yet.
    heads: VecDeque<Head>,
    /// The texts of the lines that have not been forgotten yet.
    pieces: VecDeque<Vec<u8>>,
    /// The number of the first piece in `pieces`.
    first_piece: u64,
    /// Where the text of the last line taken ends.
    taken_to: TextPosition,
    /// The time of the last line put here.
    latest: u64,
    /// Lines that have not been forgotten yet.
    lines: usize,
}

/// Held lines. Takes 24 to 48 bytes per line besides its text, and per run about 300 bytes or, for long runs, up to 16
/// KiB.
#[derive(Debug)]
pub(super) struct Runs {
    /// Each ends earlier than the one before it.
    runs: Vec<Run>,
    /// The time of the first waiting line of each run. Of equal times the lower run comes first: its lines came
    /// earlier.
    firsts: BinaryHeap<Reverse<(u64, u32)>>,
    /// Free pieces of memory of the longest size.
    spare: Vec<Vec<u8>>,
    most_spare: usize,
}

impl Runs {
    /// Makes an empty store that keeps up to `spare_bytes` of free memory.
    pub(super) fn new(spare_bytes: usize) -> Self {
        let most_spare = spare_bytes / LONGEST_PIECE;
        Self { runs: Vec::new(), firsts: BinaryHeap::new(), spare: Vec::new(), most_spare }
    }

    /// Puts a line at its place by time, after earlier lines of the same time.
    pub(super) fn put(&mut self, time: u64, line: OrderedLine<'_>) {
        let number = match self.runs.first() {
            Some(run) if run.latest <= time => 0,
            _ => self.runs.partition_point(|run| run.latest > time),
        };
        if number == self.runs.len() {
            self.runs.push(Run::default());
        }
        let run = &mut self.runs[number];
        let need = line.bytes.len();
        let piece = match run.pieces.back_mut() {
            Some(piece) if piece.capacity() - piece.len() >= need => piece,
            last => {
                let size = last.map_or(0, |last| (last.capacity() * 2).clamp(SECOND_PIECE, LONGEST_PIECE));
                let piece = match self.spare.pop_if(|_| size == LONGEST_PIECE && need <= size) {
                    Some(piece) => piece,
                    None => Vec::with_capacity(size.max(need)),
                };
                run.pieces.push_back(piece);
                run.pieces.back_mut().expect("one was put there")
            }
        };
        piece.extend_from_slice(line.bytes);
        if run.heads.is_empty() {
            // There are at most as many runs as lines, and the bytes of lines are bounded.
            self.firsts.push(Reverse((time, number as u32)));
        }
        let length = line.bytes.len() as u32;
        run.heads.push_back(Head { time, mark: line.mark, length, time_at: line.time_at });
        run.latest = time;
        run.lines += 1;
    }

    #[inline]
    pub(super) fn next_time(&self) -> Option<u64> {
        self.firsts.peek().map(|Reverse((time, _))| *time)
    }

    /// Takes the next line. It can be read until it is forgotten.
    pub(super) fn take_next(&mut self) -> Option<TakenLine> {
        let mut first = self.firsts.peek_mut()?;
        let Reverse((_, number)) = *first;
        let run = &mut self.runs[number as usize];
        let head = run.heads.pop_front()?;
        let text = run.take_text(head.length);
        match run.heads.front() {
            // Moves the changed entry to its place in the heap, once it is dropped.
            Some(next) => first.0.0 = next.time,
            None => _ = PeekMut::pop(first),
        }
        Some(TakenLine { head, text, run: number })
    }

    #[inline]
    pub(super) fn line(&self, taken: &TakenLine) -> HeldLine<'_> {
        let Head { time, mark, length, time_at } = taken.head;
        let run = &self.runs[taken.run as usize];
        let piece = &run.pieces[(taken.text.piece - run.first_piece) as usize];
        let bytes = &piece[taken.text.at as usize..][..length as usize];
        HeldLine { time, line: OrderedLine { mark, time_at, bytes } }
    }

    /// Loads the texts of lines that are read next into the processor's caches, all at the same time. A text that waited
    /// for long lies in main memory, and reading one after the other waits for each.
    pub(super) fn fetch<'l>(&self, lines: impl Iterator<Item = &'l TakenLine>) {
        const CACHE_LINE: usize = 64;
        let touch = |read: u8, taken: &TakenLine| {
            let text = self.line(taken).line.bytes;
            // The rest of a long text is read in sequence, which the processor foresees.
            let bytes = [text.first(), text.get(CACHE_LINE), text.last()];
            bytes.into_iter().flatten().fold(read, |read, byte| read ^ byte)
        };
        black_box(lines.fold(0, touch));
    }

    /// Frees the memory of a line. Lines must be forgotten in the order in which they were taken.
    pub(super) fn forget(&mut self, taken: &TakenLine) {
        let run = &mut self.runs[taken.run as usize];
        run.lines -= 1;
        while run.first_piece < taken.text.piece {
            run.first_piece += 1;
            let piece = run.pieces.pop_front();
            keep_piece(&mut self.spare, self.most_spare, piece);
        }
        while self.runs.len() > KEPT_RUNS
            && let Some(run) = self.runs.pop_if(|run| run.lines == 0)
        {
            run.pieces
                .into_iter()
                .for_each(|piece| keep_piece(&mut self.spare, self.most_spare, Some(piece)));
        }
    }
}

/// Keeps a piece of memory for reuse, if it has the longest size and fewer than `most` are kept.
fn keep_piece(spare: &mut Vec<Vec<u8>>, most: usize, piece: Option<Vec<u8>>) {
    if let Some(mut piece) = piece.filter(|piece| piece.capacity() == LONGEST_PIECE && spare.len() < most) {
        piece.clear();
        spare.push(piece);
    }
}

impl Run {
    /// Returns where the next text lies, and goes past it. A text that did not fit the rest of a piece lies at the start
    /// of the next one.
    #[inline]
    fn take_text(&mut self, length: u32) -> TextPosition {
        let end = self.pieces[(self.taken_to.piece - self.first_piece) as usize].len();
        if length > 0 && self.taken_to.at as usize == end {
            self.taken_to = TextPosition { piece: self.taken_to.piece + 1, at: 0 };
        }
        let place = self.taken_to;
        self.taken_to.at += length;
        place
    }
}
