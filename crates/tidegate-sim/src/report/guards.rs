//! The picture of the guards of a run: what was asked, who was in flight beside the limit, who waited, how long requests took, and the
//! states of breakers.

use tidegate::Tick;

use super::times::{axis, window_words};
use crate::chart::{Band, Curve, Height, Track, Tracks};
use crate::levels::Levels;
use crate::replay::{ADMITTED, BreakerBand, BreakerState, DENIED, OFFERED};
use crate::replay::{GuardLimit, Replay};
use crate::served::Served;

/// Returns the tracks of one run's guards; `None` where its policies have none.
pub(super) fn tracks(replay: &Replay, run: usize) -> Option<Tracks<'static>> {
    let (series, guards) = (replay.series(run)?, replay.guards(run)?);
    let offered = Curve::averages("offered", series, OFFERED);
    let levels_end = |levels: &Levels| levels.points().last().map(|(at, _)| at.after(levels.width()));
    let ends = [levels_end(&guards.in_flight), guards.served.end()];
    // The last bin of the rate is wider than what follows the last request, most often.
    let end = ends.into_iter().flatten().chain([offered.end]).max().unwrap_or(Tick::EPOCH);
    let start = offered.steps.first().map_or(Tick::EPOCH, |(at, _)| *at);
    let width = window_words(series.width());
    let step =
        if width.starts_with(|first: char| first.is_ascii_digit()) { width } else { format!("one {width}") };
    let mut tracks = vec![Track::Curves {
        name: format!("requests per second, in steps of {step}"),
        area: Some(offered),
        curves: vec![
            Curve::averages("admitted", series, ADMITTED),
            Curve::averages("denied", series, DENIED),
        ],
        limit: None,
    }];
    let places = |guard: &&GuardLimit| guard.breakers.is_none();
    for guard in guards.limits().iter().filter(places) {
        tracks.push(in_flight(replay, run, guard, end));
    }
    if !guards.limits().iter().any(|guard| places(&guard)) {
        tracks.push(Track::Curves {
            name: "in flight".to_owned(),
            area: None,
            curves: vec![Curve::levels("requests", &guards.in_flight, end)],
            limit: None,
        });
    }
    if guards.waiting.most() > 0 {
        tracks.push(Track::Curves {
            name: "waiting".to_owned(),
            area: None,
            curves: vec![Curve::levels("held back by a limit", &guards.waiting, end)],
            limit: None,
        });
    }
    tracks.extend(service_times(&guards.served));
    for guard in guards.limits() {
        tracks.extend(states(replay, run, guard, (start, end)));
    }
    Some(Tracks { title: "What the guards did", axis: axis(replay), tracks })
}

fn in_flight(replay: &Replay, run: usize, guard: &GuardLimit, end: Tick) -> Track {
    let named = policy_name(replay, run, guard);
    let at_most = guard.at_most.now();
    let (of, limit) = if guard.is_keyed {
        (format!(", all keys together, each at most {at_most}"), None)
    } else {
        (String::new(), Some(Curve::levels(format!("limit {at_most}"), &guard.at_most, end)))
    };
    Track::Curves {
        name: format!("{named}: in flight{of}"),
        area: None,
        curves: vec![Curve::levels("requests", &guard.in_flight, end)],
        limit,
    }
}

/// Returns the track of the percentiles of what requests took, in milliseconds.
fn service_times(served: &Served) -> Option<Track> {
    let end = served.end()?;
    let curve = |name: &str, percent| {
        let at = |(at, times): (Tick, &crate::served::Times)| {
            (at, times.percentile(percent).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3))
        };
        Curve { name: name.to_owned(), steps: served.points().map(at).collect(), end }
    };
    Some(Track::Curves {
        name: format!("service time in ms, by the {} of leaving", window_words(served.width())),
        area: None,
        curves: vec![curve("median", 50), curve("p99", 99)],
        limit: None,
    })
}

fn states(replay: &Replay, run: usize, guard: &GuardLimit, (from, until): (Tick, Tick)) -> Option<Track> {
    let breakers = guard.breakers.as_ref()?;
    let (key, bands) = breakers.first(from, until)?;
    let mut name = format!("{}: breaker", policy_name(replay, run, guard));
    if guard.is_keyed {
        name += &format!(" of {key}");
        let others = breakers.changed_keys().saturating_sub(1);
        if others > 0 {
            name += &format!(", the first of {} that changed", others + 1);
        }
    }
    let height = |band: BreakerBand| Band {
        height: match band.state {
            BreakerState::Closed => Height::Low,
            BreakerState::HalfOpen => Height::Middle,
            BreakerState::Open => Height::High,
        },
        from: band.from,
        until: band.until,
    };
    let bands = bands.into_iter().map(height).collect();
    Some(Track::Bands { name, words: ["closed", "half-open", "open"], bands })
}

fn policy_name(replay: &Replay, run: usize, guard: &GuardLimit) -> String {
    replay.policy_name(run, guard.policy).map_or_else(|| guard.label.clone(), str::to_owned)
}
