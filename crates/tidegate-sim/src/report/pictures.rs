//! The pictures of a replay: the load or, with several runs, the denials of each; and the peaks of each policy's
//! keys.

use std::time::Duration;

use super::guards::{self, would_deny};
use crate::chart::{
    Chart, ChartError, Curve, Level, OverTime, Panel, Panels, PeakOfKey, PeaksByRank, TimeAxis,
};
use crate::replay::{ADMITTED, DENIED, Granted, OFFERED, Outcome, PolicyOutcome, Replay, share};
use crate::units::{grouped, percent};

/// The file format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Scalable, with selectable text, in the reader's light or dark scheme.
    Svg,
    /// Pixels in the light scheme, for programs that cannot show SVG.
    Png,
}

impl Form {
    /// Returns the file name extension: `svg` or `png`.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }
}

/// A picture, with the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The name, without path: `load.svg`.
    pub name: String,
    /// The contents of the file.
    pub bytes: Vec<u8>,
}

impl Picture {
    fn draw(stem: &str, chart: &dyn Chart, form: Form) -> Result<Self, ChartError> {
        let bytes = match form {
            Form::Svg => chart.svg()?.into_bytes(),
            Form::Png => chart.png()?,
        };
        Ok(Self { name: format!("{stem}.{}", form.ending()), bytes })
    }
}

/// Draws the load or, with several runs, the denials of each; then the figures of guards, if a run has any; then the
/// peaks of each policy's keys.
///
/// # Errors
/// [`ChartError`] if the drawing library fails.
pub fn pictures(replay: &Replay, form: Form) -> Result<Vec<Picture>, ChartError> {
    let outcomes = replay.outcomes();
    let mut out = vec![over_time(replay, &outcomes, |stem, chart| Picture::draw(stem, chart, form))?];
    if let Some(tracks) = guards::tracks(replay, &outcomes) {
        out.push(Picture::draw("guards", &tracks, form)?);
    }
    let Some(first) = outcomes.first() else { return Ok(out) };
    for (row, policy) in keyed(first) {
        let Some(peaks) = Peaks::of(replay, row, policy) else { continue };
        out.push(Picture::draw(&format!("peaks-{}", file_name(&policy.name)), &peaks.chart(), form)?);
    }
    Ok(out)
}

/// Draws the figures of guards, if a run has any, otherwise the first of [`pictures`].
///
/// # Errors
/// [`ChartError`] if the drawing library fails.
pub fn first_picture(replay: &Replay, form: Form) -> Result<Picture, ChartError> {
    let outcomes = replay.outcomes();
    match guards::tracks(replay, &outcomes) {
        Some(tracks) => Picture::draw("guards", &tracks, form),
        None => over_time(replay, &outcomes, |stem, chart| Picture::draw(stem, chart, form)),
    }
}

/// Passes the chart over time, with its file name, to `draw`.
pub(super) fn over_time<T>(
    replay: &Replay,
    outcomes: &[Outcome],
    draw: impl FnOnce(&str, &dyn Chart) -> T,
) -> T {
    let [only] = outcomes else { return compared(replay, outcomes, draw) };
    let axis = axis(replay);
    let lane = |name: &str, lane| replay.series(0).map(|series| Curve::averages(name, series, lane));
    let mut curves: Vec<Curve> =
        [lane("admitted", ADMITTED), lane("denied", DENIED)].into_iter().flatten().collect();
    let mut unit = "requests per second".to_owned();
    if let Some(series) = replay.series(0) {
        let step = window_words(series.width());
        if series.width() > series.resolution() {
            let within = window_words(series.resolution());
            curves.push(Curve::peaks(format!("offered in the highest {within}"), series, OFFERED));
            unit += &format!(": the average of each step of {step}, and the highest {within} within it");
        } else {
            unit += &format!(", in steps of one {step}");
        }
    }
    // Last, so that the other curves keep their looks.
    curves.extend(would_deny(replay, 0, only));
    let chart = OverTime {
        title: "Offered and admitted",
        unit: &unit,
        axis,
        area: lane("offered", OFFERED),
        curves,
        limit: shared_limit(only),
    };
    draw("load", &chart)
}

/// Denials of several runs, and their differences from the first.
fn compared<T>(replay: &Replay, outcomes: &[Outcome], draw: impl FnOnce(&str, &dyn Chart) -> T) -> T {
    let highest = |run| {
        let series = replay.series(run).filter(|series| series.width() > series.resolution())?;
        let name = format!("denied in the highest {}", window_words(series.resolution()));
        Some(Curve::peaks(name, series, DENIED))
    };
    let panel = |(run, outcome): (usize, &Outcome)| {
        let denied = Curve::averages(outcome.name.as_str(), replay.series(run)?, DENIED);
        let difference = match (run, outcome.denied.cmp(&outcomes[0].denied)) {
            (0, _) => "below: each, less this one".to_owned(),
            (_, std::cmp::Ordering::Equal) => "as many".to_owned(),
            (_, std::cmp::Ordering::Greater) => {
                format!("{} more", grouped(outcome.denied - outcomes[0].denied))
            }
            (_, std::cmp::Ordering::Less) => format!("{} less", grouped(outcomes[0].denied - outcome.denied)),
        };
        let share = percent(share(outcome.denied, outcome.requests));
        let hit = outcome.keys_hit();
        let keys = if hit == 1 { "key" } else { "keys" };
        let measured = match outcome.shadow_denied {
            0 => String::new(),
            would => format!(", {} would be (shadow)", grouped(would)),
        };
        let name = format!(
            "{}: {} denied ({share}){measured}, {} {keys} hit",
            outcome.name,
            grouped(outcome.denied),
            grouped(hit)
        );
        Some(Panel {
            name,
            difference,
            denied,
            would_deny: would_deny(replay, run, outcome),
            highest: highest(run),
        })
    };
    let step = replay.series(0).map_or(String::new(), |series| {
        let step = window_words(series.width());
        if series.width() > series.resolution() {
            let within = window_words(series.resolution());
            format!(": the average of each step of {step}, and the highest {within} within it")
        } else {
            format!(", in steps of one {step}")
        }
    });
    let chart = Panels {
        title: "What each algorithm denies of the same requests",
        unit: &format!("requests per second{step}"),
        axis: axis(replay),
        panels: outcomes.iter().enumerate().filter_map(panel).collect(),
    };
    draw("compare", &chart)
}

/// Returns the rows of an outcome that have keys and matched requests, with their positions.
pub(super) fn keyed(outcome: &Outcome) -> impl Iterator<Item = (usize, &PolicyOutcome)> {
    let rows = outcome.policies.iter().enumerate();
    rows.filter(|(_, policy)| !policy.by.is_empty() && policy.matched > 0)
}

pub(super) struct Peaks {
    title: String,
    unit: String,
    pub(super) keys: Vec<PeakOfKey>,
    of: crate::peaks::Distinct,
    pub(super) level: Option<Level>,
    only_measures: bool,
}

impl Peaks {
    pub(super) fn of(replay: &Replay, row: usize, policy: &PolicyOutcome) -> Option<Self> {
        let peaks = replay.policy_peaks(0, row)?;
        let ranking = peaks.ranking();
        let keys = ranking.iter().map(|key| PeakOfKey { peak: key.peak, is_hit: key.denied > 0 }).collect();
        let window = window_words(peaks.window());
        Some(Self {
            title: format!("{}: the busiest {window} of each {}", policy.name, policy.by.join(" and ")),
            unit: format!("units in its busiest {window}"),
            keys,
            of: policy.keys,
            level: replay.granted(0, row).map(|granted| level(granted, &window)),
            only_measures: policy.mode == "shadow",
        })
    }

    pub(super) fn chart(&self) -> PeaksByRank<'_> {
        PeaksByRank {
            title: &self.title,
            unit: &self.unit,
            keys: &self.keys,
            of: self.of,
            level: self.level.clone(),
            only_measures: self.only_measures,
        }
    }
}

fn level(granted: &Granted, window: &str) -> Level {
    let most = if granted.has_exceptions { ", tiers apart" } else { "" };
    let name = format!("{} grants at most {} in any {window}{most}", granted.limit, grouped(granted.units));
    Level { name, value: granted.units as f64 }
}

/// Characters unsuited for file names are replaced.
fn file_name(name: &str) -> String {
    name.chars().map(|char| if char.is_alphanumeric() || char == '-' { char } else { '_' }).collect()
}

/// A limit for all requests together, per second. Limits per key cannot be drawn over the load.
fn shared_limit(outcome: &Outcome) -> Option<Level> {
    let shared =
        outcome.policies.iter().filter(|policy| policy.by.is_empty() && policy.matched == outcome.requests);
    let shared = shared.filter(|policy| policy.shadow_limit_of.is_none());
    let levels = shared.filter_map(|policy| {
        let rate = crate::replay::written_rate(policy.limits.first()?)?;
        let tidegate::policy::WrittenRate::Per { count, .. } = rate else { return None };
        let value = count as f64 / rate.period()?.as_secs_f64();
        Some(Level { name: format!("{}: {}", policy.name, policy.limits[0]), value })
    });
    levels.min_by(|a, b| a.value.total_cmp(&b.value))
}

/// Returns how times are written: as dates if the requests came from a log.
pub(super) fn axis(replay: &Replay) -> TimeAxis {
    if replay.is_recorded() { TimeAxis::Utc } else { TimeAxis::Elapsed }
}

/// Writes a window in words: `second`, `10 minutes`.
pub(super) fn window_words(window: Duration) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let seconds = window.as_secs();
    match units
        .into_iter()
        .find(|(length, _)| seconds > 0 && seconds.is_multiple_of(*length) && window.subsec_nanos() == 0)
    {
        Some((length, unit)) if seconds == length => unit.to_owned(),
        Some((length, unit)) => format!("{} {unit}s", seconds / length),
        None => format!("{} ms", window.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_no_paths() {
        assert_eq!(file_name("a/../b c"), "a____b_c");
    }

    #[test]
    fn windows_in_words() {
        let words = [1, 60, 600, 90, 86_400].map(|seconds| window_words(Duration::from_secs(seconds)));
        assert_eq!(words, ["second", "minute", "10 minutes", "90 seconds", "day"]);
        assert_eq!(window_words(Duration::from_millis(200)), "200 ms");
    }
}
