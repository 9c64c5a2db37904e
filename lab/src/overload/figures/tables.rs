//! The tables of figures: computed on all processors, written as data, and read again.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::super::backend::Backend;
use super::super::controllers::Controller;
use super::super::scenario::{Score, overload};

/// The seeds of each figure, unless a caller asks for others.
pub(crate) const SEEDS: u64 = 6;

pub(super) fn heading(data: &mut String, title: &str, controllers: &[Controller]) {
    let names = controllers.iter().map(|controller| controller.name).collect::<Vec<_>>().join("\t");
    let _ = write!(data, "\n# {title}\nservice\t{names}\n");
}

pub(super) fn write_rows(data: &mut String, rows: &[(String, Vec<Score>)], cell: impl Fn(&Score) -> String) {
    for (name, scores) in rows {
        let cells = scores.iter().map(&cell).collect::<Vec<_>>().join("\t");
        let _ = writeln!(data, "{name}\t{cells}");
    }
}

/// A table of the data. The first cell of each row is its name.
#[derive(Debug)]
pub(in super::super) struct Table<'d> {
    columns: Vec<&'d str>,
    rows: Vec<Vec<&'d str>>,
}

impl<'d> Table<'d> {
    pub(in super::super) fn of(data: &'d str, title: &str) -> Option<Self> {
        let (_, rest) = data.split_once(&format!("\n# {title}\n"))?;
        let lines = rest.lines().take_while(|line| !line.is_empty());
        let mut rows = lines.map(|line| line.split('\t').collect::<Vec<_>>());
        Some(Self { columns: rows.next()?, rows: rows.collect() })
    }

    pub(in super::super) fn cell(&self, row: &str, column: &str) -> Option<&'d str> {
        let row = self.rows.iter().find(|cells| cells.first() == Some(&row))?;
        row.get(self.place(column)?).copied()
    }

    pub(super) fn numbers(&self, column: &str) -> Vec<f64> {
        let Some(place) = self.place(column) else { return Vec::new() };
        self.rows.iter().filter_map(|row| row.get(place)?.parse().ok()).collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'d str> {
        self.rows.iter().filter_map(|row| row.first().copied())
    }

    fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| *name == column)
    }
}

pub(super) fn scores(
    backends: &[Backend],
    controllers: &[Controller],
    times: f64,
) -> Vec<(String, Vec<Score>)> {
    scores_over(1..=SEEDS, backends, controllers, times)
}

/// Judges each controller on each service with other seeds, on all processors.
pub(in super::super) fn scores_over(
    seeds: RangeInclusive<u64>,
    backends: &[Backend],
    controllers: &[Controller],
    times: f64,
) -> Vec<(String, Vec<Score>)> {
    side_by_side(backends, |backend| {
        let scores = controllers.iter().map(|controller| overload(backend, controller, times, seeds.clone()));
        (backend.name.clone(), scores.collect())
    })
}

pub(super) fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let each = items.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (items, done) in items.chunks(each).zip(done.chunks_mut(each)) {
            let work = &work;
            scope.spawn(move || {
                for (item, done) in items.iter().zip(done) {
                    *done = Some(work(item));
                }
            });
        }
    });
    done.into_iter().flatten().collect()
}
