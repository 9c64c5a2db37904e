//! Puts lines that go back in time into order, in bounded memory.
//!
//! Servers write a line when a request ends and stamp it with when it began, and several processes share one file: real logs
//! go back. A limit treats a step back as standing still, so a disordered log would deny what the limit had allowed live.
//! Lines are held for a window of log time in one bucket per second, as raw bytes: a copy and a second look at the time,
//! which is far cheaper than keeping parsed records. Seconds without a line have no bucket, so that a day of a quiet log costs
//! what its lines cost. What comes later than the window, or finds the room used up, is clamped
//! to the latest time given out, and counted.

mod buckets;

use std::collections::VecDeque;
use std::hint::black_box;
use std::iter;
use std::time::Duration;

use smallvec::SmallVec;

use self::buckets::{Bucket, Buckets, HEAD};
pub(crate) use self::buckets::{Held, Line};
use crate::source::MAX_LINE;

/// What to do with lines that go back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Hold lines back and sort them.
    Sort {
        /// How far a line may go back, in log time; at most 7 days, rounded up to a second.
        window: Duration,
        /// Bytes of lines held at most; beyond it the earliest are let go early.
        bytes: usize,
    },
    /// Treat a line that goes back as the latest time seen. Nothing is held.
    Clamp,
}

impl Default for Order {
    /// Sorts over five minutes, longer than nearly every request, in at most 64 MiB.
    fn default() -> Self {
        Self::Sort { window: Duration::from_secs(300), bytes: 64 << 20 }
    }
}

/// How a log kept to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderTally {
    /// How often time goes back from one line to the next; one step may leave many lines behind.
    pub back: u64,
    /// Lines earlier than the latest before them, put into their place.
    pub ordered: u64,
    /// Lines that came too late and were treated as the latest time given out.
    pub clamped: u64,
    /// The largest step back, from the latest time seen.
    pub largest_step: Duration,
    /// Lines let go before their window had passed, for lack of room.
    pub early: u64,
}

impl OrderTally {
    /// Returns the window that would have put every line into its place, when some came too late.
    #[must_use]
    pub fn window_needed(&self) -> Option<Duration> {
        (self.clamped > 0).then(|| Duration::from_secs(self.largest_step.as_secs() + 1))
    }
}

const SECOND: u64 = 1_000_000_000;
const MAX_WINDOW: u64 = 7 * 86_400;
/// Seconds whose buckets are fetched from memory together: a line that waited for a day has left the processor's caches. A log of one
/// line in two seconds has 32 of them in it, which is about as many as a core can fetch at once.
const TOGETHER: usize = 64;
/// A second of the ring without a line.
const NONE: u32 = u32::MAX;

/// Sorts lines over a window of time. Before the next [`Reorder::push`], lines that are ready are to be taken
/// ([`Reorder::ready`], [`Reorder::drop_first`]) until they are few: they are held beyond the limit.
#[derive(Debug)]
pub(crate) struct Reorder {
    window: u64,
    limit: usize,
    /// The second of the first bucket of the ring.
    base: u64,
    /// The number of each second's bucket, or [`NONE`].
    ring: VecDeque<u32>,
    ready: VecDeque<u32>,
    /// Bytes of the first ready bucket already given out.
    given: usize,
    /// The buckets of all seconds before this one were fetched.
    fetched: u64,
    buckets: Buckets,
    /// Bytes in the ring.
    waiting: usize,
    /// Bytes and lines in the buckets that are ready.
    ready_bytes: usize,
    ready_lines: usize,
    latest: u64,
    before: u64,
    /// Nothing earlier than this can be put into its place any more.
    floor: u64,
    tally: OrderTally,
}

impl Reorder {
    pub(crate) fn new(window: Duration, limit: usize) -> Self {
        let window = window.as_secs() + u64::from(window.subsec_nanos() > 0);
        Self {
            window: window.min(MAX_WINDOW),
            limit,
            base: 0,
            ring: VecDeque::new(),
            ready: VecDeque::new(),
            given: 0,
            fetched: 0,
            buckets: Buckets::default(),
            waiting: 0,
            ready_bytes: 0,
            ready_lines: 0,
            latest: 0,
            before: 0,
            floor: 0,
            tally: OrderTally::default(),
        }
    }

    pub(crate) fn tally(&self) -> OrderTally {
        self.tally
    }

    /// Takes a line. Lines are at most 64 KiB, so that positions within one second fit 32 bits: see the room check.
    pub(crate) fn push(&mut self, time: u64, line: Line<'_>) {
        note_step(&mut self.tally, time, &mut self.before, self.latest);
        let need = line.bytes.len() + HEAD;
        while self.waiting + need > self.limit.min(u32::MAX as usize / 2)
            && self.ring.iter().any(|number| *number != NONE)
        {
            let count = self.release_first();
            self.tally.early += count;
        }
        let is_back = time < self.latest;
        if !is_back {
            self.latest = time;
            let keep = (time / SECOND).saturating_sub(self.window);
            while !self.ring.is_empty() && self.base < keep {
                self.release_first();
            }
        }
        let mut time = time;
        if time < self.floor {
            self.tally.clamped += 1;
            time = self.floor;
        } else if is_back {
            self.tally.ordered += 1;
        }
        let second = time / SECOND;
        if second < (self.latest / SECOND).saturating_sub(self.window) {
            // Later than the window, yet nothing later was given out: its turn is now.
            let number = self.buckets.take();
            self.buckets.all[number as usize].put(time, line);
            self.floor = time;
            self.make_ready(number);
            return;
        }
        self.waiting += need;
        if self.ring.is_empty() {
            self.base = second;
        }
        while second < self.base {
            self.ring.push_front(NONE);
            self.base -= 1;
        }
        // At most the window: `base` is no earlier than the latest second less the window, nor `second` later than latest.
        let index = (second - self.base) as usize;
        if self.ring.len() <= index {
            self.ring.resize(index + 1, NONE);
        }
        let number = &mut self.ring[index];
        if *number == NONE {
            *number = self.buckets.take();
        }
        self.buckets.all[*number as usize].put(time, line);
    }

    /// Ends the log: everything held becomes ready.
    pub(crate) fn finish(&mut self) {
        while !self.ring.is_empty() {
            self.release_first();
        }
    }

    /// Says whether so many lines are ready, or as many bytes as one line may have: a large second is handed out whole before more is held.
    pub(crate) fn are_ready(&self, lines: usize) -> bool {
        self.ready_lines >= lines || self.ready_bytes >= MAX_LINE
    }

    /// Returns the lines whose turn has come, in order. They stay until [`Reorder::drop_first`].
    pub(crate) fn ready(&self) -> impl Iterator<Item = Held<'_>> {
        let (mut buckets, mut at) = (self.ready.iter(), self.given);
        let mut first = buckets.next();
        iter::from_fn(move || {
            loop {
                if let Some((held, next)) = self.buckets.all[*first? as usize].line(at) {
                    at = next;
                    return Some(held);
                }
                (first, at) = (buckets.next(), 0);
            }
        })
    }

    /// Forgets the first lines of those that are ready.
    pub(crate) fn drop_first(&mut self, lines: usize) {
        let mut left = lines;
        while let Some(number) = self.ready.front() {
            let bucket = &self.buckets.all[*number as usize];
            match bucket.line(self.given) {
                Some(_) if left == 0 => return,
                Some((_, next)) => {
                    self.given = next;
                    left -= 1;
                    self.ready_lines -= 1;
                }
                None => {
                    self.given = 0;
                    self.ready_bytes -= bucket.bytes();
                    self.buckets.put_back(*number, self.limit);
                    self.ready.pop_front();
                }
            }
        }
    }

    /// Puts a bucket behind those that are ready.
    fn make_ready(&mut self, number: u32) {
        let bucket = &self.buckets.all[number as usize];
        self.ready_bytes += bucket.bytes();
        self.ready_lines += bucket.lines() as usize;
        self.ready.push_back(number);
    }

    /// Moves the first bucket of the ring to what is ready; returns its lines.
    fn release_first(&mut self) -> u64 {
        if self.base >= self.fetched {
            self.fetch();
        }
        let Some(number) = self.ring.pop_front() else { return 0 };
        self.base += 1;
        if number == NONE {
            return 0;
        }
        let bucket = &mut self.buckets.all[number as usize];
        bucket.sort();
        self.floor = self.floor.max(bucket.latest());
        self.waiting -= bucket.bytes();
        let count = bucket.lines();
        self.make_ready(number);
        count
    }

    /// Reads from the buckets whose turn comes next. One after another, each would be waited for when its turn has come.
    fn fetch(&mut self) {
        self.fetched = self.base + TOGETHER as u64;
        let next = self.ring.iter().take(TOGETHER).filter(|number| **number != NONE);
        let next: SmallVec<[&Bucket; TOGETHER]> =
            next.map(|number| &self.buckets.all[*number as usize]).collect();
        black_box(next.iter().fold(0, |read, bucket| read ^ bucket.touch()));
        black_box(next.iter().fold(0, |read, bucket| read ^ bucket.touch_apart()));
    }
}

/// Counts a line that goes back.
fn note_step(tally: &mut OrderTally, time: u64, before: &mut u64, latest: u64) {
    tally.back += u64::from(time < *before);
    *before = time;
    let step = Duration::from_nanos(latest.saturating_sub(time));
    tally.largest_step = tally.largest_step.max(step);
}

/// Clamps lines that go back.
#[derive(Debug, Default)]
pub(crate) struct Clamp {
    latest: u64,
    before: u64,
    tally: OrderTally,
}

impl Clamp {
    /// Returns the time a line counts as.
    pub(crate) fn time(&mut self, time: u64) -> u64 {
        note_step(&mut self.tally, time, &mut self.before, self.latest);
        self.tally.clamped += u64::from(time < self.latest);
        self.latest = self.latest.max(time);
        self.latest
    }

    pub(crate) fn tally(&self) -> OrderTally {
        self.tally
    }
}

#[cfg(test)]
mod tests;
