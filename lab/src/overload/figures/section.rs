//! The tables of the manual: the data in short.

use std::fmt::Write as _;

use super::super::controllers::{DEFAULT, NONE, PUBLISHED, RIGHT};
use super::super::scenario::Chain;
use super::tables::Table;
use super::{
    SPIKE, STORM, goodput_title, impatient_title, p99_title, scenarios_title, title_beside_the_best,
};

const START: &str = "<!-- overload -->";
const END: &str = "<!-- /overload -->";

/// Returns the page of figures with the tables that the data give; `None` if the page has no place for them, or the data
/// lack a table.
#[must_use]
pub fn with_section(page: &str, data: &str) -> Option<String> {
    let (before, rest) = page.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    let (protections, services) = (protections(data)?, services(data)?);
    Some(format!("{before}{START}\n\n{protections}\n{services}\n{END}{after}"))
}

/// Writes one row for each protection: its goodput over all services, and how it gets over a spike and a storm.
fn protections(data: &str) -> Option<String> {
    let goodput = [
        Table::of(data, &goodput_title(2.0))?,
        Table::of(data, &goodput_title(10.0))?,
        Table::of(data, &impatient_title())?,
    ];
    let (one, chain) = (scenarios_title(&Chain::single()), scenarios_title(&Chain::of_three()));
    let (one, chain) = (Table::of(data, &one)?, Table::of(data, &chain)?);
    let mut text = String::from(
        "| protection | 2 × | 10 × | 2 ×, callers wait 200 ms | after a spike | after a storm |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for protection in [&[DEFAULT, NONE, RIGHT][..], &PUBLISHED].concat() {
        let name = protection.name;
        let [twice, tenfold, impatient] =
            goodput.each_ref().map(|table| mean_and_least(&table.numbers(name)));
        let (spike, storm) = (one.cell(name, SPIKE)?, chain.cell(name, STORM)?);
        let _ = writeln!(text, "| {name} | {twice} | {tenfold} | {impatient} | {spike} | {storm} |");
    }
    Some(text)
}

/// Formats the mean and the least.
fn mean_and_least(shares: &[f64]) -> String {
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let least = shares.iter().copied().reduce(f64::min);
    least.map_or_else(String::new, |least| format!("{mean:.2}, {least:.2}"))
}

/// Writes one row for each service on which the default and the best published law differ, at either load.
fn services<'d>(data: &'d str) -> Option<String> {
    let loads = [title_beside_the_best(2.0), title_beside_the_best(10.0)];
    let [twice, tenfold] = [Table::of(data, &loads[0])?, Table::of(data, &loads[1])?];
    let latency = Table::of(data, &p99_title(2.0))?;
    let mut text = String::from(
        "| service | default: 2 ×, 10 × | best published law: 2 ×, 10 × | p99 of both at 2 ×, ms |\n|---|---:|---|---:|\n",
    );
    let mut alike = 0;
    for service in twice.names() {
        let cells = |table: &Table<'d>| {
            Some((table.cell(service, "default")?, table.cell(service, "best published law")?))
        };
        let ((ours, theirs), (ours_tenfold, theirs_tenfold)) = (cells(&twice)?, cells(&tenfold)?);
        if near(ours, theirs)? && near(ours_tenfold, theirs_tenfold)? {
            alike += 1;
            continue;
        }
        let (best, best_tenfold) = (law(theirs), law(theirs_tenfold));
        let (p99, p99_of_best) = (latency.cell(service, DEFAULT.name)?, latency.cell(service, best)?);
        let [ours, theirs, ours_tenfold, theirs_tenfold] =
            [ours, theirs, ours_tenfold, theirs_tenfold].map(mean);
        let _ = writeln!(
            text,
            "| {service} | {ours}, {ours_tenfold} | {best} {theirs}, {best_tenfold} {theirs_tenfold} | {p99}, {p99_of_best} |"
        );
    }
    let _ = writeln!(text, "| {alike} more | differ by less than {NEAR} | | |");
    Some(text)
}

/// The difference of two shares from which on a service has a row of its own.
const NEAR: f64 = 0.01;

fn near(one: &str, other: &str) -> Option<bool> {
    let (one, other): (f64, f64) = (mean(one).parse().ok()?, mean(other).parse().ok()?);
    Some((one - other).abs() < NEAR)
}

/// Returns the mean of a cell such as `0.996 ± 0.001 Envoy`.
fn mean(cell: &str) -> &str {
    cell.split(' ').next().unwrap_or_default()
}

fn law(cell: &str) -> &str {
    cell.rsplit(' ').next().unwrap_or_default()
}
