//! Draws the picture of a run.

use std::time::Duration;

use tidegate::Tick;
use tidegate_sim::chart::{Band, Chart as _, Curve, Height, TimeAxis, Track, Tracks};

use super::load::{Asked, Load, Seen};
use super::stand::Engine;
use super::verdict::{BURST, PER_SECOND, Phases};

/// The length of one step of the curves.
const STEP: Duration = Duration::from_millis(500);

pub(crate) fn draw(engine: Engine, load: Load, seen: &Seen, phases: Phases) -> String {
    let end = Tick::EPOCH.after(phases.end);
    let steps: Vec<Tick> = (0..).map(|n| Tick::EPOCH.after(STEP * n)).take_while(|at| *at < end).collect();
    let curve = |name: &str, value: &dyn Fn(Tick) -> f64| Curve {
        name: name.to_owned(),
        end,
        steps: steps.iter().map(|at| (*at, value(*at))).collect(),
    };
    let admitted = |from: Tick, which: &dyn Fn(&Asked) -> bool| {
        let until = from.after(STEP);
        let these = seen.asked.iter().filter(|asked| asked.at >= from && asked.at < until && which(asked));
        these.filter(|asked| asked.status == 200).count() as f64 / STEP.as_secs_f64()
    };
    let so_far = |until: Tick| {
        seen.asked.iter().filter(|asked| asked.status == 200 && asked.at < until).count() as f64
    };
    let ideal = |until: Tick| {
        let seconds = until.since(Tick::EPOCH).as_secs_f64();
        (f64::from(load.per_second) * seconds).min(BURST as f64 + f64::from(PER_SECOND) * seconds)
    };
    let flat =
        |name: &str, value: f64| Curve { name: name.to_owned(), end, steps: vec![(Tick::EPOCH, value)] };
    let [dies, back] = [phases.dies, phases.back].map(|at| Tick::EPOCH.after(at));
    let in_use = back.after(seen.in_use_after);
    let band = |height, from, until| Band { height, from, until };
    let chart = Tracks {
        title: &format!("Two nodes, one limit of {PER_SECOND} a second, {} killed and back", engine.name()),
        axis: TimeAxis::Elapsed,
        tracks: vec![
            Track::Curves {
                name: "requests per second".to_owned(),
                area: Some(flat("asked", f64::from(load.per_second))),
                curves: vec![
                    curve("admitted", &|at| admitted(at, &|_| true)),
                    curve("by the first node", &|at| admitted(at, &|asked| asked.node == 0)),
                    curve("by the second", &|at| admitted(at, &|asked| asked.node == 1)),
                ],
                limit: Some(flat("limit", f64::from(PER_SECOND))),
            },
            Track::Curves {
                name: "admitted since the beginning".to_owned(),
                area: None,
                curves: vec![curve("by the two nodes", &|at| so_far(at.after(STEP)))],
                limit: Some(curve("one limit", &|at| ideal(at.after(STEP)))),
            },
            Track::Curves {
                name: "of those, beyond one limit".to_owned(),
                area: None,
                curves: vec![curve("by the two nodes", &|at| {
                    (so_far(at.after(STEP)) - ideal(at.after(STEP))).max(0.0)
                })],
                limit: Some(flat("two bursts", 2.0 * BURST as f64)),
            },
            Track::Bands {
                name: engine.name().to_owned(),
                words: ["in use", "starting", "gone"],
                bands: vec![
                    band(Height::Low, Tick::EPOCH, dies),
                    band(Height::High, dies, back),
                    band(Height::Middle, back, in_use),
                    band(Height::Low, in_use, end),
                ],
            },
        ],
    };
    chart.svg().unwrap()
}
