//! Positions and labels of axis ticks: full minutes, months, round numbers.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::{Timestamp, ToSpan};
use tidegate::Tick;

/// How times on an axis are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeAxis {
    /// Dates and times in UTC, for recorded traffic.
    #[default]
    Utc,
    /// Time since the beginning, for generated traffic.
    Elapsed,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

/// The steps between time ticks, in seconds.
const STEPS: [u64; 23] = [
    1,
    2,
    5,
    10,
    15,
    30,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    5 * DAY,
    7 * DAY,
    10 * DAY,
    14 * DAY,
];

/// Seconds since the start, and the label.
pub(super) type TickMark = (f64, String);

impl TimeAxis {
    /// Places at most about `most` ticks between `start` and `end`.
    pub(super) fn ticks(self, start: Tick, end: Tick, most: usize) -> Vec<TickMark> {
        let span = end.since(start);
        let most = most.max(2) as f64;
        if span < Duration::from_secs(2) {
            return small(span, most);
        }
        let wanted = span.as_secs_f64() / most;
        match STEPS.iter().find(|step| **step as f64 >= wanted) {
            Some(step) => self.even(start, end, *step),
            None if self == Self::Elapsed => {
                self.even(start, end, (wanted / (10.0 * DAY as f64)).ceil() as u64 * 10 * DAY)
            }
            None => months(start, end, wanted),
        }
    }

    fn even(self, start: Tick, end: Tick, step: u64) -> Vec<TickMark> {
        const SECOND: u64 = 1_000_000_000;
        let origin = if self == Self::Utc { 0 } else { start.as_nanos() };
        let from = (start.as_nanos() - origin).div_ceil(step * SECOND);
        let to = (end.as_nanos() - origin) / (step * SECOND);
        let place = |number: u64| (origin + number * step * SECOND - start.as_nanos()) as f64 / 1e9;
        (from..=to)
            .map(|number| {
                let label = match self {
                    Self::Elapsed => elapsed(number * step),
                    Self::Utc => match date_time(Tick::from_secs(number * step)) {
                        at if step >= DAY => at.strftime("%-d %b").to_string(),
                        at if at.hour() == 0 && at.minute() == 0 && at.second() == 0 => {
                            at.strftime("%-d %b").to_string()
                        }
                        at if step >= MINUTE => at.strftime("%H:%M").to_string(),
                        at => at.strftime("%H:%M:%S").to_string(),
                    },
                };
                (place(number), label)
            })
            .collect()
    }

    /// The time zone and the days that the axis covers.
    pub(super) fn caption(self, start: Tick, end: Tick) -> String {
        if self == Self::Elapsed {
            return "time since the beginning".to_owned();
        }
        let (from, to) = (date_time(start), date_time(end));
        let day = |at: DateTime| at.strftime("%-d %B %Y").to_string();
        if from.date() == to.date() {
            format!("{}, UTC", day(from))
        } else {
            format!("{} to {}, UTC", day(from), day(to))
        }
    }

    /// A time for tables, to the second. UTC times include the date.
    #[must_use]
    pub(crate) fn label(self, at: Tick, start: Tick) -> String {
        match self {
            Self::Utc => date_time(at).strftime("%Y-%m-%d %H:%M:%S").to_string(),
            Self::Elapsed => elapsed(at.since(start).as_secs()),
        }
    }
}

/// Ticks end in 2554, long before the last civil time.
fn date_time(at: Tick) -> DateTime {
    let at = Timestamp::from_nanosecond(i128::from(at.as_nanos())).unwrap_or(Timestamp::MAX);
    at.to_zoned(jiff::tz::TimeZone::UTC).datetime()
}

fn small(span: Duration, most: f64) -> Vec<TickMark> {
    let marks = round(span.as_secs_f64() * 1e3, most as usize);
    marks.into_iter().map(|ms| (ms / 1e3, format!("{} ms", number(ms)))).collect()
}

fn elapsed(seconds: u64) -> String {
    let parts = [
        (seconds / DAY, "d"),
        (seconds % DAY / HOUR, "h"),
        (seconds % HOUR / MINUTE, "min"),
        (seconds % MINUTE, "s"),
    ];
    let shown: Vec<_> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n} {unit}")).collect();
    if shown.is_empty() { "0 s".to_owned() } else { shown.join(" ") }
}

/// Places ticks on the first days of months, quarters or years.
fn months(start: Tick, end: Tick, wanted: f64) -> Vec<TickMark> {
    let months = (wanted / (30.4 * DAY as f64)).ceil() as i64;
    let step = [1, 2, 3, 6, 12, 24, 60, 120].into_iter().find(|step| *step >= months).unwrap_or(240);
    let first = date_time(start);
    // At a year that `step / 12` divides, or at the start of a quarter.
    let years = (step / 12).max(1) as i16;
    let month = i64::from(first.month() - 1) / step.min(12) * step.min(12) + 1;
    let begin =
        first.date().first_of_month().with().year(first.year() / years * years).month(month as i8).build();
    let mut at = begin.unwrap_or(first.date());
    let mut out = Vec::new();
    loop {
        let nanos = at.in_tz("UTC").map_or(i128::MAX, |zoned| zoned.timestamp().as_nanosecond());
        if nanos > i128::from(end.as_nanos()) {
            return out;
        }
        if nanos >= i128::from(start.as_nanos()) {
            let form = match step {
                12.. => "%Y",
                _ if at.month() == 1 => "%b %Y",
                _ => "%b",
            };
            out.push(((nanos - i128::from(start.as_nanos())) as f64 / 1e9, at.strftime(form).to_string()));
        }
        let Ok(next) = at.checked_add(step.months()) else { return out };
        at = next;
    }
}

/// Returns the multiples of 1, 2 or 5 times a power of ten, from 0 to at least `top`: at most about `most`
/// values.
pub(super) fn round(top: f64, most: usize) -> Vec<f64> {
    if !(top.is_finite() && top > 0.0) {
        return vec![0.0, 1.0];
    }
    let raw = top / most.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= raw * 0.999);
    let step = step.unwrap_or(power * 10.0);
    (0..=(top / step - 1e-9).ceil() as u32).map(|number| f64::from(number) * step).collect()
}

/// Returns the logarithms, between `low` and `high`, of 1, 2 and 5 times the powers of ten; with many powers of
/// ten, of the powers alone.
pub(super) fn decades(low: f64, high: f64) -> Vec<f64> {
    const MOST: usize = 9;
    let powers = (low.floor() as i32..=high.ceil() as i32).map(f64::from);
    let within = |mark: &f64| (low..=high).contains(mark);
    let all: Vec<f64> = powers
        .clone()
        .flat_map(|power| [0.0, 2f64.log10(), 5f64.log10()].map(|part| power + part))
        .filter(within)
        .collect();
    if all.len() <= MOST { all } else { powers.filter(within).collect() }
}

/// Writes a number for an axis: `0.5`, `250`, `1200`, `48k`, `2.5M`.
pub(super) fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        v if v >= 1e9 => format!("{}G", short(v / 1e9)),
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: TimeAxis, start: u64, end: u64) -> Vec<String> {
        axis.ticks(Tick::from_secs(start), Tick::from_secs(end), 6)
            .into_iter()
            .map(|(_, label)| label)
            .collect()
    }

    #[test]
    fn ticks_lie_where_people_look() {
        const MAY_17: u64 = 1_431_820_800;
        let rows = [
            (MAY_17 + 36_303, MAY_17 + 36_320, vec!["10:05:05", "10:05:10", "10:05:15", "10:05:20"]),
            (MAY_17 + 36_303, MAY_17 + 38_000, vec!["10:10", "10:15", "10:20", "10:25", "10:30"]),
            (MAY_17 + 80_000, MAY_17 + 110_000, vec!["18 May", "02:00", "04:00", "06:00"]),
            (
                MAY_17,
                MAY_17 + 3 * DAY,
                vec!["17 May", "12:00", "18 May", "12:00", "19 May", "12:00", "20 May"],
            ),
            (MAY_17, MAY_17 + 300 * DAY, vec!["Jul", "Sep", "Nov", "Jan 2016", "Mar"]),
            (MAY_17, MAY_17 + 4_000 * DAY, vec!["2016", "2018", "2020", "2022", "2024", "2026"]),
        ];
        for (start, end, want) in rows {
            assert_eq!(labels(TimeAxis::Utc, start, end), want);
        }
        assert_eq!(
            labels(TimeAxis::Elapsed, 7, 187),
            ["0 s", "30 s", "1 min", "1 min 30 s", "2 min", "2 min 30 s", "3 min"]
        );
    }

    #[test]
    fn decades_have_few_marks() {
        let marks = |low: f64, high: f64| {
            decades(low.log10(), high.log10())
                .into_iter()
                .map(|mark| number(10f64.powf(mark)))
                .collect::<Vec<_>>()
        };
        assert_eq!(marks(0.6, 30.0), ["1", "2", "5", "10", "20"]);
        assert_eq!(marks(0.6, 80_000.0), ["1", "10", "100", "1000", "10k"]);
    }

    #[test]
    fn numbers_are_round() {
        assert_eq!(round(412.0, 5), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!(round(1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(round(0.0, 5), [0.0, 1.0]);
        let shown = [0.0, 0.6000000000000001, 412.0, 1_200.0, 48_200.0, 2.5e6].map(number);
        assert_eq!(shown, ["0", "0.6", "412", "1200", "48.2k", "2.5M"]);
    }
}
