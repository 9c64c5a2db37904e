//! The chart of a run's guards. With several runs: the same measures, with a curve for each run.

use maud::{Markup, html};
use tidegate::{Tick, visible};

use super::pictures::{axis, window_words};
use crate::chart::{Band, Curve, Height, TimeAxis, Track, Tracks};
use crate::peaks::{Distinct, KeyDetail, PathCount};
use crate::replay::{
    ADMITTED, BreakerBand, BreakerState, DENIED, GuardLimit, Guards, OFFERED, Outcome, PeakRate,
    PolicyOutcome, Replay, WOULD_DENY,
};
use crate::series::{Levels, Series, Served};
use crate::units::grouped;

const MOST_RUNS: usize = 6;

/// Returns the tracks of the guards of all runs; `None` if their policies have none.
pub(super) fn tracks(replay: &Replay, outcomes: &[Outcome]) -> Option<Tracks<'static>> {
    match outcomes {
        [only] => of_one(replay, only),
        runs => of_several(replay, runs),
    }
}

/// What policies in shadow mode would deny in a run; `None` if nothing.
pub(super) fn would_deny(replay: &Replay, run: usize, outcome: &Outcome) -> Option<Curve> {
    let series = replay.series(run).filter(|_| outcome.shadow_denied > 0)?;
    Some(Curve::averages("admitted, would be denied (shadow)", series, WOULD_DENY))
}

fn of_one(replay: &Replay, outcome: &Outcome) -> Option<Tracks<'static>> {
    let run = 0;
    let (series, guards) = (replay.series(run)?, replay.guards(run)?);
    let offered = Curve::averages("offered", series, OFFERED);
    let (start, end) = span(&offered, guards);
    let step = step_words(series);
    let mut tracks = vec![Track::Curves {
        name: format!("requests per second, in steps of {step}"),
        area: Some(offered),
        curves: [Curve::averages("admitted", series, ADMITTED), Curve::averages("denied", series, DENIED)]
            .into_iter()
            .chain(would_deny(replay, run, outcome))
            .collect(),
        limit: None,
    }];
    let places = |guard: &&GuardLimit| guard.breakers.is_none();
    for guard in guards.limits().iter().filter(places) {
        tracks.push(in_flight(replay, outcome, guard, end));
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
        let named = policy_name(replay, run, guard);
        tracks.extend(states(&named, guard, (start, end)));
    }
    Some(Tracks { title: "What the guards did", axis: axis(replay), tracks })
}

fn of_several(replay: &Replay, outcomes: &[Outcome]) -> Option<Tracks<'static>> {
    let drawn = &outcomes[..outcomes.len().min(MOST_RUNS)];
    let runs = || drawn.iter().enumerate();
    let series = replay.series(0)?;
    let offered = Curve::averages("offered", series, OFFERED);
    let guarded = || runs().filter_map(move |(run, _)| replay.guards(run));
    let spans: Vec<_> = guarded().map(|guards| span(&offered, guards)).collect();
    let (start, end) = spans.into_iter().reduce(|one, other| (one.0, one.1.max(other.1)))?;
    let window = guarded().next().map(|guards| window_words(guards.served.width()))?;
    let mut tracks = Vec::new();
    // So that each run has the same colour on all tracks.
    let mut track = |name: &str, area: Option<Curve>, curve: &dyn Fn(usize, &Outcome) -> Option<Curve>| {
        let none = |outcome: &Outcome| Curve { name: outcome.name.clone(), steps: Vec::new(), end };
        let curves: Vec<Curve> =
            runs().map(|(run, outcome)| curve(run, outcome).unwrap_or_else(|| none(outcome))).collect();
        if curves.iter().any(|curve| !curve.steps.is_empty()) {
            tracks.push(Track::Curves { name: name.to_owned(), area, curves, limit: None });
        }
    };
    let mut name = format!("denied per second, in steps of {}", step_words(series));
    if drawn.len() < outcomes.len() {
        name += &format!(", of the first {} of {} runs", drawn.len(), outcomes.len());
    }
    track(&name, Some(offered), &|run, outcome| {
        Some(Curve::averages(outcome.name.as_str(), replay.series(run)?, DENIED))
    });
    track("would be denied per second (shadow)", None, &|run, outcome| {
        let curve = would_deny(replay, run, outcome)?;
        Some(Curve { name: outcome.name.clone(), ..curve })
    });
    track("in flight", None, &|run, outcome| {
        Some(Curve::levels(outcome.name.as_str(), &replay.guards(run)?.in_flight, end))
    });
    track("limit of requests in flight", None, &|run, outcome| {
        let limits = replay.guards(run)?.limits();
        let mut places = limits.iter().filter(|guard| guard.breakers.is_none());
        let only = places.next().filter(|_| places.next().is_none())?;
        let one = is_of_one_key(replay, run, outcome, only);
        one.then(|| Curve::levels(outcome.name.as_str(), &only.at_most, end))
    });
    track("waiting, held back by a limit", None, &|run, outcome| {
        let waiting = &replay.guards(run)?.waiting;
        (waiting.most() > 0).then(|| Curve::levels(outcome.name.as_str(), waiting, end))
    });
    track(&format!("service time in ms at p99, by the {window} of the end"), None, &|run, outcome| {
        percentile(&outcome.name, &replay.guards(run)?.served, 99)
    });
    for (run, outcome) in runs() {
        let limits = replay.guards(run).map(Guards::limits).into_iter().flatten();
        tracks.extend(limits.filter_map(|guard| states(&outcome.name, guard, (start, end))));
    }
    Some(Tracks {
        title: "What the guards of each run did with the same requests",
        axis: axis(replay),
        tracks,
    })
}

/// Returns the span from the first request to the end of the last measure.
fn span(offered: &Curve, guards: &Guards) -> (Tick, Tick) {
    let levels_end = |levels: &Levels| levels.points().last().map(|(at, _)| at.after(levels.width()));
    let ends = [levels_end(&guards.in_flight), guards.served.end()];
    // The last bin of the rate usually reaches beyond what follows the last request.
    let end = ends.into_iter().flatten().chain([offered.end]).max().unwrap_or(Tick::EPOCH);
    (offered.steps.first().map_or(Tick::EPOCH, |(at, _)| *at), end)
}

fn step_words(series: &Series) -> String {
    let width = window_words(series.width());
    if width.starts_with(|first: char| first.is_ascii_digit()) { width } else { format!("one {width}") }
}

fn in_flight(replay: &Replay, outcome: &Outcome, guard: &GuardLimit, end: Tick) -> Track {
    let named = policy_name(replay, 0, guard);
    let at_most = guard.at_most_words();
    let (of, limit) = if is_of_one_key(replay, 0, outcome, guard) {
        (String::new(), Some(Curve::levels(format!("limit {at_most}"), &guard.at_most, end)))
    } else {
        (format!(", all keys together, each at most {at_most}"), None)
    };
    Track::Curves {
        name: format!("{named}: in flight{of}"),
        area: None,
        curves: vec![Curve::levels("requests", &guard.in_flight, end)],
        limit,
    }
}

/// Says whether the guard had a single limit: keyed guards have one for each key.
fn is_of_one_key(replay: &Replay, run: usize, outcome: &Outcome, guard: &GuardLimit) -> bool {
    let row = |name: &str| outcome.policies.iter().find(|row| row.name == name);
    let keys = replay.policy_name(run, guard.policy).and_then(row).map(|row| row.keys);
    !guard.is_keyed || keys == Some(Distinct::Exactly(1))
}

fn service_times(served: &Served) -> Option<Track> {
    Some(Track::Curves {
        name: format!("service time in ms, by the {} of leaving", window_words(served.width())),
        area: None,
        curves: vec![percentile("median", served, 50)?, percentile("p99", served, 99)?],
        limit: None,
    })
}

/// Returns the curve of a percentile of the durations, in milliseconds; `None` if no request has left.
fn percentile(name: &str, served: &Served, percent: u32) -> Option<Curve> {
    let end = served.end()?;
    let at = |(at, times): (Tick, &crate::series::Times)| {
        (at, times.percentile(percent).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3))
    };
    Some(Curve { name: name.to_owned(), steps: served.points().map(at).collect(), end })
}

fn states(named: &str, guard: &GuardLimit, (from, until): (Tick, Tick)) -> Option<Track> {
    let breakers = guard.breakers.as_ref()?;
    let (key, bands) = breakers.first(from, until)?;
    let mut name = format!("{named}: breaker");
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
            BreakerState::HalfOpen | BreakerState::Shedding => Height::Middle,
            BreakerState::Open => Height::High,
        },
        from: band.from,
        until: band.until,
    };
    let middle = if guard.sheds { "shedding" } else { "half-open" };
    let bands = bands.into_iter().map(height).collect();
    Some(Track::Bands { name, words: ["closed", middle, "open"], bands })
}

fn policy_name(replay: &Replay, run: usize, guard: &GuardLimit) -> String {
    replay.policy_name(run, guard.policy).map_or_else(|| guard.label.clone(), str::to_owned)
}

/// The keys that the policies of the first run hit, most denied first, at most `most` for each.
pub(super) fn tables(
    replay: &Replay,
    policies: &[PolicyOutcome],
    axis: TimeAxis,
    start: Tick,
    most: usize,
) -> Markup {
    let keyed =
        policies.iter().enumerate().filter(|(_, policy)| !policy.by.is_empty() && policy.keys_hit > 0);
    html! {
        @for (row, policy) in keyed {
            @if let Some(peaks) = replay.policy_peaks(0, row) {
                @let hit = peaks.hit(most, |_| true);
                @let is_shadow = policy.mode == "shadow";
                h3 { @if is_shadow { "Keys that " (policy.name) " would hit (shadow)" } @else { "Keys hit by " (policy.name) } }
                p {
                    (grouped(policy.keys_hit)) " of " (policy.keys) " keys"
                    @if (hit.len() as u64) < policy.keys_hit {
                        "; the " (grouped(hit.len() as u64)) " that " @if is_shadow { "would be" } @else { "were" } " denied most"
                    }
                    "."
                }
                div class="wide" { (table(&hit, peaks.window(), axis, start, replay.names_users(), is_shadow)) }
                @if hit.iter().any(KeyDetail::is_floor) {
                    p class="quiet" { "≥ marks lower bounds: the key was forgotten for a while." }
                }
                @if !peaks.is_exact() {
                    p class="bad" { "There were more keys than are remembered: some keys with few requests may be missing." }
                }
            }
        }
    }
}

fn table(
    hit: &[KeyDetail],
    window: std::time::Duration,
    axis: TimeAxis,
    start: Tick,
    names_users: bool,
    is_shadow: bool,
) -> Markup {
    let denied = if is_shadow { "Would be denied" } else { "Denied" };
    html! {
        table {
            thead { tr {
                th { "Key" } th class="n" { "Requests" } th class="n" { (denied) } th class="n" { "Peak" } th { "Signed in" }
                th { "First deny" } th { "Most frequent paths" }
            } }
            tbody {
                @for key in hit {
                    @let least = if key.is_floor() { "≥ " } else { "" };
                    tr {
                        td { code { (visible::name(&key.peak.key)) } }
                        td class="n" { @if let Some(requests) = key.requests { (least) (grouped(requests)) } }
                        td class={ "n" @if !is_shadow { " bad" } } { (least) (grouped(key.peak.denied)) }
                        td class="n" { (PeakRate { count: key.peak.peak, window }.grouped()) }
                        td { (yes_or_no(key.signed_in, names_users)) }
                        td { @if let Some(at) = key.peak.first_denied { (axis.label(at, start)) } }
                        td class="names" { (paths(&key.paths)) }
                    }
                }
            }
        }
    }
}

/// Says whether a key signed in; `?` if the log names no users.
pub(super) fn yes_or_no(signed_in: bool, names_users: bool) -> &'static str {
    match (names_users, signed_in) {
        (false, _) => "?",
        (true, true) => "yes",
        (true, false) => "no",
    }
}

/// Formats paths in one line: `/items/* 700, / at least 12`.
pub(super) fn paths(paths: &[PathCount]) -> String {
    let shown = paths.iter().map(|path| {
        let least = if path.is_exact { "" } else { "at least " };
        format!("{} {least}{}", path.path, grouped(path.requests))
    });
    shown.collect::<Vec<_>>().join(", ")
}
