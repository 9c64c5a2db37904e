//! Curves over time: offered load, admitted load and the limit, or several algorithms side by side.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use tidegate::Tick;

use super::axis::{number, round};
use super::canvas::{CURVES, INK, LIMIT, QUIET, SHADE};
use super::paint::{self, Axis, Marked, Page, Sample, Surroundings, failed};
use super::{Chart, ChartError, Curve, Level, TimeAxis};

/// A limit up to this multiple of the highest load extends the vertical scale.
const FAR: f64 = 3.0;

/// A chart of curves over time.
#[derive(Clone, Debug)]
pub struct OverTime<'a> {
    /// The title above the chart.
    pub title: &'a str,
    /// The unit of the values, such as `requests per second`.
    pub unit: &'a str,
    /// How times are written.
    pub axis: TimeAxis,
    /// A curve drawn as an area behind the others, such as the offered load.
    pub area: Option<Curve>,
    /// The curves; only the first six are drawn.
    pub curves: Vec<Curve>,
    /// The limit, if one limit holds for everything shown.
    pub limit: Option<Level>,
}

impl Chart for OverTime<'_> {
    fn svg(&self) -> Result<String, ChartError> {
        paint::svg(self.title, self.height(), |page| self.draw(page))
    }

    fn png(&self) -> Result<Vec<u8>, ChartError> {
        paint::png(self.title, self.height(), |page| self.draw(page))
    }
}

impl OverTime<'_> {
    fn samples(&self) -> Vec<Sample<'_>> {
        let area = self.area.iter().map(|area| Sample::Area(&area.name, SHADE));
        let curves = self.curves.iter().zip(CURVES);
        area.chain(curves.map(|(curve, (colour, ..))| Sample::Line(&curve.name, colour))).collect()
    }

    fn height(&self) -> u32 {
        paint::HEIGHT + paint::legend_below(&self.samples())
    }

    fn draw(&self, page: &Page<'_>) -> Result<(), ChartError> {
        let all = || self.area.iter().chain(&self.curves);
        let start = all().filter_map(Curve::span).map(|(start, _)| start).min().unwrap_or(Tick::EPOCH);
        let end = all().filter_map(Curve::span).map(|(_, end)| end).max().unwrap_or(start);
        let end = end.max(Tick::from_nanos(start.as_nanos() + 1_000_000));
        let highest = all().map(Curve::max).fold(0.0, f64::max);
        // A line far above the load would flatten the load's curve: only the name of such a limit is shown.
        let near = |limit: &&Level| highest == 0.0 || limit.value <= highest * FAR;
        let drawn = self.limit.as_ref().filter(near);
        let highest = drawn.map_or(highest, |limit| limit.value.max(highest));
        let rows = round(highest * 1.04, 5);
        let top = rows.last().copied().unwrap_or(1.0);
        let columns = self.axis.ticks(start, end, 8);
        let span = end.since(start).as_secs_f64();
        let samples = self.samples();
        paint::legend(page, &samples)?;
        let rest = paint::legend_below(&samples);
        let over_plot = 76 + rest as i32;
        paint::write(page, self.unit, (20, over_plot), 12.0, &QUIET, HPos::Left)?;
        let times = Marked { start: 0.0, end: span, marks: columns.iter().map(|(at, _)| *at).collect() };
        let values = Marked { start: 0.0, end: top, marks: rows.clone() };
        let mut chart = paint::plot(
            page,
            &Surroundings { above: paint::WHOLE_PAGE.above + rest, ..paint::WHOLE_PAGE },
            Axis { marked: times, write: &paint::labels(&columns) },
            Axis { marked: values, write: &|value| number(*value) },
        )?;
        if let Some(area) = &self.area {
            let points = steps(area, start);
            chart.draw_series(AreaSeries::new(points, 0.0, SHADE)).map_err(failed)?;
        }
        for (curve, (colour, ..)) in self.curves.iter().zip(CURVES) {
            for piece in pieces(&steps(curve, start)) {
                let line = LineSeries::new(piece.iter().copied(), colour.stroke_width(2));
                chart.draw_series(line).map_err(failed)?;
            }
        }
        if drawn.is_none()
            && let Some(limit) = &self.limit
        {
            let words = format!("{} (above this chart) ↑", limit.name);
            paint::write(page, &words, (paint::WIDTH as i32 - 28, over_plot), 12.0, &INK, HPos::Right)?;
        }
        if let Some(limit) = drawn {
            let line = [(0.0, limit.value), (span, limit.value)];
            chart.draw_series(LineSeries::new(line, LIMIT.stroke_width(1))).map_err(failed)?;
            let (x, y) = chart.backend_coord(&(span, limit.value));
            paint::write(page, &limit.name, (x - 4, y - 9), 12.0, &INK, HPos::Right)?;
        }
        let caption = self.axis.caption(start, end);
        paint::write(page, &caption, (64, self.height() as i32 - 16), 12.0, &QUIET, HPos::Left)
    }
}

/// Splits a curve at stretches that lie on the axis: a line there would hide the axis.
pub(super) fn pieces(corners: &[(f64, f64)]) -> Vec<&[(f64, f64)]> {
    let rests = |a: &(f64, f64), b: &(f64, f64)| a.1 == 0.0 && b.1 == 0.0;
    corners.chunk_by(|a, b| !rests(a, b)).filter(|piece| piece.len() > 1).collect()
}

/// Seconds since the start, and values. Equal values in a row take two corners only.
pub(super) fn steps(curve: &Curve, start: Tick) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::with_capacity(curve.steps.len() * 2 + 2);
    let at = |tick: Tick| tick.since(start).as_secs_f64();
    for (tick, value) in &curve.steps {
        match out.last() {
            Some((_, before)) if before == value => continue,
            Some((_, before)) => out.push((at(*tick), *before)),
            None => {}
        }
        out.push((at(*tick), *value));
    }
    if let Some((_, value)) = out.last().copied() {
        out.push((at(curve.end), value));
    }
    out
}
