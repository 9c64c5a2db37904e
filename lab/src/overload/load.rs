//! The callers of a simulated service.

use std::time::Duration;

use tidegate::priority::{Criticality, Priority};
use tidegate_sim::traffic::Chance;

/// Requests that arrive at random, as from very many independent callers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    /// Requests per second from each time on, as a Poisson process. The times ascend.
    pub(crate) rates: Vec<(Duration, f64)>,
    /// The share of each priority level, the least important first. The sum is 1.
    pub(crate) levels: [f64; 4],
    /// Additional requests per second of the lowest level, from each time on.
    pub(crate) extra: Vec<(Duration, f64)>,
    pub(crate) retries: Retries,
    pub(crate) until: Duration,
}

/// Whether and how often callers retry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Retries {
    /// The most attempts per call: 1 for no retries.
    pub(crate) attempts: u32,
    /// Drawn evenly between this and twice this.
    pub(crate) backoff: Duration,
    /// The most retries per first attempt, over all callers; `None` for no bound.
    pub(crate) budget: Option<f64>,
}

impl Retries {
    pub(crate) const NONE: Self = Self { attempts: 1, backoff: Duration::ZERO, budget: None };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arriving {
    pub(super) at: u64,
    pub(super) priority: Priority,
    /// The seed of all random numbers of this request, so that every controller gets the same request.
    pub(super) seed: u64,
}

impl Load {
    pub(crate) fn steady(rate: f64, until: Duration) -> Self {
        Self {
            rates: vec![(Duration::ZERO, rate)],
            levels: [0.0, 0.0, 1.0, 0.0],
            extra: Vec::new(),
            retries: Retries::NONE,
            until,
        }
    }

    pub(crate) fn rate(&self, at: Duration) -> f64 {
        step(&self.rates, at) + step(&self.extra, at)
    }

    pub(super) fn arrivals(&self, seed: u64) -> Vec<Arriving> {
        let mut chance = Chance(seed);
        let mut all = Vec::new();
        let mut shares = self.levels;
        for level in 1..shares.len() {
            shares[level] += shares[level - 1];
        }
        poisson(&self.rates, self.until, &mut chance, |at, chance| {
            let share = chance.share();
            let level = shares.iter().position(|upto| share < *upto).unwrap_or(shares.len() - 1);
            all.push(arriving(at, Criticality::ALL[level], chance));
        });
        poisson(&self.extra, self.until, &mut chance, |at, chance| {
            all.push(arriving(at, Criticality::Sheddable, chance));
        });
        all.sort_by_key(|arriving| arriving.at);
        all
    }
}

fn arriving(at: u64, level: Criticality, chance: &mut Chance) -> Arriving {
    let cohort = chance.below(u32::from(Priority::COHORTS)) as u8;
    let level = Priority::of(level);
    Arriving { at, priority: level.in_cohort(cohort).unwrap_or(level), seed: chance.bits() }
}

fn step(steps: &[(Duration, f64)], at: Duration) -> f64 {
    steps.iter().rev().find(|(from, _)| *from <= at).map_or(0.0, |(_, value)| *value)
}

/// Draws the times of a Poisson process whose rate changes in steps.
fn poisson(
    rates: &[(Duration, f64)],
    until: Duration,
    chance: &mut Chance,
    mut each: impl FnMut(u64, &mut Chance),
) {
    for (number, (from, rate)) in rates.iter().enumerate() {
        let end = rates.get(number + 1).map_or(until, |(next, _)| *next).min(until).as_nanos() as f64;
        let mut at = from.as_nanos() as f64;
        if *rate <= 0.0 {
            continue;
        }
        loop {
            at += chance.exponential() as f64 / 4_294_967_296.0 / rate * 1e9;
            if at >= end {
                break;
            }
            each(at as u64, chance);
        }
    }
}
