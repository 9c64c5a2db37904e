//! Sorts lines that go back in time, in bounded memory.
//!
//! Servers write a line when a request ends, stamped with the time when it began, and several processes share one file.
//! A limit treats a step back as standing still, so an unsorted log would deny requests that the limit had allowed
//! live. Lines are held for a window of log time (`runs`), as raw bytes: that costs a copy and a second parse, but far
//! less than keeping parsed records. One that comes later than the window, or does not fit the memory, is clamped to
//! the latest time handed out, and counted.

mod runs;

use std::collections::VecDeque;
use std::time::Duration;

use self::runs::{HEAD, Runs, TakenLine};
pub(crate) use self::runs::{HeldLine, OrderedLine};
use crate::source::MAX_LINE;

/// What to do with lines that go back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Hold lines back and sort them.
    Sort {
        /// How far a line may go back, in log time; at most 7 days, rounded up to a second.
        window: Duration,
        /// The most bytes of lines held; beyond it the earliest lines are released early.
        bytes: usize,
    },
    /// Treat a line that goes back as if it had the latest time seen. Nothing is held.
    Clamp,
}

impl Default for Order {
    /// Sorts within five minutes, longer than nearly every request, in at most 64 MiB.
    fn default() -> Self {
        Self::Sort { window: Duration::from_secs(300), bytes: 64 << 20 }
    }
}

/// How far a log was in time order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderTally {
    /// How often the time goes back from one line to the next. One step back may put many lines out of order.
    pub back: u64,
    /// Lines earlier than the latest time before them that were sorted into place.
    pub ordered: u64,
    /// Lines that came too late and were given the latest time handed out.
    pub clamped: u64,
    /// The largest step back, from the latest time seen.
    pub largest_step: Duration,
    /// Lines released before their window had passed, for lack of memory.
    pub early: u64,
}

impl OrderTally {
    /// Returns a window that would have sorted every line into place, as people write it, rounded up: in seconds up to two minutes, in
    /// minutes up to two hours, in hours above. `None` if no line came too late.
    #[must_use]
    pub fn window_advised(&self) -> Option<String> {
        let secs = (self.clamped > 0).then(|| self.largest_step.as_secs() + 1)?;
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
/// One part in this many of the byte limit may be free memory, kept for reuse.
const SPARE: usize = 4;

/// Sorts lines over a window of time. Lines that are ready do not count towards the limit, so take them before the next
/// [`Reorder::push`].
#[derive(Debug)]
pub(crate) struct Reorder {
    /// The window in seconds.
    window: u64,
    limit: usize,
    runs: Runs,
    ready: VecDeque<TakenLine>,
    /// The bytes of the lines that are not ready yet.
    waiting: usize,
    ready_bytes: usize,
    latest: u64,
    before: u64,
    /// Earlier lines cannot be sorted into place any more.
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

    /// A line has at most 64 KiB.
    pub(crate) fn push(&mut self, time: u64, line: OrderedLine<'_>) {
        note_step(&mut self.tally, time, &mut self.before, self.latest);
        let need = HEAD + line.bytes.len();
        while self.waiting + need > self.limit.min(u32::MAX as usize / 2)
            && let Some(first) = self.runs.next_time()
        {
            // Whole seconds, so that the lines of one second stay in the order of their times.
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
        // Perhaps the new line itself: it came after the window, but nothing later has been handed out.
        self.release(|second| second < keep);
    }

    /// Ends the log: makes held lines ready until `lines` are, or none is held any more. Returns whether any is ready.
    ///
    /// Not all at once: what is noted of a line that is ready does not count towards the limit.
    pub(crate) fn finish(&mut self, lines: usize) -> bool {
        while self.ready.len() < lines && self.release_next() {}
        !self.ready.is_empty()
    }

    /// This many lines are ready, or as many bytes as the longest line has. So all lines of a crowded second are handed
    /// out before more are held.
    pub(crate) fn are_ready(&self, lines: usize) -> bool {
        self.ready.len() >= lines || self.ready_bytes >= MAX_LINE
    }

    /// Returns the lines that are ready, in order. They stay until [`Reorder::drop_first`].
    pub(crate) fn ready(&self) -> impl Iterator<Item = HeldLine<'_>> {
        self.ready.iter().map(|taken| self.runs.line(taken))
    }

    /// Loads the first of the lines that are ready, before they are read.
    pub(crate) fn fetch(&self, lines: usize) {
        self.runs.fetch(self.ready.iter().take(lines));
    }

    pub(crate) fn drop_first(&mut self, lines: usize) {
        for taken in self.ready.drain(..lines.min(self.ready.len())) {
            self.ready_bytes -= taken.size();
            self.runs.forget(&taken);
        }
    }

    /// Makes lines ready, earliest first, while their second is due. Returns how many.
    fn release(&mut self, is_due: impl Fn(u64) -> bool) -> u64 {
        let mut count = 0;
        while self.runs.next_time().is_some_and(|time| is_due(time / SECOND)) && self.release_next() {
            count += 1;
        }
        count
    }

    /// Makes the earliest line ready; `false` if none is held.
    fn release_next(&mut self) -> bool {
        let Some(taken) = self.runs.take_next() else { return false };
        self.floor = self.floor.max(taken.time());
        self.waiting -= taken.size();
        self.ready_bytes += taken.size();
        self.ready.push_back(taken);
        true
    }
}

fn note_step(tally: &mut OrderTally, time: u64, before: &mut u64, latest: u64) {
    tally.back += u64::from(time < *before);
    *before = time;
    let step = Duration::from_nanos(latest.saturating_sub(time));
    tally.largest_step = tally.largest_step.max(step);
}

#[derive(Debug, Default)]
pub(crate) struct Clamp {
    latest: u64,
    before: u64,
    tally: OrderTally,
}

impl Clamp {
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

/// Lines come out in order, within the bounds, and the same whether taken one by one or together.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(window: u64, limit: usize, lines: &[(u64, &[u8])]) -> (Vec<(u64, u64)>, OrderTally, usize) {
        run_by(1, window, limit, lines)
    }

    /// Takes lines as soon as `together` of them are ready.
    fn run_by(
        together: usize,
        window: u64,
        limit: usize,
        lines: &[(u64, &[u8])],
    ) -> (Vec<(u64, u64)>, OrderTally, usize) {
        let mut order = Reorder::new(Duration::from_nanos(window), limit);
        let (mut out, mut most) = (Vec::new(), 0);
        for (number, (time, line)) in lines.iter().enumerate() {
            order.push(*time, OrderedLine { mark: number as u64, time_at: number as u32, bytes: line });
            most = most.max(order.waiting + order.ready_bytes);
            while order.are_ready(together) {
                for held in order.ready().take(together) {
                    assert_eq!(held.line.bytes, lines[held.line.mark as usize].1);
                    assert_eq!(u64::from(held.line.time_at), held.line.mark);
                    out.push((held.time, held.line.mark));
                }
                order.drop_first(together);
            }
        }
        while order.finish(together) {
            assert!(order.ready.len() <= together, "the end makes no more ready than are taken");
            out.extend(order.ready().map(|held| (held.time, held.line.mark)));
            order.drop_first(together);
        }
        assert_eq!((order.waiting, order.ready_bytes, order.ready.len()), (0, 0, 0));
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

    /// Each line is a run of its own, and the runs are dropped once their lines are gone.
    #[test]
    fn a_log_that_runs_backwards_is_turned_round() {
        let backwards = (1..=1_000).rev();
        let lines: Vec<(u64, &[u8])> =
            backwards.chain(2_000..3_000).map(|t| (t * SECOND, &b"x"[..])).collect();
        let (out, tally, _) = run(1_000 * SECOND, 1 << 20, &lines);
        let times: Vec<u64> = out.iter().map(|(time, _)| time / SECOND).collect();
        assert!(times.into_iter().eq((1..=1_000).chain(2_000..3_000)));
        assert_eq!((tally.ordered, tally.clamped, tally.early), (999, 0, 0));
    }

    /// The last possible second is like any other: its lines are released when room is scarce.
    #[test]
    fn lines_of_the_last_tick_are_let_go() {
        let lines: Vec<(u64, &[u8])> = [u64::MAX, 5, u64::MAX, u64::MAX - 1].map(|t| (t, &b"x"[..])).to_vec();
        for limit in [1, 1 << 20] {
            let (out, _, _) = run(5 * SECOND, limit, &lines);
            assert_eq!(out.len(), 4);
            assert!(out.is_sorted_by_key(|(time, _)| *time));
        }
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

        #[test]
        fn lines_taken_together_are_those_taken_one_by_one(
            times in prop::collection::vec(0u64..300 * SECOND, 0..300),
            limit in 100usize..2_000,
            window in 0u64..100 * SECOND,
            together in 2usize..20,
        ) {
            let lines: Vec<_> = times.iter().map(|time| (*time, &b"0123456789"[..])).collect();
            let (out, tally, _) = run_by(together, window, limit, &lines);
            let (alone, alone_tally, _) = run(window, limit, &lines);
            prop_assert_eq!((out, tally), (alone, alone_tally));
        }
    }
}
