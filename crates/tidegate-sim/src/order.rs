//! Puts lines that go back in time into order, in bounded memory.
//!
//! Servers write a line when a request ends and stamp it with when it began, and several processes share one file: real logs
//! go back. A limit treats a step back as standing still, so a disordered log would deny what the limit had allowed live.
//! Lines are held for a window of log time (`runs`), as raw bytes: a copy and a second look at the time, which is far cheaper than
//! keeping parsed records. What comes later than the window, or finds the room used up, is clamped to the latest time given out, and
//! counted.

mod runs;

use std::collections::VecDeque;
use std::time::Duration;

use self::runs::{HEAD, Place, Runs};
pub(crate) use self::runs::{Held, Line};
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

    /// Returns a window that would have done, as people write it: whole seconds to two minutes, whole minutes to two hours, and whole hours
    /// above, rounded up.
    #[must_use]
    pub fn window_advised(&self) -> Option<String> {
        let secs = self.window_needed()?.as_secs();
        let (unit, name) = match secs {
            0..=120 => (1, "s"),
            121..=7_200 => (60, "min"),
            _ => (3_600, "h"),
        };
        Some(format!("{}{name}", secs.div_ceil(unit)))
    }
}

const SECOND: u64 = 1_000_000_000;
const MAX_WINDOW: u64 = 7 * 86_400;
/// The part of the bytes that may be held which may be kept for reuse when they are free.
const SPARE: usize = 4;

/// Sorts lines over a window of time. Before the next [`Reorder::push`], lines that are ready are to be taken
/// ([`Reorder::ready`], [`Reorder::drop_first`]) until they are few: they are held beyond the limit.
#[derive(Debug)]
pub(crate) struct Reorder {
    /// In seconds.
    window: u64,
    limit: usize,
    runs: Runs,
    /// The lines whose turn has come.
    ready: VecDeque<Place>,
    /// Bytes of the lines whose turn has not come.
    waiting: usize,
    ready_bytes: usize,
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
            runs: Runs::new(limit / SPARE),
            ready: VecDeque::new(),
            waiting: 0,
            ready_bytes: 0,
            latest: 0,
            before: 0,
            floor: 0,
            tally: OrderTally::default(),
        }
    }

    pub(crate) fn tally(&self) -> OrderTally {
        self.tally
    }

    /// Takes a line of at most 64 KiB.
    pub(crate) fn push(&mut self, time: u64, line: Line<'_>) {
        note_step(&mut self.tally, time, &mut self.before, self.latest);
        let need = HEAD + line.bytes.len();
        while self.waiting + need > self.limit.min(u32::MAX as usize / 2)
            && let Some(first) = self.runs.next_time()
        {
            // Whole seconds are let go, so that lines of one second stay in the order of their times.
            self.tally.early += self.release(|second| second == first / SECOND);
        }
        let is_back = time < self.latest;
        self.latest = self.latest.max(time);
        let mut time = time;
        if time < self.floor {
            self.tally.clamped += 1;
            time = self.floor;
        } else if is_back {
            self.tally.ordered += 1;
        }
        self.waiting += need;
        self.runs.put(time, line);
        let keep = (self.latest / SECOND).saturating_sub(self.window);
        // Perhaps the line itself: later than the window, yet nothing later was given out.
        self.release(|second| second < keep);
    }

    /// Ends the log: everything held becomes ready.
    pub(crate) fn finish(&mut self) {
        self.release(|_| true);
    }

    /// Says whether so many lines are ready, or as many bytes as one line may have: a large second is handed out whole before more is held.
    pub(crate) fn are_ready(&self, lines: usize) -> bool {
        self.ready.len() >= lines || self.ready_bytes >= MAX_LINE
    }

    /// Returns the lines whose turn has come, in order. They stay until [`Reorder::drop_first`].
    pub(crate) fn ready(&self) -> impl Iterator<Item = Held<'_>> {
        self.ready.iter().map(|place| self.runs.line(*place))
    }

    /// Forgets the first lines of those that are ready.
    pub(crate) fn drop_first(&mut self, lines: usize) {
        for place in self.ready.drain(..lines.min(self.ready.len())) {
            self.ready_bytes -= HEAD + self.runs.line(place).line.bytes.len();
            self.runs.forget(place);
        }
    }

    /// Makes the next lines ready for as long as they are of such a second; returns how many there were.
    fn release(&mut self, is_due: impl Fn(u64) -> bool) -> u64 {
        let mut count = 0;
        while self.runs.next_time().is_some_and(|time| is_due(time / SECOND)) {
            let Some(place) = self.runs.take_next() else { break };
            let held = self.runs.line(place);
            let bytes = HEAD + held.line.bytes.len();
            self.floor = self.floor.max(held.time);
            self.waiting -= bytes;
            self.ready_bytes += bytes;
            self.ready.push_back(place);
            count += 1;
        }
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
mod tests;
