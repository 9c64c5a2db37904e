//! Decides which arrivals are refused first: an arrival's rank is the share of a sample of recent arrivals that is
//! less important than it. Refusing all arrivals with one probability would hit important ones as often as others. An
//! arrival is refused if its rank lies below the refused share. Within one priority the draw decides.
//!
//! # Source
//! Uber's Cinnamon maps its ratio to a priority in the same way: "Cinnamon: Using Century Old Tech to Build a Mean
//! Load Shedder", 2023.

use core::time::Duration;

use crate::priority::{Criticality, Priority};
use crate::time::{Tick, onward};

use super::Arrival;

const CELLS: usize = Criticality::ALL.len() * Priority::COHORTS as usize;

const SAMPLE: u32 = 1000;
/// The time after which a sample is complete with fewer arrivals.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

/// An arrival with at least this draw is admitted at any share: the last thousandth of the draws.
const ALWAYS: u32 = u32::MAX - u32::MAX / 1000;

/// The largest share that can be refused: the draws below [`ALWAYS`].
pub(super) const MOST_SHARE: f64 = 0.999;

/// The last complete sample of arrivals by priority, and the sample in progress: 4 KiB on the heap, allocated at the
/// start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranking {
    /// For each priority, how many arrivals of the complete sample are less important. The last element is the size
    /// of the sample.
    below: Box<[u32]>,
    counts: Box<[u32]>,
    counted: u32,
    since: Tick,
}

impl Ranking {
    pub(super) fn new(now: Tick) -> Self {
        let cells = |count| vec![0; count].into_boxed_slice();
        Self { below: cells(CELLS + 1), counts: cells(CELLS), counted: 0, since: now }
    }

    /// Counts an arrival, and returns whether it is among the share to refuse.
    pub(super) fn refuses(&mut self, arrival: &Arrival, share: f64) -> bool {
        self.count(arrival);
        share > 0.0 && arrival.draw < ALWAYS && self.rank(arrival) < share
    }

    fn count(&mut self, arrival: &Arrival) {
        self.counts[cell(arrival.priority)] += 1;
        self.counted += 1;
        // After the clock was set far back, the sample's time restarts.
        self.since = self.since.min(onward(self.since, arrival.at));
        if self.counted >= SAMPLE || arrival.at.since(self.since) >= SAMPLE_TIME {
            let mut sum = 0;
            for (below, count) in self.below.iter_mut().zip(&mut self.counts) {
                *below = sum;
                sum += core::mem::take(count);
            }
            self.below[CELLS] = sum;
            (self.counted, self.since) = (0, onward(self.since, arrival.at));
        }
    }

    /// Returns the share of the sample that is refused before this arrival: 0 to 1. Before the first sample is
    /// complete, the draw alone decides.
    fn rank(&self, arrival: &Arrival) -> f64 {
        let draw = f64::from(arrival.draw) / (u64::from(u32::MAX) + 1) as f64;
        let (cell, all) = (cell(arrival.priority), self.below[CELLS]);
        if all == 0 {
            return draw;
        }
        let (from, to) = (f64::from(self.below[cell]), f64::from(self.below[cell + 1]));
        (from + (to - from) * draw) / f64::from(all)
    }
}

fn cell(priority: Priority) -> usize {
    let cohorts = usize::from(Priority::COHORTS);
    priority.level() as usize * cohorts + (cohorts - 1 - usize::from(priority.cohort()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(priority: Priority, draw: u32) -> Arrival {
        Arrival { at: Tick::EPOCH, priority, draw }
    }

    /// A sample with a quarter each: sheddable, sheddable-plus, critical, critical-plus.
    fn quarters() -> Ranking {
        let mut ranking = Ranking::new(Tick::EPOCH);
        for count in 0..SAMPLE as usize {
            ranking.count(&arrival(Criticality::ALL[count % 4].into(), 0));
        }
        ranking
    }

    #[test]
    fn the_least_important_are_refused_first_and_the_last_thousandth_of_draws_never() {
        let refused =
            |level: Criticality, draw: u32, share| quarters().refuses(&arrival(level.into(), draw), share);
        let half = u32::MAX / 2;
        for (share, expected) in [
            (0.0, [false; 4]),
            (0.1, [false; 4]),
            (0.2, [true, false, false, false]),
            (0.5, [true, true, false, false]),
            (0.8, [true, true, true, false]),
            (MOST_SHARE, [true; 4]),
        ] {
            assert_eq!(Criticality::ALL.map(|level| refused(level, half, share)), expected, "share {share}");
            assert_eq!(Criticality::ALL.map(|level| refused(level, u32::MAX, share)), [false; 4]);
        }
    }

    #[test]
    fn cohorts_of_a_level_go_one_after_the_other() {
        let mut ranking = Ranking::new(Tick::EPOCH);
        let cohort = |number| Priority::default().in_cohort(number).unwrap();
        for count in 0..SAMPLE {
            ranking.count(&arrival(cohort((count % 100) as u8), 0));
        }
        let refused = (0..100).filter(|&number| ranking.rank(&arrival(cohort(number), u32::MAX / 2)) < 0.3);
        assert_eq!(refused.collect::<Vec<_>>(), (70..100).collect::<Vec<_>>());
    }

    #[test]
    fn fewer_arrivals_make_a_sample_after_a_second() {
        let mut ranking = Ranking::new(Tick::EPOCH);
        for secs in [0, 0, 1] {
            ranking.count(&Arrival { at: Tick::from_secs(secs), ..arrival(Priority::default(), 0) });
        }
        assert_eq!((ranking.below[CELLS], ranking.counted), (3, 0));
    }
}
