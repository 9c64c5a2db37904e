//! Checks with names, beside the table: what a default must do on any service.

use std::fmt;

use super::guard::{LAWS, Protection};
use super::service::{Service, Shape};
use super::services::{flooded, partly_hung, priced, slow_work};
use super::table::{Judged, LOADS, runs};
use super::tally::Tally;

/// The most seeds of a check that is not about the table.
const SEEDS: u64 = 3;

/// What a check has found.
pub(super) struct Check {
    name: String,
    found: f64,
    /// The least that passes, or the most if `at_most`.
    bound: f64,
    at_most: bool,
    /// Where it was found, if the check looks at several places.
    place: String,
}

impl Check {
    fn at_least(name: impl Into<String>, found: f64, bound: f64) -> Self {
        Self { name: name.into(), found, bound, at_most: false, place: String::new() }
    }

    #[cfg(test)]
    pub(super) const fn found(&self) -> f64 {
        self.found
    }

    pub(super) fn passed(&self) -> bool {
        if self.at_most { self.found <= self.bound } else { self.found >= self.bound }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, found, bound, place, .. } = self;
        let word = if self.passed() { "holds" } else { "fails" };
        let than = if self.at_most { "at most" } else { "at least" };
        write!(f, "{word}\t{name}\t{found:.4}\t{than} {bound}\t{place}")
    }
}

pub(super) fn all(judged: &[Judged], seeds: u64) -> Vec<Check> {
    let seeds = seeds.min(SEEDS);
    let mut checks = hang_stays_partial(seeds);
    checks.extend(slow_work_is_learnt(seeds));
    if !judged.is_empty() {
        checks.extend(below_capacity(judged));
        checks.extend(just_above(judged));
    }
    checks.extend(tenants_are_apart(seeds));
    checks.push(critical_work_passes(seeds));
    checks
}

pub(super) fn tidegate(service: &Service, load: f64, seeds: u64) -> Tally {
    runs(service, load, Protection::Tidegate, 1..=seeds)
}

/// Healthy requests are answered as before, two seconds after a part of the service began to hang.
pub(super) fn hang_stays_partial(seeds: u64) -> Vec<Check> {
    let mut checks = Vec::new();
    for one_in in [10.0, 50.0] {
        for told in [false, true] {
            let tally = tidegate(&partly_hung("partly hung", one_in, told), 0.5, seeds);
            let deadlines = if told { "deadlines told" } else { "no deadlines told" };
            let name = format!("1 partial hang stays partial: 1 in {one_in}, {deadlines}");
            checks.push(Check::at_least(name, tally.good / tally.healthy, 0.97));
        }
    }
    checks
}

/// Work of 10 to 50 s at twice the capacity, and at half of it from two such times after the end of that.
pub(super) fn slow_work_is_learnt(seeds: u64) -> [Check; 2] {
    let service = slow_work("slow work");
    let under_load = tidegate(&service, 2.0, seeds).share();
    let (falls, twice_the_work) = (service.warm + service.span, 2.0 * service.work);
    let back = Service {
        shape: Shape::Falls { at: falls, to: 0.25 },
        warm: falls + twice_the_work,
        span: 300.0,
        ..service
    };
    let back = tidegate(&back, 2.0, seeds);
    [
        Check::at_least("2 slow work at 2", under_load, 0.85),
        Check::at_least("2 slow work, at 0.5 two service times later", back.good / back.healthy, 0.99),
    ]
}

/// Finds the place of a number among all services: the least number, or the largest.
fn worst(
    judged: &[Judged],
    at_most: bool,
    number: impl Fn(&Judged) -> Option<f64>,
) -> Option<(f64, &'static str)> {
    let numbers = judged.iter().filter_map(|judged| Some((number(judged)?, judged.service.name)));
    if at_most {
        numbers.max_by(|(one, _), (other, _)| one.total_cmp(other))
    } else {
        numbers.min_by(|(one, _), (other, _)| one.total_cmp(other))
    }
}

/// Makes the check of the worst of all services; holds if no service has the number.
fn of_worst(
    name: &str,
    judged: &[Judged],
    at_most: bool,
    bound: f64,
    number: impl Fn(&Judged) -> Option<f64>,
) -> Check {
    let broken = judged.iter().filter_map(&number);
    let broken = broken.filter(|found| if at_most { *found > bound } else { *found < bound }).count();
    let (found, place) = worst(judged, at_most, &number).unwrap_or((bound, "no service"));
    let place = if broken > 1 { format!("{place}, and {} more", broken - 1) } else { place.to_owned() };
    Check { name: name.into(), found, bound, at_most, place }
}

/// Returns the number of a load in a table.
fn load(wanted: f64) -> usize {
    LOADS.iter().position(|load| *load == wanted).unwrap_or(0)
}

/// Returns what Tidegate has had answered, as a share of what the best fixed limit or none at all would have.
fn of_best(judged: &Judged, load: usize) -> Option<f64> {
    let good = |protection| judged.cell(protection, load).map(|tally| tally.good);
    let best = good(Protection::Fixed(1))?.max(good(Protection::Nothing)?);
    Some(good(Protection::Tidegate)? / best)
}

fn below_capacity(judged: &[Judged]) -> [Check; 2] {
    // Where the capacity fell below the load for a while, some had to be refused.
    let at_08 = |judged: &Judged| {
        let tally = judged.cell(Protection::Tidegate, load(0.8))?;
        let fits = tally.allowed > 0.995 * tally.healthy;
        fits.then(|| of_best(judged, load(0.8)).map(|of_best| of_best.max(tally.good / tally.healthy)))?
    };
    let at_1 = |judged: &Judged| {
        let good = |protection| judged.cell(protection, load(1.0)).map(|tally| tally.good);
        let (good, none) = (good(Protection::Tidegate)?, good(Protection::Nothing)?);
        (none > 0.0).then_some(good / none)
    };
    [
        of_worst("3 nobody refused at 0.8, of the best", judged, false, 0.99, at_08),
        of_worst("3 at 1.0, of what no protection has", judged, false, 0.97, at_1),
    ]
}

fn just_above(judged: &[Judged]) -> [Check; 2] {
    let load = load(1.4);
    let of_best = |judged: &Judged| {
        let share = judged.cell(Protection::Tidegate, load)?.share();
        Some(of_best(judged, load)?.max(share))
    };
    // The best law is the one with the most answers; of those within a hundredth of it, the quickest.
    let slower = |judged: &Judged| {
        let laws: Vec<&Tally> = LAWS.iter().filter_map(|law| judged.cell(*law, load)).collect();
        let most = laws.iter().map(|law| law.good).max_by(f64::total_cmp)?;
        let best = laws.iter().filter(|law| law.good >= 0.99 * most).map(|law| law.latencies.p99());
        Some(judged.cell(Protection::Tidegate, load)?.latencies.p99() / best.min_by(f64::total_cmp)?)
    };
    [
        of_worst("4 just above, at 1.4, of the best", judged, false, 0.95, of_best),
        of_worst("4 just above, at 1.4, p99 as a multiple of the best law's", judged, true, 2.0, slower),
    ]
}

/// Tenants who ask for less than their guarantee are answered, whatever another one does.
pub(super) fn tenants_are_apart(seeds: u64) -> Vec<Check> {
    let service = flooded("flooded");
    let check = |load: f64| {
        let tally = tidegate(&service, load, seeds);
        let quiet = service.classes.iter().zip(&tally.classes).filter(|(class, _)| class.steady);
        let (healthy, answered) = quiet.fold((0_u64, 0_u64), |(healthy, answered), (_, class)| {
            (healthy + class.healthy, answered + class.answered)
        });
        Check::at_least(format!("5 quiet tenants at {load}"), answered as f64 / healthy as f64, 0.98)
    };
    [2.0, 10.0].map(check).into()
}

/// The critical third of the work is answered at twice the capacity.
pub(super) fn critical_work_passes(seeds: u64) -> Check {
    let tally = tidegate(&priced("priced"), 2.0, seeds);
    Check::at_least("6 critical work at 2", tally.class_share(0), 0.999)
}
