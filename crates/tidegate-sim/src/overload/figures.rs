//! The figures of the manual: tables as Markdown, curves as SVG, made anew by one command.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate::Tick;

use super::backend::{self, Backend};
use super::controllers::{self, Controller, DEFAULT, NONE, PARTS, PUBLISHED, RIGHT};
use super::ideal::ideal;
use super::load::{Load, Retries};
use super::meter::{Measured, STEP};
use super::scenario::{Chain, OVERLOAD, Score, overload, overload_load};
use super::world::{Service, run};
use crate::chart::{Chart, ChartError, Curve, OverTime, TimeAxis};

/// Over how many seeds figures are taken, unless chance asks for more.
pub const SEEDS: u64 = 3;

/// The service by which the laws are drawn one by one: its capacity falls, rises and falls again.
const STEPS: &str = "capacity steps";

/// Over which seeds the default is compared with the best published law: other ones than anything was chosen by.
pub const UNSEEN_SEEDS: RangeInclusive<u64> = 1001..=1012;

/// Returns the page of tables.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Overload: the figures\n\n\
         Made by `cargo run --release -p tidegate-sim --example overload`; what they mean stands in [overload](overload.md). Goodput is \
         good answers in time over the ideal, p99 in milliseconds.\n",
    );
    let all = controllers::all();
    let table = backend::table();
    for times in [2.0, 10.0] {
        let rows = scores(&table, &all, times);
        heading(&mut page, &format!("Goodput at {times} times the capacity"), &all);
        write_rows(&mut page, &rows, |score| format!("{:.2}", score.goodput));
        heading(&mut page, &format!("p99 at {times} times the capacity"), &all);
        write_rows(&mut page, &rows, |score| score.p99.as_millis().to_string());
    }
    beside_the_best(&mut page, &table);
    let few = [DEFAULT, NONE, RIGHT];
    for (times, name) in [(0.5, "Goodput at half the capacity"), (1.0, "Goodput at the capacity")] {
        heading(&mut page, name, &few);
        write_rows(&mut page, &scores(&table, &few, times), |score| format!("{:.2}", score.goodput));
    }
    let unseen = [backend::held_back(), backend::varied()].concat();
    let peers = [&[DEFAULT][..], &PUBLISHED].concat();
    for times in [2.0, 10.0] {
        heading(
            &mut page,
            &format!("Services that nothing was tuned by, at {times} times the capacity"),
            &peers,
        );
        write_rows(&mut page, &scores(&unseen, &peers, times), |score| format!("{:.2}", score.goodput));
    }
    scenarios(&mut page);
    one_by_one(&mut page);
    page
}

fn heading(page: &mut String, title: &str, controllers: &[Controller]) {
    let names = controllers.iter().map(|controller| controller.name).collect::<Vec<_>>().join(" | ");
    let rule = "---:|".repeat(controllers.len());
    let _ = write!(page, "\n## {title}\n\n| service | {names} |\n|---|{rule}\n");
}

fn write_rows(page: &mut String, rows: &[(String, Vec<Score>)], cell: impl Fn(&Score) -> String) {
    for (name, scores) in rows {
        let cells = scores.iter().map(&cell).collect::<Vec<_>>().join(" | ");
        let _ = writeln!(page, "| {name} | {cells} |");
    }
}

/// Judges each controller on each service.
fn scores(backends: &[Backend], controllers: &[Controller], times: f64) -> Vec<(String, Vec<Score>)> {
    scores_over(1..=SEEDS, backends, controllers, times)
}

/// The same over other seeds, on all processors.
fn scores_over(
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

/// Writes the default beside the published law that is best on each service, and by how many standard errors they differ.
fn beside_the_best(page: &mut String, table: &[Backend]) {
    let peers = [&[DEFAULT][..], &PUBLISHED].concat();
    for times in [2.0, 10.0] {
        let _ = write!(
            page,
            "\n## The default and the best published law, over {} other seeds, at {times} times the capacity\n\n\
             Means with their standard errors. Less is said where the best law has more by two standard errors of the difference or more.\n\n\
             | service | default | best published law | |\n|---|---:|---:|---|\n",
            UNSEEN_SEEDS.count()
        );
        for (name, scores) in scores_over(UNSEEN_SEEDS, table, &peers, times) {
            let Some((default, published)) = scores.split_first() else { continue };
            let laws = published.iter().zip(&PUBLISHED);
            let Some((best, law)) = laws.max_by(|(a, _), (b, _)| a.goodput.total_cmp(&b.goodput)) else {
                continue;
            };
            let less = best.goodput - default.goodput >= 2.0 * default.error.hypot(best.error);
            let _ = writeln!(
                page,
                "| {name} | {:.3} ± {:.3} | {:.3} ± {:.3} {} | {} |",
                default.goodput,
                default.error,
                best.goodput,
                best.error,
                law.name,
                if less { "less" } else { "" }
            );
        }
    }
}

fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

fn scenarios(page: &mut String) {
    let all = [controllers::all(), PARTS.to_vec()].concat();
    for chain in [Chain::single(), Chain::of_three()] {
        let _ = write!(
            page,
            "\n## Spikes, levels and storms: {}\n\n\
             | protection | goodput at 2 × | at 10 × | back after a spike to 1.4 × | highest level in a twelvefold spike | lowest level \
             | storm of retries ends after | the same with a budget |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
            chain.name
        );
        let rows = side_by_side(&all, |controller| {
            let at = |times| chain.overload(controller, times, 1..=SEEDS);
            let levels = chain.levels(controller, 1..=SEEDS * 2);
            format!(
                "| {} | {:.2} | {:.2} | {} | {:.2} % | {:.0} % | {} | {} |\n",
                controller.name,
                at(2.0),
                at(10.0),
                span(chain.spike(controller, 1..=SEEDS * 10)),
                levels[3] * 100.0,
                levels[0] * 100.0,
                span(chain.storm(controller, None, 1..=SEEDS)),
                span(chain.storm(controller, Some(0.1), 1..=SEEDS)),
            )
        });
        page.extend(rows);
    }
}

fn span(span: Option<Duration>) -> String {
    span.map_or_else(|| "never".to_owned(), |span| format!("{} ms", span.as_millis()))
}

/// Writes what each law is, with its picture.
fn one_by_one(page: &mut String) {
    let _ = write!(
        page,
        "\n## The laws, one by one\n\nEach on *{STEPS}* at 2 times the capacity, beside the default.\n"
    );
    for law in PUBLISHED {
        let (name, about, file) = (law.name, law.about, law_picture(law.name));
        let _ = write!(page, "\n**{name}**: {about}.\n\n![goodput of {name}](../images/{file})\n");
    }
}

/// Returns the file name of a published law's picture.
pub(super) fn law_picture(name: &str) -> String {
    format!("overload-law-{}.svg", name.to_lowercase())
}

/// Returns the pictures, each with its file name.
///
/// # Errors
/// [`ChartError`], which drawing into memory does not give.
pub fn pictures() -> Result<Vec<(String, String)>, ChartError> {
    let [aimd, vegas, gradient, ..] = PUBLISHED;
    let together = [
        ("overload-lock-contention.svg", goodput("lock contention", 2.0, &[DEFAULT, aimd, vegas, gradient])?),
        ("overload-capacity-steps.svg", goodput(STEPS, 2.0, &[DEFAULT, aimd, vegas, gradient])?),
        ("overload-latency-shift.svg", goodput("latency shift", 2.0, &[DEFAULT, aimd, vegas, RIGHT])?),
        ("overload-limit.svg", limits(&[STEPS, "latency shift", "lock contention", "knee"], 2.0)?),
        ("overload-storm.svg", storm(&[DEFAULT, NONE, vegas])?),
    ];
    let each =
        PUBLISHED.iter().map(|law| Ok((law_picture(law.name), goodput(STEPS, 2.0, &[*law, DEFAULT])?)));
    together.into_iter().map(|(name, svg)| Ok((name.to_owned(), svg))).chain(each).collect()
}

/// Draws goodput over time against the ideal.
fn goodput(name: &str, times: f64, controllers: &[Controller]) -> Result<String, ChartError> {
    let Some(backend) = backend::table().into_iter().find(|backend| backend.name == name) else {
        return Ok(String::new());
    };
    let load = overload_load(backend.capacity(), times);
    let wide = STEP * 10;
    let steps = (0..(OVERLOAD.1.as_nanos() / wide.as_nanos()) as u32).map(|step| wide * step);
    let curve = |controller: &Controller| {
        let service = Service { backend: backend.clone(), front: (controller.protect)(&backend) };
        good_curve(controller.name, &run(vec![service], &load, 1), wide)
    };
    OverTime {
        title: &format!("{name}: goodput at {times} times the capacity"),
        unit: "good answers per second",
        axis: TimeAxis::Elapsed,
        area: Some(Curve {
            name: "ideal".to_owned(),
            steps: steps.map(|at| (tick(at), ideal(&backend, &load, at, at + wide))).collect(),
            end: tick(OVERLOAD.1),
        }),
        curves: controllers.iter().map(curve).collect(),
        limit: None,
    }
    .svg()
}

/// Draws the limit of the default over time.
fn limits(names: &[&str], times: f64) -> Result<String, ChartError> {
    let backends = backend::table().into_iter().filter(|backend| names.contains(&backend.name.as_str()));
    let curves = backends.map(|backend| {
        let load = overload_load(backend.capacity(), times);
        let service = Service { backend: backend.clone(), front: (DEFAULT.protect)(&backend) };
        let measured = run(vec![service], &load, 1);
        let steps = measured.limits.iter().enumerate();
        let steps = steps.map(|(step, limit)| (tick(STEP * step as u32), *limit as f64)).collect();
        Curve { name: backend.name, steps, end: tick(OVERLOAD.1) }
    });
    OverTime {
        title: &format!("The limit of the hill climb at {times} times the capacity"),
        unit: "places",
        axis: TimeAxis::Elapsed,
        area: None,
        curves: curves.collect(),
        limit: None,
    }
    .svg()
}

/// Draws a storm of retries on a chain of services.
fn storm(controllers: &[Controller]) -> Result<String, ChartError> {
    let chain = Chain::of_three().slowed();
    let load = Load {
        retries: Retries { attempts: 3, backoff: Duration::from_millis(50), budget: None },
        ..Load::steady(chain.capacity() * 0.8, OVERLOAD.1)
    };
    let curve =
        |controller: &Controller| good_curve(controller.name, &chain.run(controller, &load, 1), STEP * 10);
    OverTime {
        title: "Three services, every hop tries three times: 3 s of a slow last service",
        unit: "good answers per second",
        axis: TimeAxis::Elapsed,
        area: None,
        curves: controllers.iter().map(curve).collect(),
        limit: None,
    }
    .svg()
}

fn good_curve(name: &str, measured: &Measured, wide: Duration) -> Curve {
    let steps = (0..(OVERLOAD.1.as_nanos() / wide.as_nanos()) as u32).map(|step| wide * step);
    Curve {
        name: name.to_owned(),
        steps: steps.map(|at| (tick(at), measured.goodput(at, at + wide))).collect(),
        end: tick(OVERLOAD.1),
    }
}

fn tick(at: Duration) -> Tick {
    Tick::EPOCH.after(at)
}
