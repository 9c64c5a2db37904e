//! The byte form of cells in every format so far, checked against a fixture: all later versions read what one version
//! wrote.
//!
//! Each line is a case, a cell in hexadecimal digits, and its limit four seconds after the start: limit, remaining,
//! debt. A line in the fixture is never changed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

use std::sync::Arc;

use tidegate::store::{Cell, Charge, Op, Step, execute};
use tidegate_core::bytes::{DecodeError, FORMAT};
use tidegate_core::{Algorithm, Cost, Quota, Tick};

const FIXTURE: &str = include_str!("../fixtures/cells-format-1.txt");
const START: Tick = Tick::from_secs(1_600_000_000);
const LATER: Tick = Tick::from_secs(1_600_000_004);

/// A cell of each form, written by a charge, and by a reset while the charge could still be settled.
fn cells() -> Vec<(&'static str, Cell)> {
    let per_minute = |count| Quota::per_minute(count);
    let quotas = [
        ("gcra", per_minute(7).burst(5).gcra()),
        ("window", per_minute(5).fixed_window()),
        ("log", per_minute(5).sliding_log()),
    ];
    let mut all = Vec::new();
    for (name, quota) in quotas {
        let quota = Arc::new(quota.unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::new(3).unwrap())];
        let mut cells = [None];
        execute(&Step::new(START, Op::Take, &charges), &mut cells);
        all.push((name, cells[0].clone().unwrap()));
        execute(&Step::new(START, Op::Reset, &charges), &mut cells);
        all.push(("reset", cells[0].clone().unwrap()));
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn standing(cell: &Cell) -> String {
    let standing = cell.quota.standing(&cell.state, LATER);
    format!("{} {} {}", standing.limit, standing.remaining, standing.debt)
}

#[test]
fn every_format_is_read_as_the_cell_that_was_written() {
    let fixed: Vec<&str> = FIXTURE.lines().filter(|line| !line.starts_with('#')).collect();
    let cells = cells();
    let line = |(name, cell): &(&str, Cell)| format!("{name} {} {}", hex(&cell.encode()), standing(cell));
    let written: Vec<String> = cells.iter().map(line).collect();
    if FORMAT == 1 {
        assert_eq!(fixed, written, "the fixture should read:\n{}", written.join("\n"));
    }
    assert_eq!(fixed.len(), cells.len());
    for (line, (name, cell)) in fixed.iter().zip(&cells) {
        let (case, rest) = line.split_once(' ').unwrap();
        let (form, numbers) = rest.split_once(' ').unwrap();
        assert_eq!((case, Cell::decode(&bytes(form)).as_ref()), (*name, Ok(cell)));
        assert_eq!(numbers, standing(cell), "{case}");
    }
}

#[test]
fn a_cell_from_the_future_is_named() {
    let mut form = cells()[0].1.encode();
    form[0] = FORMAT + 1;
    let error = Cell::decode(&form).unwrap_err();
    assert_eq!(error, DecodeError::Version { version: FORMAT + 1 });
    let told = format!("format version {} is not known; this build reads up to {FORMAT}", FORMAT + 1);
    assert_eq!(error.to_string(), told);
}
