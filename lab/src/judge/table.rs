//! The table: each service of a set at each load, under each protection.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use tidegate::concurrency::Concurrency;

use super::guard::{LAWS, Protection};
use super::run::run;
use super::service::Service;
use super::tally::Tally;

/// The loads, in multiples of the capacity.
pub(super) const LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.4, 2.0, 4.0, 10.0];

/// The fixed limits that are tried for the ideal, in multiples of the places that are in use at capacity.
const GRID: [f64; 9] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0];

/// With how many seeds each of them is tried. They differ by more than seeds do.
const TRIED: u64 = 2;

/// Adds up the runs of several seeds.
pub(super) fn runs(
    service: &Service,
    load: f64,
    protection: Protection,
    seeds: RangeInclusive<u64>,
) -> Tally {
    let mut sum = Tally::new(&service.classes);
    for seed in seeds {
        sum.add(&run(service, load, protection, seed));
    }
    sum
}

/// Returns what the fixed limit that suits the service and the load best has answered. Of limits alike, the smallest.
fn ideal(service: &Service, load: f64, seeds: u64) -> Tally {
    let (tried, places) = (TRIED.min(seeds), service.places());
    let limit = |times: f64| ((places * times).round() as u64).clamp(1, Concurrency::MAX_PLACES);
    let limits: BTreeSet<u64> = GRID.into_iter().map(limit).collect();
    let mut best: Option<(u64, Tally)> = None;
    for limit in limits {
        let tally = runs(service, load, Protection::Fixed(limit), 1..=tried);
        if best.as_ref().is_none_or(|(_, best)| tally.good > best.good) {
            best = Some((limit, tally));
        }
    }
    let (limit, mut tally) = best.expect("the grid has limits");
    tally.add(&runs(service, load, Protection::Fixed(limit), tried + 1..=seeds));
    tally
}

/// What one protection has made of a service, at each of the [`LOADS`].
pub(super) struct Row {
    name: &'static str,
    cells: Vec<Tally>,
}

/// A service with all its rows.
pub(super) struct Judged {
    pub(super) service: Service,
    rows: Vec<Row>,
}

impl Judged {
    /// Judges a service under the protections with these names; under all if there are none.
    pub(super) fn new(service: Service, seeds: u64, only: &[&str]) -> Self {
        let seeds = seeds.min(service.seeds);
        let row = |protection: Protection| {
            let cell = |load: f64| match protection {
                Protection::Fixed(_) => ideal(&service, load, seeds),
                protection => runs(&service, load, protection, 1..=seeds),
            };
            Row { name: protection.name(), cells: LOADS.map(cell).into() }
        };
        let mut protections = protections(&service);
        protections.retain(|protection| only.is_empty() || only.contains(&protection.name()));
        let rows = protections.into_iter().map(row).collect();
        Self { service, rows }
    }

    /// Returns a cell by the number of its load; `None` if the service was not judged with that protection.
    pub(super) fn cell(&self, protection: Protection, load: usize) -> Option<&Tally> {
        self.rows.iter().find(|row| row.name == protection.name())?.cells.get(load)
    }
}

fn protections(service: &Service) -> Vec<Protection> {
    let mut all = all_protections();
    if !service.troubles.iter().any(|trouble| trouble.fails) {
        all.retain(|protection| *protection != Protection::WithBreaker);
    }
    all
}

pub(super) fn all_protections() -> Vec<Protection> {
    let mut all = vec![Protection::Tidegate, Protection::WithBreaker];
    // The number of places is found for each load.
    all.extend([Protection::Fixed(1), Protection::Nothing]);
    all.extend(LAWS);
    all
}

/// Returns the summary and the rows of all services, with cells that are separated by tabs.
pub(super) fn text(judged: &[Judged]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in judged.iter().flat_map(|judged| &judged.rows) {
        if !names.contains(&row.name) {
            names.push(row.name);
        }
    }
    let loads = LOADS.map(|load| format!("\t{load}")).concat();
    let mut text = format!("protection\tservices\tmean{loads}\tp99 of what callers wait\tleast\tof\tat\n");
    for name in names {
        summary(&mut text, name, judged);
    }
    let _ = write!(text, "\nservice\tprotection{loads}");
    let _ = writeln!(text, "{}", LOADS.map(|load| format!("\tp99 at {load}, ms")).concat());
    for judged in judged {
        for row in &judged.rows {
            let shares: String = row.cells.iter().map(|cell| format!("\t{:.3}", cell.share())).collect();
            let p99 = |cell: &Tally| format!("\t{}", three_digits(cell.latencies.p99() * 1e3));
            let waits: String = row.cells.iter().map(p99).collect();
            let _ = writeln!(text, "{}\t{}{shares}{waits}", judged.service.name, row.name);
        }
    }
    text
}

/// Adds the line of one protection: its mean over all services and loads, at each load, and its least cell.
fn summary(text: &mut String, name: &str, judged: &[Judged]) {
    let (mut services, mut sum, mut by_load, mut waits) = (0_u32, 0.0, [0.0; LOADS.len()], 0.0);
    let (mut least, mut of, mut at) = (f64::INFINITY, "", 0.0);
    for judged in judged {
        let Some(row) = judged.rows.iter().find(|row| row.name == name) else { continue };
        services += 1;
        for ((cell, load), by_load) in row.cells.iter().zip(LOADS).zip(&mut by_load) {
            let share = cell.share();
            sum += share;
            *by_load += share;
            waits += cell.latencies.p99() / judged.service.callers.within;
            if share < least {
                (least, of, at) = (share, judged.service.name, load);
            }
        }
    }
    let each = f64::from(services);
    let cells = each * LOADS.len() as f64;
    let by_load = by_load.map(|sum: f64| format!("\t{:.3}", sum / each)).concat();
    let (mean, waits) = (sum / cells, waits / cells);
    let _ = writeln!(text, "{name}\t{services}\t{mean:.3}{by_load}\t{waits:.2}\t{least:.3}\t{of}\t{at}");
}

/// Writes a number of milliseconds with no more digits than matter.
fn three_digits(number: f64) -> String {
    if number >= 1000.0 {
        format!("{:.0}", (number / 10.0).round() * 10.0)
    } else if number >= 100.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.1}")
    }
}
