//! The measurements of a run.

use std::time::Duration;

use tidegate::priority::Priority;

/// The length of one step of the curves.
pub(crate) const STEP: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Requests that arrived in each [`STEP`].
    pub(crate) offered: Vec<u32>,
    /// Requests answered well and in time, by the [`STEP`] of the answer.
    pub(crate) good: Vec<u32>,
    /// The same requests, each split over the [`STEP`]s in which its work was done, in proportion to the work.
    pub(crate) worked: Vec<f64>,
    /// For each level, the least important first, and each [`STEP`]: the requests that arrived in it, and how many of
    /// them were answered well and in time.
    pub(crate) by_level: [Vec<(u32, u32)>; 4],
    /// The limit of the first service at the end of each [`STEP`]; `u64::MAX` for none.
    pub(crate) limits: Vec<u64>,
    /// The latency of each good answer since its last attempt, in microseconds, ascending, with the step of the answer.
    pub(crate) latencies: Vec<(u32, u32)>,
    /// Answers that came after the caller had stopped waiting.
    pub(crate) late: u64,
    /// Requests whose last attempt was refused.
    pub(crate) refused: u64,
    /// Requests whose last attempt failed or was not answered in time.
    pub(crate) failed: u64,
}

impl Measured {
    /// Returns good answers per second from one time to another, by the time of the answer.
    pub(crate) fn goodput(&self, from: Duration, to: Duration) -> f64 {
        rate(&self.good, from, to)
    }

    /// Returns good answers per second from one time to another, where each counts with the share of its work that was
    /// done between these times, whenever it began and was answered.
    ///
    /// So requests inside when the time is over count with what was done for them, if they are answered well later: the
    /// load has to go on until that is known. Requests inside when it begins count with what is left to do.
    pub(crate) fn goodput_by_work(&self, from: Duration, to: Duration) -> f64 {
        rate(&self.worked, from, to)
    }

    /// A quantile of the latencies of good answers; `share` is from 0 to 1. Zero if there were none.
    pub(crate) fn quantile(&self, share: f64, from: Duration, to: Duration) -> Duration {
        let (from, to) = (step(from) as u32, step(to) as u32);
        let all: Vec<u32> =
            self.latencies.iter().filter(|(_, at)| (from..to).contains(at)).map(|(took, _)| *took).collect();
        let place = ((all.len() as f64 * share).ceil() as usize).max(1) - 1;
        all.get(place).map_or(Duration::ZERO, |micros| Duration::from_micros(u64::from(*micros)))
    }

    /// Returns for each level, the least important first, the requests that arrived between two times, and how many of
    /// them were answered well and in time.
    pub(crate) fn levels(&self, from: Duration, to: Duration) -> [(u64, u64); 4] {
        let sum = |steps: &Vec<(u32, u32)>| {
            let steps = steps.get(step(from)..step(to).min(steps.len())).unwrap_or_default();
            steps.iter().fold((0, 0), |sum, step| (sum.0 + u64::from(step.0), sum.1 + u64::from(step.1)))
        };
        [0, 1, 2, 3].map(|level| sum(&self.by_level[level]))
    }
}

fn step(at: Duration) -> usize {
    (at.as_nanos() / STEP.as_nanos()) as usize
}

fn rate<T: Copy + Into<f64>>(counts: &[T], from: Duration, to: Duration) -> f64 {
    let counts = counts.get(step(from)..step(to).min(counts.len())).unwrap_or_default();
    let seconds = counts.len() as f64 * STEP.as_secs_f64();
    counts.iter().map(|count| (*count).into()).sum::<f64>() / seconds.max(1e-9)
}

#[derive(Debug)]
pub(super) struct Meter {
    measured: Measured,
}

impl Meter {
    pub(super) fn new(until: Duration) -> Self {
        let steps = step(until) + 1;
        let measured = Measured {
            offered: vec![0; steps],
            good: vec![0; steps],
            worked: vec![0.0; steps],
            by_level: [(); 4].map(|()| vec![(0, 0); steps]),
            limits: Vec::with_capacity(steps),
            latencies: Vec::new(),
            late: 0,
            refused: 0,
            failed: 0,
        };
        Self { measured }
    }

    pub(super) fn offered(&mut self, at: u64, priority: Priority) {
        let step = step(Duration::from_nanos(at));
        bump(&mut self.measured.offered, step);
        if let Some(step) = self.measured.by_level[priority.level() as usize].get_mut(step) {
            step.0 += 1;
        }
    }

    pub(super) fn good(&mut self, at: u64, arrived: u64, priority: Priority, latency: u64) {
        let step_of = |at| step(Duration::from_nanos(at));
        bump(&mut self.measured.good, step_of(at));
        if let Some(step) = self.measured.by_level[priority.level() as usize].get_mut(step_of(arrived)) {
            step.1 += 1;
        }
        self.measured.latencies.push(((latency / 1000) as u32, step_of(at) as u32));
    }

    /// Counts a share of the work on a request that was answered well.
    pub(super) fn worked(&mut self, step: usize, share: f64) {
        if let Some(sum) = self.measured.worked.get_mut(step) {
            *sum += share;
        }
    }

    pub(super) fn limit(&mut self, limit: u64) {
        self.measured.limits.push(limit);
    }

    pub(super) fn late(&mut self) {
        self.measured.late += 1;
    }

    pub(super) fn lost(&mut self, refused: bool) {
        if refused {
            self.measured.refused += 1;
        } else {
            self.measured.failed += 1;
        }
    }

    pub(super) fn finish(mut self) -> Measured {
        self.measured.latencies.sort_unstable();
        self.measured
    }
}

fn bump(counts: &mut [u32], step: usize) {
    if let Some(count) = counts.get_mut(step) {
        *count += 1;
    }
}
