//! The tables of figures, computed on all processors and written as Markdown.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::super::backend::Backend;
use super::super::controllers::Controller;
use super::super::scenario::{Score, overload};

/// The number of seeds for each figure, unless a caller asks for others.
pub const SEEDS: u64 = 6;

pub(super) fn heading(page: &mut String, title: &str, controllers: &[Controller]) {
    let names = controllers.iter().map(|controller| controller.name).collect::<Vec<_>>().join(" | ");
    let rule = "---:|".repeat(controllers.len());
    let _ = write!(page, "\n## {title}\n\n| service | {names} |\n|---|{rule}\n");
}

pub(super) fn write_rows(page: &mut String, rows: &[(String, Vec<Score>)], cell: impl Fn(&Score) -> String) {
    for (name, scores) in rows {
        let cells = scores.iter().map(&cell).collect::<Vec<_>>().join(" | ");
        let _ = writeln!(page, "| {name} | {cells} |");
    }
}

/// Judges each controller on each service, with the usual seeds.
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
