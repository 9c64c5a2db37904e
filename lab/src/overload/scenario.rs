//! The loads that a protection is judged by, and the scores.

use std::time::Duration;

use super::backend::{Backend, Sharing, Speed, Work, plain};
use super::controllers::Controller;
use super::ideal::ideal;
use super::load::{Load, Retries};
use super::meter::{Measured, STEP};
use super::world::{Service, run};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The begin and the end of the load of [`overload()`]. Before it the load is half the capacity.
pub(crate) const OVERLOAD: (Duration, Duration) = (secs(2), secs(22));

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) goodput: f64,
    /// Its standard error; zero with a single seed.
    pub(crate) error: f64,
    pub(crate) p99: Duration,
}

/// Returns the mean score over `seeds` of 20 s at `times` the capacity, after 2 s at half of it.
///
/// They count from their first moment, also while the protection still learns, by the work done in them
/// ([`Measured::goodput_by_work`]). The load goes on afterwards, until all requests inside have been answered or are
/// late.
pub(crate) fn overload(
    backend: &Backend,
    controller: &Controller,
    times: f64,
    seeds: impl Iterator<Item = u64>,
) -> Score {
    let (shares, p99s): (Vec<f64>, Vec<Duration>) =
        overload_by_seed(backend, controller, times, seeds).into_iter().unzip();
    let (goodput, error) = mean_and_error(&shares);
    Score { goodput, error, p99: p99s.iter().sum::<Duration>().div_f64(p99s.len().max(1) as f64) }
}

/// Returns goodput as a share of the ideal and the 99th percentile of the latency of good answers, for each seed.
pub(super) fn overload_by_seed(
    backend: &Backend,
    controller: &Controller,
    times: f64,
    seeds: impl Iterator<Item = u64>,
) -> Vec<(f64, Duration)> {
    let (from, to) = OVERLOAD;
    let load = Load { until: to + backend.deadline, ..overload_load(backend.capacity(), times) };
    let ideal = ideal(backend, &load, from, to);
    seeds
        .map(|seed| {
            let measured = run(vec![service(backend, controller)], &load, seed);
            (measured.goodput_by_work(from, to) / ideal, measured.quantile(0.99, from, to))
        })
        .collect()
}

/// Returns the mean and its standard error, which is zero for a single number.
pub(super) fn mean_and_error(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len().max(1) as f64;
    let mean = mean(numbers.iter().copied());
    let squares: f64 = numbers.iter().map(|number| (number - mean) * (number - mean)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

pub(crate) fn overload_load(capacity: f64, times: f64) -> Load {
    let (from, to) = OVERLOAD;
    Load { rates: vec![(Duration::ZERO, capacity * 0.5), (from, capacity * times)], ..Load::steady(0.0, to) }
}

#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// The services in the order of calls; the last has the least capacity.
    pub(crate) services: Vec<Backend>,
}

impl Chain {
    pub(crate) fn single() -> Self {
        Self { name: "one service", services: vec![plain("knee", "")] }
    }

    /// Returns three services in a row, where each attempts a call to the next up to three times. The first two have
    /// twice and one and a half times the capacity of the last.
    pub(crate) fn of_three() -> Self {
        let service = |name, work| Backend { work, ..plain(name, "") };
        let first = service("first", Work::Even(ms(8), ms(12)));
        let second = Backend { sharing: Sharing::Queued(12), ..service("second", Work::Exponential(ms(10))) };
        Self { name: "chain of three", services: vec![first, second, plain("third", "")] }
    }

    pub(crate) fn capacity(&self) -> f64 {
        self.services.iter().map(Backend::capacity).fold(f64::INFINITY, f64::min)
    }

    pub(super) fn run(&self, controller: &Controller, load: &Load, seed: u64) -> Measured {
        run(self.services.iter().map(|backend| service(backend, controller)).collect(), load, seed)
    }

    /// Returns goodput as a share of the capacity, for 10 s at `times` the capacity after 2 s at half of it, by the
    /// work done in these 10 s.
    pub(crate) fn overload(
        &self,
        controller: &Controller,
        times: f64,
        seeds: impl Iterator<Item = u64>,
    ) -> f64 {
        let capacity = self.capacity();
        let (from, to) = (OVERLOAD.0, secs(12));
        let longest = self.services.iter().map(|service| service.deadline).max().unwrap_or_default();
        let mut load = overload_load(capacity, times);
        load.until = to + longest;
        load.retries = self.retries(None);
        mean(seeds.map(|seed| self.run(controller, &load, seed).goodput_by_work(from, to) / capacity))
    }

    /// Returns how long goodput stays below 95 % of the capacity after the load rose from 0.8 to 1.4 times the
    /// capacity; `None` if longer than 5 s. It is averaged over 100 ms and over the seeds, since chance alone moves it
    /// by a tenth otherwise.
    pub(crate) fn spike(
        &self,
        controller: &Controller,
        seeds: impl Iterator<Item = u64>,
    ) -> Option<Duration> {
        let capacity = self.capacity();
        let load = Load {
            rates: vec![(Duration::ZERO, capacity * 0.8), (secs(3), capacity * 1.4)],
            retries: self.retries(None),
            ..Load::steady(0.0, secs(8))
        };
        let good = self.good(controller, &load, seeds);
        recovered(&good, secs(3), ms(100), capacity * 0.95)
    }

    /// Returns for each level, the lowest first, the share of requests answered well while the lowest level has twelve
    /// times its load for 10 s. In all, 5.2 times the capacity arrives.
    pub(crate) fn levels(&self, controller: &Controller, seeds: impl Iterator<Item = u64>) -> [f64; 4] {
        let capacity = self.capacity();
        let load = Load {
            levels: [0.5, 0.2, 0.2, 0.1],
            extra: vec![(secs(3), capacity * 0.4 * 11.0), (secs(13), 0.0)],
            retries: self.retries(None),
            ..Load::steady(capacity * 0.8, secs(13))
        };
        let mut sums = [(0, 0); 4];
        for seed in seeds {
            let measured = self.run(controller, &load, seed);
            for (sum, (offered, good)) in sums.iter_mut().zip(measured.levels(secs(3), secs(13))) {
                *sum = (sum.0 + offered, sum.1 + good);
            }
        }
        sums.map(|(offered, good)| good as f64 / (offered as f64).max(1.0))
    }

    /// Returns how long a retry storm lasts after its trigger is over: the last service at 30 % of its speed for 3 s.
    /// It ends when goodput is back at 95 % of the load; `None` if it is not after 15 s.
    pub(crate) fn storm(
        &self,
        controller: &Controller,
        budget: Option<f64>,
        seeds: impl Iterator<Item = u64>,
    ) -> Option<Duration> {
        let capacity = self.capacity();
        let retries = Retries { attempts: 3, backoff: ms(50), budget };
        let load = Load { retries, ..Load::steady(capacity * 0.8, secs(22)) };
        let good = self.clone().slowed().good(controller, &load, seeds);
        recovered(&good, secs(7), ms(500), capacity * 0.8 * 0.95)
    }

    /// Returns this chain with the last service at 30 % of its speed from second 4 to second 7.
    pub(super) fn slowed(mut self) -> Self {
        if let Some(last) = self.services.last_mut() {
            last.speed = Speed::Steps(vec![(Duration::ZERO, 1.0), (secs(4), 0.3), (secs(7), 1.0)]);
        }
        self
    }

    fn retries(&self, budget: Option<f64>) -> Retries {
        if self.services.len() == 1 {
            Retries::NONE
        } else {
            Retries { attempts: 3, backoff: ms(10), budget }
        }
    }

    fn good(&self, controller: &Controller, load: &Load, seeds: impl Iterator<Item = u64>) -> Vec<f64> {
        let mut sums: Vec<f64> = Vec::new();
        let mut count = 0.0;
        for seed in seeds {
            let measured = self.run(controller, load, seed);
            sums.resize(measured.good.len(), 0.0);
            for (sum, good) in sums.iter_mut().zip(&measured.good) {
                *sum += f64::from(*good);
            }
            count += STEP.as_secs_f64();
        }
        sums.iter().map(|sum| sum / count).collect()
    }
}

/// Returns the time until the first window that reaches `wanted`, if nearly all windows of the next second do too.
fn recovered(good: &[f64], from: Duration, window: Duration, wanted: f64) -> Option<Duration> {
    let steps = |span: Duration| (span.as_nanos() / STEP.as_nanos()) as usize;
    let reaches = |at: usize| {
        let window = good.get(at..at + steps(window)).unwrap_or_default();
        !window.is_empty() && window.iter().sum::<f64>() / window.len() as f64 >= wanted
    };
    let last = good.len().saturating_sub(steps(secs(1)) + steps(window));
    // Single windows may miss the target by chance: nine in ten within that second must reach it.
    let stays = |at: usize| {
        let reached = (at..at + steps(secs(1))).filter(|at| reaches(*at)).count();
        reaches(at) && reached * 10 >= steps(secs(1)) * 9
    };
    (steps(from)..last).find(|at| stays(*at)).map(|at| STEP * (at - steps(from)) as u32)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

fn service(backend: &Backend, controller: &Controller) -> Service {
    Service { backend: backend.clone(), front: (controller.protect)(backend) }
}
