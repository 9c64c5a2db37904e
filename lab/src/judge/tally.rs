//! What is counted of a run, and of several together.

use super::service::Class;

/// How a caller's request ended, the last one if he tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    /// Refused by the protection or by the service.
    Refused,
    /// The caller has waited for as long as he would, or has hung up.
    Late,
    /// It met a part that hangs or fails, or asked for more than its time: nothing could have answered it.
    Hung,
}

/// What is counted of the callers who came in the measured time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) offered: u64,
    pub(super) answered: u64,
    pub(super) refused: u64,
    pub(super) late: u64,
    pub(super) hung: u64,
    /// What was answered in time, in requests of cost 1.
    pub(super) good: f64,
    /// What a perfect protection would have had answered in time, and what was offered that could be answered.
    pub(super) allowed: f64,
    pub(super) healthy: f64,
    pub(super) classes: Vec<ClassTally>,
    pub(super) latencies: Latencies,
    /// The most that held a slot at once.
    pub(super) most_held: usize,
}

/// The requests of a class that could be answered, and those that were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassTally {
    pub(super) healthy: u64,
    pub(super) answered: u64,
}

impl Tally {
    pub(super) fn new(classes: &[Class]) -> Self {
        Self { classes: vec![ClassTally::default(); classes.len()], ..Self::default() }
    }

    /// Counts a caller who comes.
    pub(super) fn offer(&mut self, class: usize, cost: f64, hopeless: bool) {
        self.offered += 1;
        if !hopeless {
            self.healthy += cost;
            self.classes[class].healthy += 1;
        }
    }

    /// Counts how it ended for a caller, after so many nanoseconds.
    pub(super) fn end(&mut self, class: usize, cost: f64, end: End, took: u64) {
        match end {
            End::Answered => {
                self.answered += 1;
                self.good += cost;
                self.classes[class].answered += 1;
            }
            End::Refused => self.refused += 1,
            End::Late => self.late += 1,
            End::Hung => self.hung += 1,
        }
        if matches!(end, End::Answered | End::Late) {
            self.latencies.add(took);
        }
    }

    /// Adds what another run of the same service counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.answered += other.answered;
        self.refused += other.refused;
        self.late += other.late;
        self.hung += other.hung;
        self.good += other.good;
        self.allowed += other.allowed;
        self.healthy += other.healthy;
        for (class, other) in self.classes.iter_mut().zip(&other.classes) {
            class.healthy += other.healthy;
            class.answered += other.answered;
        }
        self.latencies.merge(&other.latencies);
        self.most_held = self.most_held.max(other.most_held);
    }

    /// Returns what was answered in time, as a share of what a perfect protection would have had answered.
    pub(super) fn share(&self) -> f64 {
        if self.allowed > 0.0 { self.good / self.allowed } else { 1.0 }
    }

    /// Returns the share of a class's requests that were answered, of those that could be.
    pub(super) fn class_share(&self, class: usize) -> f64 {
        let ClassTally { healthy, answered } = self.classes[class];
        if healthy > 0 { answered as f64 / healthy as f64 } else { 1.0 }
    }
}

const CELLS_A_DOUBLING: usize = 16;

/// How long callers waited who were not refused, in cells that differ by a sixteenth at most.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Latencies {
    cells: Vec<u32>,
    count: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { cells: vec![0; 64 * CELLS_A_DOUBLING], count: 0 }
    }
}

impl Latencies {
    fn add(&mut self, nanos: u64) {
        let nanos = nanos.max(CELLS_A_DOUBLING as u64);
        let doubling = nanos.ilog2();
        // The four bits below the highest one.
        let part = (nanos >> (doubling - 4)) & 15;
        self.cells[doubling as usize * CELLS_A_DOUBLING + part as usize] += 1;
        self.count += 1;
    }

    fn merge(&mut self, other: &Self) {
        for (cell, other) in self.cells.iter_mut().zip(&other.cells) {
            *cell += other;
        }
        self.count += other.count;
    }

    /// Returns the time in seconds within which 99 in 100 had waited; zero if nobody did.
    pub(super) fn p99(&self) -> f64 {
        let (wanted, mut sum) = ((self.count * 99).div_ceil(100), 0);
        for (number, cell) in self.cells.iter().enumerate() {
            sum += u64::from(*cell);
            if sum >= wanted && sum > 0 {
                let (doubling, part) = (number / CELLS_A_DOUBLING, number % CELLS_A_DOUBLING);
                return (doubling as f64).exp2() * (1.0 + (part as f64 + 0.5) / 16.0) / 1e9;
            }
        }
        0.0
    }
}
