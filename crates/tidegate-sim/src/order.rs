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
use std::time::Duration;

use self::buckets::{Buckets, HEAD};
pub(crate) use self::buckets::{Held, Line};

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
/// A second of the ring without a line.
const NONE: u32 = u32::MAX;

/// Sorts lines over a window of time. After each [`Reorder::push`], take with [`Reorder::pop`] until there is none.
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
    buckets: Buckets,
    /// Bytes in the ring and in what is ready.
    held: usize,
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
            buckets: Buckets::default(),
            held: 0,
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
        while self.held - self.ready_bytes() + need > self.limit.min(u32::MAX as usize / 2)
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
        self.held += need;
        if second < (self.latest / SECOND).saturating_sub(self.window) {
            // Later than the window, yet nothing later was given out: its turn is now.
            let number = self.buckets.take();
            self.buckets.all[number as usize].put(time, line);
            self.floor = time;
            self.ready.push_back(number);
            return;
        }
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

    /// Gives out the next line whose turn has come.
    pub(crate) fn pop(&mut self) -> Option<Held<'_>> {
        while let Some(number) = self.ready.front() {
            let bytes = self.buckets.all[*number as usize].bytes();
            if self.given < bytes {
                break;
            }
            self.given = 0;
            self.held -= bytes;
            self.buckets.put_back(*number, self.limit);
            self.ready.pop_front();
        }
        let (held, next) = self.buckets.all[*self.ready.front()? as usize].line(self.given)?;
        self.given = next;
        Some(held)
    }

    fn ready_bytes(&self) -> usize {
        self.ready.iter().map(|number| self.buckets.all[*number as usize].bytes()).sum()
    }

    /// Moves the first bucket of the ring to what is ready; returns its lines.
    fn release_first(&mut self) -> u64 {
        let Some(number) = self.ring.pop_front() else { return 0 };
        self.base += 1;
        if number == NONE {
            return 0;
        }
        let bucket = &mut self.buckets.all[number as usize];
        bucket.sort();
        self.floor = self.floor.max(bucket.latest());
        let count = bucket.lines();
        self.ready.push_back(number);
        count
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(window: u64, limit: usize, lines: &[(u64, &[u8])]) -> (Vec<(u64, u64)>, OrderTally, usize) {
        let mut order = Reorder::new(Duration::from_nanos(window), limit);
        let (mut out, mut most) = (Vec::new(), 0);
        for (number, (time, line)) in lines.iter().enumerate() {
            order.push(*time, Line { mark: number as u64, time_at: number as u32, bytes: line });
            most = most.max(order.held);
            while let Some(held) = order.pop() {
                assert_eq!(held.line.bytes, lines[held.line.mark as usize].1);
                assert_eq!(u64::from(held.line.time_at), held.line.mark);
                out.push((held.time, held.line.mark));
            }
        }
        order.finish();
        while let Some(held) = order.pop() {
            out.push((held.time, held.line.mark));
        }
        assert_eq!(order.held, 0);
        (out, order.tally, most)
    }

    #[test]
    fn lines_within_the_window_find_their_place() {
        let at = |tenths: u64| tenths * SECOND / 10;
        let lines: Vec<(u64, &[u8])> = [10, 30, 25, 12, 200, 195].map(|t| (at(t), &b"x"[..])).to_vec();
        let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
        assert_eq!(out, [(at(10), 0), (at(12), 3), (at(25), 2), (at(30), 1), (at(195), 5), (at(200), 4)]);
        assert_eq!((tally.back, tally.ordered, tally.clamped), (3, 3, 0));
        assert_eq!(tally.largest_step, Duration::from_millis(1_800));
    }

    #[test]
    fn a_line_later_than_the_window_counts_as_the_latest_given_out() {
        let lines: Vec<(u64, &[u8])> = [10, 100, 200, 20].map(|t| (t * SECOND, &b"x"[..])).to_vec();
        let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
        assert_eq!(out, [(10 * SECOND, 0), (100 * SECOND, 1), (100 * SECOND, 3), (200 * SECOND, 2)]);
        assert_eq!((tally.ordered, tally.clamped), (0, 1));
    }

    /// One corrupt date far in the future must not drag every later line there.
    #[test]
    fn one_line_from_the_future_does_not_take_the_rest_along() {
        let lines: Vec<(u64, &[u8])> = [10, 1_000_000, 11, 12, 13].map(|t| (t * SECOND, &b"x"[..])).to_vec();
        let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
        assert_eq!(out.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(), [0, 2, 3, 4, 1]);
        assert_eq!(tally.clamped, 0);
    }

    proptest! {
        #[test]
        fn equals_a_full_sort_when_the_window_suffices(
            steps in prop::collection::vec((0u64..3 * SECOND, 0u64..20 * SECOND), 0..200),
        ) {
            let mut now = 100 * SECOND;
            let mut lines = Vec::new();
            for (step, back) in steps {
                now += step;
                lines.push((now - back, &b"line"[..]));
            }
            let (out, tally, _) = run(20 * SECOND, 1 << 20, &lines);
            let mut want: Vec<_> = lines.iter().enumerate().map(|(n, (t, _))| (*t, n as u64)).collect();
            want.sort_by_key(|(time, _)| *time);
            prop_assert_eq!(out, want);
            prop_assert_eq!(tally.clamped, 0);
        }

        #[test]
        fn never_holds_more_than_its_bound_and_one_line_and_never_goes_back(
            times in prop::collection::vec(0u64..2_000_000 * SECOND, 0..300),
            limit in 100usize..2_000,
            window in 0u64..100 * SECOND,
        ) {
            let lines: Vec<_> = times.iter().map(|t| (*t % (300 * SECOND), &b"0123456789"[..])).collect();
            let (out, _, most) = run(window, limit, &lines);
            prop_assert_eq!(out.len(), lines.len());
            prop_assert!(out.is_sorted_by_key(|(time, _)| *time));
            prop_assert!(most <= limit + 34, "{} over {}", most, limit);
        }
    }
}
