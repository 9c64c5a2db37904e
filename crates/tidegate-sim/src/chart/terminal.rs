//! Charts of block characters for a terminal: the admitted load in front of the offered load, without colour.

use super::axis::{number, round};
use super::{Curve, Level, TimeAxis};

/// A bar chart of two curves over time; the bars of the admitted load lie within those of the offered load.
#[derive(Clone, Debug)]
pub struct Bars<'a> {
    /// The title above the chart.
    pub title: &'a str,
    /// The unit of the values.
    pub unit: &'a str,
    /// How times are written.
    pub axis: TimeAxis,
    /// The load that was asked for.
    pub offered: &'a Curve,
    /// The part of it that was admitted.
    pub admitted: &'a Curve,
    /// The part of the admitted load that policies in shadow mode would deny, drawn at the top of the admitted bars.
    pub would_deny: Option<&'a Curve>,
    /// The highest offered load within each step, drawn as points, if the other curves are averages.
    pub highest: Option<&'a Curve>,
    /// The limit, if one holds for everything shown.
    pub limit: Option<Level>,
}

const HIGHEST: char = '·';
const WOULD_DENY: char = '▒';
/// The top character of a bar, by the filled eighths of its cell.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The columns taken by the numbers at the left and the axis.
const MARGIN: usize = 8;

impl Bars<'_> {
    /// Returns the number of columns for bars on lines of `width` columns.
    #[must_use]
    pub fn columns(width: usize) -> usize {
        width.max(40) - MARGIN
    }

    /// Draws lines of at most `width` columns (40 at least) with `height` rows of bars (4 at least).
    #[must_use]
    pub fn draw(&self, width: usize, height: usize) -> String {
        let (columns, height) = (Self::columns(width), height.max(4));
        let (Some((start, end)), unit) = (self.offered.span(), self.unit) else {
            return format!("{}\n(nothing to draw)\n", self.title);
        };
        let offered = self.offered.resampled(columns, start, end);
        let admitted = self.admitted.resampled(columns, start, end);
        let peaks = self.highest.map(|curve| curve.highest(columns, start, end)).unwrap_or_default();
        let limit = self.limit.as_ref().map_or(0.0, |limit| limit.value);
        let highest = offered.iter().chain(&admitted).chain(&peaks).copied().fold(limit, f64::max);
        let top = round(highest, 4).last().copied().unwrap_or(1.0);
        let would_deny =
            self.would_deny.map(|curve| curve.resampled(columns, start, end)).unwrap_or_default();
        let mut out = format!("{}\n{unit}   █ admitted   ", self.title);
        if self.would_deny.is_some() {
            out += &format!("{WOULD_DENY} admitted, would be denied (shadow)   ");
        }
        out += "░ offered, not admitted";
        if let Some(limit) = &self.limit {
            out += &format!("   ╌ {}", limit.name);
        }
        if let Some(highest) = self.highest {
            out += &format!("\n{HIGHEST} {}", highest.name);
        }
        out.push('\n');
        let cells = height as f64;
        let limit_row = (self.limit.is_some()).then(|| ((limit / top * cells) as usize).min(height - 1));
        for row in (0..height).rev() {
            let edge = (row + 1) as f64 / cells * top;
            let label =
                if row + 1 == height || (row + 1) * 2 == height { number(edge) } else { String::new() };
            out += &format!("{label:>6} ┤");
            let mut line = String::new();
            for (column, (offered, admitted)) in offered.iter().zip(&admitted).enumerate() {
                let peak = peaks.get(column).filter(|peak| **peak > 0.0).map(|peak| peak / top * cells);
                let would = would_deny.get(column).copied().unwrap_or(0.0).min(*admitted);
                let kept = admitted - would;
                let inside = (kept / top * cells - row as f64).clamp(0.0, 1.0);
                let measured = admitted / top * cells - row as f64;
                let behind = offered / top * cells - row as f64;
                let mut eighth = (inside * 8.0).round() as usize;
                if row == 0 && eighth == 0 && kept > 0.0 {
                    eighth = 1;
                }
                line.push(match eighth {
                    // A cell has one character: the larger part of it, and never nothing of what would be denied.
                    0..=4 if would > 0.0 && (measured >= 0.5 || (row == 0 && eighth <= 1)) => WOULD_DENY,
                    0 if behind >= 0.5 || (row == 0 && behind > 0.0) => '░',
                    0 if peak.is_some_and(|peak| peak.ceil() as usize == row + 1) => HIGHEST,
                    0 if limit_row == Some(row) => '╌',
                    eighth => EIGHTHS[eighth],
                });
            }
            out += line.trim_end();
            out.push('\n');
        }
        out += &format!("{:>6} └{}\n", 0, "─".repeat(columns));
        out += &self.time_labels(columns, start, end);
        out += &format!("{:MARGIN$}{}\n", "", self.axis.caption(start, end));
        out
    }

    fn time_labels(&self, columns: usize, start: tidegate::Tick, end: tidegate::Tick) -> String {
        let span = end.since(start).as_secs_f64().max(1e-9);
        let mut line = vec![' '; columns + MARGIN];
        let mut free = 0;
        for (at, label) in self.axis.ticks(start, end, columns / 12) {
            let place = MARGIN + (at / span * columns as f64) as usize;
            let length = label.chars().count();
            if place < free || place + length > line.len() {
                continue;
            }
            for (offset, char) in label.chars().enumerate() {
                line[place + offset] = char;
            }
            free = place + length + 1;
        }
        let line: String = line.into_iter().collect();
        format!("{}\n", line.trim_end())
    }
}

impl Curve {
    /// Returns the highest value in each of `columns` equal parts of a span. A step that overlaps several parts counts
    /// in each.
    fn highest(&self, columns: usize, start: tidegate::Tick, end: tidegate::Tick) -> Vec<f64> {
        let scale = columns as f64 / end.since(start).as_secs_f64().max(1e-9);
        let mut out = vec![0.0_f64; columns];
        for (number, (at, value)) in self.steps.iter().enumerate() {
            let until = self.steps.get(number + 1).map_or(self.end, |(at, _)| *at);
            let place = |at: tidegate::Tick| at.since(start).as_secs_f64() * scale;
            let last = (place(until).ceil() as usize).min(columns);
            for highest in out.iter_mut().take(last).skip(place(*at) as usize) {
                *highest = highest.max(*value);
            }
        }
        out
    }

    /// Returns the average value in each of `columns` equal parts of a span.
    fn resampled(&self, columns: usize, start: tidegate::Tick, end: tidegate::Tick) -> Vec<f64> {
        let span = end.since(start).as_secs_f64().max(1e-9);
        let scale = columns as f64 / span;
        let mut out = vec![0.0; columns];
        for (number, (at, value)) in self.steps.iter().enumerate() {
            let until = self.steps.get(number + 1).map_or(self.end, |(at, _)| *at);
            let (from, to) =
                (at.since(start).as_secs_f64() * scale, until.since(start).as_secs_f64() * scale);
            let last = (to.ceil() as usize).min(columns);
            for (column, sum) in out.iter_mut().enumerate().take(last).skip(from as usize) {
                let share = to.min((column + 1) as f64) - from.max(column as f64);
                *sum += value * share.max(0.0);
            }
        }
        out
    }
}
