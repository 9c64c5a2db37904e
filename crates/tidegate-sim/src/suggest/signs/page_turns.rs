//! Recognises clients that go from page to page at the pace of a machine, from the times between pages, in 140 bytes.
//!
//! A reader stays long on one page, leaves the next at once, and pauses in between. A machine that waits a few seconds
//! before each page stays within narrow bounds for hours, whatever else it loads. Readers who share an address ask at
//! random, which spreads the times between their pages as widely as those of one reader.

use tidegate::Tick;

/// Places per doubling of the time.
const STEPS: f64 = 2.0;
/// Places from one second to four and a half hours. The first place is for times below a second, the last for longer
/// times.
const PLACES: usize = 30;
/// Places that cover a factor of four.
const NARROW: usize = 4;
/// The least share of the times within that factor. For random arrivals, no factor of four contains more than half of
/// them.
const WITHIN: f64 = 0.95;
const PAGES: u32 = 200;

#[derive(Clone, Debug, Default)]
pub(super) struct PageTurns {
    last: Option<Tick>,
    turns: [u32; PLACES],
}

impl PageTurns {
    pub(super) fn add(&mut self, at: Tick) {
        if let Some(last) = self.last {
            let seconds = at.since(last).as_secs_f64();
            let place = if seconds < 1.0 { 0 } else { 1 + (seconds.log2() * STEPS) as usize };
            let count = &mut self.turns[place.min(PLACES - 1)];
            *count = count.saturating_add(1);
        }
        self.last = self.last.max(Some(at));
    }

    /// Says whether nearly all times are at least a second, and within a factor of four of each other.
    pub(super) fn are_of_a_machine(&self) -> bool {
        let all = self.turns.iter().fold(0, |sum: u32, count| sum.saturating_add(*count));
        let narrow =
            self.turns[1..].windows(NARROW).map(|counts| counts.iter().map(|count| f64::from(*count)).sum());
        all >= PAGES && narrow.fold(0.0, f64::max) >= WITHIN * f64::from(all)
    }
}

/// The hashes kept. Up to here the count is exact; beyond it the standard error is one over the square root of this
/// number, 9 %.
const KEPT: usize = 128;

/// Estimates the number of distinct hashes from the smallest of them.
///
/// # Source
/// Bar-Yossef, Jayram, Kumar, Sivakumar, Trevisan: Counting distinct elements in a data stream, 2002 (k minimum values).
#[derive(Clone, Debug, Default)]
pub(in crate::suggest) struct Few(Vec<u64>);

impl Few {
    pub(in crate::suggest) fn add(&mut self, hash: u64) {
        let is_full = self.0.len() == KEPT;
        if is_full && self.0.last().is_some_and(|largest| hash >= *largest) {
            return;
        }
        if let Err(place) = self.0.binary_search(&hash) {
            if is_full {
                self.0.pop();
            }
            self.0.insert(place, hash);
        }
    }

    pub(in crate::suggest) fn about(&self) -> u64 {
        match self.0.last() {
            Some(largest) if self.0.len() == KEPT => {
                let part = (*largest as f64 / u64::MAX as f64).max(f64::MIN_POSITIVE);
                ((KEPT - 1) as f64 / part).round() as u64
            }
            _ => self.0.len() as u64,
        }
    }

    /// A fair sample of all.
    pub(in crate::suggest) fn kept(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    pub(in crate::suggest) fn is_exact(&self) -> bool {
        self.0.len() < KEPT
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use foldhash::quality::FixedState;

    use super::*;

    fn is_machine(pauses: impl Iterator<Item = f64>) -> bool {
        let (mut turns, mut at) = (PageTurns::default(), 1e6);
        for pause in pauses {
            at += pause;
            turns.add(Tick::from_nanos((at * 1e9) as u64));
        }
        turns.are_of_a_machine()
    }

    /// Returns a pseudo-random number from 0 to 1.
    fn chance(n: u32) -> f64 {
        f64::from(n.wrapping_mul(2_654_435_769) ^ n.wrapping_mul(40_503).rotate_left(13))
            / f64::from(u32::MAX)
    }

    #[test]
    fn a_machine_waits_evenly_and_people_do_not() {
        for (least, most) in [(4.0, 9.0), (1.2, 3.0), (20.0, 60.0)] {
            assert!(is_machine((0..500).map(|n| least + (most - least) * chance(n))), "{least} to {most} s");
        }
        assert!(!is_machine((0..100).map(|n| 4.0 + chance(n))), "a hundred pages are few");
        assert!(!is_machine((0..900).map(|n| 0.1 + 0.2 * chance(n))), "faster than the log can tell");
        for mean in [0.3, 1.0, 2.0, 5.0, 30.0] {
            let office = |n| -mean * chance(n).max(1e-9).ln();
            assert!(
                !is_machine((0..2_000).map(office)),
                "readers who share an address, a page every {mean} s"
            );
            let mut at = 0.0;
            let whole = (0..2_000).map(|n| {
                let before = f64::floor(at);
                at += office(n);
                at.floor() - before
            });
            assert!(!is_machine(whole), "the same in whole seconds, {mean} s");
        }
        let reader = |n: u32| if n.is_multiple_of(20) { 2_000.0 } else { 2.0 + 60.0 * chance(n).powi(3) };
        assert!(!is_machine((0..600).map(reader)), "one who reads all day");
    }

    #[test]
    fn few_are_counted_and_many_estimated() {
        let hasher = FixedState::with_seed(0);
        for many in [0u64, 1, 127, 1_000, 50_000] {
            let mut few = Few::default();
            for number in (0..many).chain(0..many) {
                few.add(hasher.hash_one(number));
            }
            let wrong = few.about().abs_diff(many);
            assert!(wrong * 4 <= many && (!few.is_exact() || wrong == 0), "{} for {many}", few.about());
        }
    }
}
