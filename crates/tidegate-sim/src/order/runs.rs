//! Held lines, stored as a few runs that are each in time order.
//!
//! A line is appended to the first run that ends no later than the line's time. The next line to leave is the earliest
//! of the runs' first lines. So lines are written and read sequentially, and the processor prefetches them even if a
//! line waited for a day. In the worst case, a log that runs backwards, there are as many runs as lines, and each line
//! costs a binary search over the runs.
//!
//! # Source
//! The runs are the piles of patience sorting; D. Aldous, P. Diaconis: Longest increasing subsequences, 1999.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

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

/// The bytes before each line: its time, the caller's mark, its length, and the position of the time in it.
pub(super) const HEAD: usize = 24;

/// The capacity of a run's second piece of memory. From then on, each piece is twice as long as the one before, up to
/// [`LONGEST_PIECE`]. The first piece holds one line, since in a log that runs backwards each line is a run.
const SECOND_PIECE: usize = 512;
/// Two pages. A longer line gets a piece of its own.
const LONGEST_PIECE: usize = 8 << 10;

/// Runs kept when empty, since a log that goes back often starts them again. With two pieces each, they take 1 MiB.
const KEPT_RUNS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinePosition {
    run: u32,
    at: u32,
    /// The number of the piece of memory, counted from the first piece that the run had.
    piece: u64,
}

#[derive(Debug, Default)]
struct Run {
    pieces: VecDeque<Vec<u8>>,
    /// The number of the first piece in `pieces`.
    first_piece: u64,
    /// The position of the next line to leave or, if there is none, of the next line to be put.
    next: LinePosition,
    /// The time of the last line put here.
    latest: u64,
    waiting: usize,
    /// Lines that have not been forgotten yet.
    lines: usize,
}

/// Held lines. Takes 24 bytes per line besides its text, and per run about 250 bytes or, for long runs, up to 16 KiB.
#[derive(Debug)]
pub(super) struct Runs {
    /// Each ends earlier than the one before it.
    runs: Vec<Run>,
    /// The time of the first waiting line of each run. Of equal times the lower run comes first: its lines came
    /// earlier.
    heads: BinaryHeap<Reverse<(u64, u32)>>,
    /// Free pieces of memory of the longest size.
    spare: Vec<Vec<u8>>,
    most_spare: usize,
}

impl Runs {
    /// Makes an empty store that keeps up to `spare_bytes` of free memory.
    pub(super) fn new(spare_bytes: usize) -> Self {
        let most_spare = spare_bytes / LONGEST_PIECE;
        Self { runs: Vec::new(), heads: BinaryHeap::new(), spare: Vec::new(), most_spare }
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
        let need = HEAD + line.bytes.len();
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
        // Lines have at most 64 KiB.
        let length_and_time_at = (line.bytes.len() as u64) << 32 | u64::from(line.time_at);
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&time.to_le_bytes());
        head[8..16].copy_from_slice(&line.mark.to_le_bytes());
        head[16..].copy_from_slice(&length_and_time_at.to_le_bytes());
        piece.extend_from_slice(&head);
        piece.extend_from_slice(line.bytes);
        run.latest = time;
        run.lines += 1;
        run.waiting += 1;
        if run.waiting == 1 {
            run.go_on();
            // There are at most as many runs as lines, and the bytes of lines are bounded.
            self.heads.push(Reverse((time, number as u32)));
        }
    }

    #[inline]
    pub(super) fn next_time(&self) -> Option<u64> {
        self.heads.peek().map(|Reverse((time, _))| *time)
    }

    /// Takes the next line. It can be read until it is forgotten.
    pub(super) fn take_next(&mut self) -> Option<LinePosition> {
        let mut head = self.heads.peek_mut()?;
        let Reverse((_, number)) = *head;
        let run = &mut self.runs[number as usize];
        let place = LinePosition { run: number, ..run.next };
        run.next.at += (HEAD + run.line(place).line.bytes.len()) as u32;
        run.waiting -= 1;
        if run.waiting == 0 {
            PeekMut::pop(head);
        } else {
            run.go_on();
            head.0.0 = run.line(run.next).time;
            // Moves the changed entry to its place in the heap.
            drop(head);
        }
        Some(place)
    }

    #[inline]
    pub(super) fn line(&self, place: LinePosition) -> HeldLine<'_> {
        self.runs[place.run as usize].line(place)
    }

    /// Frees the memory of a line. Lines must be forgotten in the order in which they were taken.
    pub(super) fn forget(&mut self, place: LinePosition) {
        let run = &mut self.runs[place.run as usize];
        run.lines -= 1;
        while run.first_piece < place.piece {
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
    #[inline]
    fn line(&self, place: LinePosition) -> HeldLine<'_> {
        let piece = &self.pieces[(place.piece - self.first_piece) as usize];
        let (head, rest) = piece[place.at as usize..].split_first_chunk::<HEAD>().expect("a line lies there");
        let number = |from| u64::from_le_bytes(std::array::from_fn(|byte| head[from + byte]));
        let length_and_time_at = number(16);
        let bytes = &rest[..(length_and_time_at >> 32) as usize];
        HeldLine {
            time: number(0),
            line: OrderedLine { mark: number(8), time_at: length_and_time_at as u32, bytes },
        }
    }

    #[inline]
    fn go_on(&mut self) {
        if self.next.at as usize == self.pieces[(self.next.piece - self.first_piece) as usize].len() {
            (self.next.piece, self.next.at) = (self.next.piece + 1, 0);
        }
    }
}
