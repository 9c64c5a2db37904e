//! Holds the default to its bars on each service of the table, the data of the figures to the code, and the manual to the
//! data.
//!
//! The default is run here. The published laws are not: their figures are read from the data. Cells are compared as they
//! are written: goodput is rounded to two digits, latency is cut to whole milliseconds, means over the unseen seeds have
//! three digits. The manual shows the cells of the data, and means of them rounded to two digits.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use super::super::backend::{self, Backend};
use super::super::controllers::{Controller, DEFAULT, ORDERS, PUBLISHED};
use super::super::figures::{self, SEEDS, Table, UNSEEN_SEEDS, orders};
use super::super::scenario::Score;

type Scores = Vec<(String, Vec<Score>)>;

/// The share of the ideal goodput that the default keeps.
const BAR: f64 = 0.9;
/// Services on which the default keeps less, or less than a published law: it holds no places in reserve for a dependency that
/// becomes slower, and keeps work short.
const LESS: [(&str, f64); 5] =
    [("latency shift", 0.78), ("drops", 0.75), ("jitter", 0.97), ("defers", 0.96), ("timer", 0.98)];
/// How far the default may be below the best published law, beside chance.
const BELOW: f64 = 0.01;
/// The seeds at ten times the capacity, where a run takes three times as long as at twice the capacity.
const FEW: RangeInclusive<u64> = 1..=1;
/// The services whose goodput is near to the bar, and moves by 0.04 between seeds: at ten times the capacity they are
/// judged by all seeds of the data.
const WIDE: [&str; 2] = ["lock contention", "cold cache"];

/// The default at twice the capacity, with the seeds of the data.
static AT_TWICE: LazyLock<Scores> =
    LazyLock::new(|| figures::scores_over(1..=SEEDS, &backend::table(), &[DEFAULT], 2.0));

/// Returns the default's score on each service at a load, with the number of seeds.
fn defaults(times: f64) -> Vec<(String, Score, u64)> {
    let of = |scores: &Scores, seeds: u64| -> Vec<_> {
        scores.iter().map(|(name, scores)| (name.clone(), scores[0], seeds)).collect()
    };
    if times == 2.0 {
        return of(&AT_TWICE, SEEDS);
    }
    let (wide, others): (Vec<Backend>, Vec<Backend>) =
        backend::table().into_iter().partition(|backend| WIDE.contains(&backend.name.as_str()));
    let run = |seeds: RangeInclusive<u64>, services: &[Backend]| {
        let count = seeds.clone().count() as u64;
        of(&figures::scores_over(seeds, services, &[DEFAULT], times), count)
    };
    [run(FEW, &others), run(1..=SEEDS, &wide)].concat()
}

/// Reads a file of the repository.
fn text_of(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The figures as they were written last.
fn data() -> String {
    text_of("lab/results/overload.tsv")
}

/// Returns the cell of a service in the table under a title.
fn cell<'d>(data: &'d str, title: &str, service: &str, column: &str) -> &'d str {
    let table = Table::of(data, title).expect(title);
    table.cell(service, column).unwrap_or_else(|| panic!("{title}: no {service}, {column}"))
}

/// Returns the cells of the default and of the best published law on a service.
fn beside_the_best<'d>(data: &'d str, times: f64, service: &str) -> [&'d str; 2] {
    let title = figures::title_beside_the_best(times);
    ["default", "best published law"].map(|column| cell(data, &title, service, column))
}

/// Reads `0.996 ± 0.001 Envoy`: a mean and its standard error.
fn mean_and_error(cell: &str) -> (f64, f64) {
    let mut words = cell.split(' ').filter_map(|word| word.parse().ok());
    (words.next().expect(cell), words.next().expect(cell))
}

#[test]
fn the_default_keeps_its_share_of_the_ideal_and_of_the_best_published_law_on_each_service() {
    let data = data();
    let mut failed = String::new();
    for times in [2.0, 10.0] {
        let unseen = UNSEEN_SEEDS.count();
        for (service, score, seeds) in defaults(times) {
            let [default, best] = beside_the_best(&data, times, &service);
            let ((_, of_default), (best, of_best)) = (mean_and_error(default), mean_and_error(best));
            // Two standard errors of the difference. The data's error is that of a mean over more seeds.
            let chance = 2.0 * (of_default * (unseen as f64 / seeds as f64).sqrt()).hypot(of_best);
            let less = LESS.iter().find(|(name, _)| *name == service);
            let least = less.map_or(BAR.max(best - BELOW - chance), |(_, least)| *least);
            if score.goodput < least {
                failed +=
                    &format!("{service} at {times} times: {:.4}, and {least:.4} is wanted\n", score.goodput);
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// The bound is half of the second digit: rounding to two digits changes a figure by no more.
#[test]
fn to_two_digits_no_published_law_keeps_more_in_the_data_than_the_default_but_on_five_services() {
    let data = data();
    for times in [2.0, 10.0] {
        for service in backend::table() {
            let [(default, _), (best, _)] = beside_the_best(&data, times, &service.name).map(mean_and_error);
            let is_less = LESS.iter().any(|(name, _)| *name == service.name);
            assert!(
                is_less || best - default <= 0.005,
                "{} at {times} times: {default}, and {best}",
                service.name
            );
        }
    }
}

#[test]
fn the_figures_of_the_data_are_what_the_simulation_computes() {
    let data = data();
    let mut stale = String::new();
    let mut compare = |title: &str, service: &str, law: &Controller, computed: String| {
        let kept = cell(&data, title, service, law.name);
        if kept != computed {
            stale += &format!("{title}, {service}, {}: {kept} in the data, {computed} now\n", law.name);
        }
    };
    let mut both = |service: &str, law: &Controller, score: &Score| {
        compare(&figures::goodput_title(2.0), service, law, format!("{:.2}", score.goodput));
        compare(&figures::p99_title(2.0), service, law, score.p99.as_millis().to_string());
    };
    for (service, scores) in AT_TWICE.iter() {
        both(service, &DEFAULT, &scores[0]);
    }
    // The published laws, on the service with the fewest requests.
    for (service, scores) in figures::scores_over(1..=SEEDS, &only("stable time-out"), &PUBLISHED, 2.0) {
        PUBLISHED.iter().zip(&scores).for_each(|(law, score)| both(&service, law, score));
    }
    for (service, scores) in figures::scores_over(1..=SEEDS, &only("capacity steps"), &ORDERS, 2.0) {
        for (order, score) in ORDERS.iter().zip(&scores) {
            compare(&orders::title(2.0), &service, order, orders::cell(score));
        }
    }
    assert!(
        stale.is_empty(),
        "{stale}write them again with `cargo run --release -p tidegate-lab --example overload`"
    );
}

#[test]
fn the_tables_of_the_manual_are_those_of_the_data() {
    let page = text_of("docs/figures.md");
    let written = figures::with_section(&page, &data()).expect("the page has a place for the tables");
    assert!(
        written == page,
        "write them again with `cargo run --release -p tidegate-lab --example overload`"
    );
}

fn only(name: &str) -> Vec<Backend> {
    let mut services = backend::table();
    services.retain(|backend| backend.name == name);
    services
}
