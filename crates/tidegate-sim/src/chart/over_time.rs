//! Curves over time: offered load, admitted load and the limit, or several algorithms side by side, in one plot; and
//! several runs of the same requests, one below the other: denials over time, and the difference from the first run.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use tidegate::Tick;

use super::axis::{number, round};
use super::canvas::{CURVES, INK, LIMIT, QUIET, SHADE};
use super::paint::{self, Axis, Marked, Page, Plot, Sample, Surroundings, failed};
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

const MOST: usize = 12;
const HEIGHT: u32 = 124;
const HEAD: u32 = 84;
const FOOT: u32 = 34;
/// The horizontal position where the differences begin.
const MIDDLE: u32 = 510;
const HIGHEST: RGBColor = CURVES[2].0;
const WOULD_DENY: RGBColor = CURVES[3].0;
const PANEL: Surroundings = Surroundings { above: 26, below: 4, label_height: 20, label_size: 11 };

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    /// The name of the run, with its numbers: `gcra: 773 denied, 1 key hit`.
    pub(crate) name: String,
    /// The difference from the first run, such as `38 more`.
    pub(crate) difference: String,
    pub(crate) denied: Curve,
    /// What policies in shadow mode would deny, of the requests that were admitted; `None` if there is nothing.
    pub(crate) would_deny: Option<Curve>,
    /// The highest values within each step, if `denied` holds averages.
    pub(crate) highest: Option<Curve>,
}

/// Denials of several runs, on the same scales.
#[derive(Clone, Debug)]
pub(crate) struct Panels<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) axis: TimeAxis,
    /// The runs; only the first twelve are drawn. All their curves must have steps at the same times.
    pub(crate) panels: Vec<Panel>,
}

struct PanelScale {
    start: Tick,
    span: f64,
    columns: Vec<(f64, String)>,
    top: f64,
    /// The largest absolute difference.
    apart: f64,
}

impl Chart for Panels<'_> {
    fn svg(&self) -> Result<String, ChartError> {
        paint::svg(self.title, self.height(), |page| self.draw(page))
    }

    fn png(&self) -> Result<Vec<u8>, ChartError> {
        paint::png(self.title, self.height(), |page| self.draw(page))
    }
}

impl Panels<'_> {
    fn drawn(&self) -> &[Panel] {
        &self.panels[..self.panels.len().min(MOST)]
    }

    fn height(&self) -> u32 {
        HEAD + HEIGHT * self.drawn().len() as u32 + FOOT
    }

    fn draw(&self, page: &Page<'_>) -> Result<(), ChartError> {
        let (drawn, height) = (self.drawn(), self.height());
        let spans = drawn.iter().filter_map(|panel| panel.denied.span());
        let start = spans.clone().map(|(start, _)| start).min().unwrap_or(Tick::EPOCH);
        let end = spans.map(|(_, end)| end).max().unwrap_or(start);
        let end = end.max(Tick::from_nanos(start.as_nanos() + 1_000_000));
        let differences: Vec<Curve> =
            drawn.iter().map(|panel| panel.denied.minus(&drawn[0].denied)).collect();
        let largest = |curve: &Curve| curve.steps.iter().map(|(_, value)| value.abs()).fold(0.0, f64::max);
        let shared = PanelScale {
            start,
            span: end.since(start).as_secs_f64(),
            columns: self.axis.ticks(start, end, 5),
            top: drawn
                .iter()
                .flat_map(|panel| {
                    std::iter::once(&panel.denied).chain(&panel.would_deny).chain(&panel.highest)
                })
                .map(Curve::max)
                .fold(0.0, f64::max),
            apart: differences.iter().map(largest).fold(0.0, f64::max),
        };
        let highest = drawn.iter().find_map(|panel| panel.highest.as_ref());
        let mut samples = vec![Sample::Line("denied", CURVES[1].0)];
        samples.extend(highest.map(|highest| Sample::Line(&highest.name, HIGHEST)));
        let would_deny = drawn.iter().find_map(|panel| panel.would_deny.as_ref());
        samples.extend(would_deny.map(|curve| Sample::Line(&curve.name, WOULD_DENY)));
        samples.push(Sample::Line("difference", CURVES[0].0));
        paint::legend(page, &samples)?;
        paint::write(page, self.unit, (20, 74), 12.0, &QUIET, HPos::Left)?;
        for (place, (panel, difference)) in drawn.iter().zip(&differences).enumerate() {
            let top = (HEAD + place as u32 * HEIGHT) as i32;
            let half =
                |left: u32, right: u32| page.clone().shrink((left, top as u32), (right - left, HEIGHT));
            paint::write(page, &panel.name, (20, top + 12), 13.0, &INK, HPos::Left)?;
            shared.denied(&half(0, MIDDLE), panel)?;
            let at = (MIDDLE as i32 + 20, top + 12);
            paint::write(page, &panel.difference, at, 13.0, &INK, HPos::Left)?;
            if place > 0 {
                shared.difference(&half(MIDDLE, paint::WIDTH), difference)?;
            }
        }
        let mut caption = self.axis.caption(start, end);
        if drawn.len() < self.panels.len() {
            caption += &format!("; {} more runs are not drawn", self.panels.len() - drawn.len());
        }
        paint::write(page, &caption, (64, height as i32 - 14), 12.0, &QUIET, HPos::Left)
    }
}

impl PanelScale {
    fn denied(&self, area: &Page<'_>, panel: &Panel) -> Result<(), ChartError> {
        let rows = round(self.top, 3);
        let values = Marked { start: 0.0, end: rows.last().copied().unwrap_or(1.0), marks: rows };
        let corners = steps(&panel.denied, self.start);
        let highest = panel.highest.as_ref().map(|curve| steps(curve, self.start));
        let would_deny = panel.would_deny.as_ref().map(|curve| steps(curve, self.start));
        self.draw(area, values, &|chart| {
            chart.draw_series(AreaSeries::new(corners.clone(), 0.0, SHADE)).map_err(failed)?;
            for piece in highest.iter().flat_map(|highest| pieces(highest)) {
                let line = LineSeries::new(piece.iter().copied(), HIGHEST.stroke_width(1));
                chart.draw_series(line).map_err(failed)?;
            }
            for piece in would_deny.iter().flat_map(|would_deny| pieces(would_deny)) {
                let line = LineSeries::new(piece.iter().copied(), WOULD_DENY.stroke_width(2));
                chart.draw_series(line).map_err(failed)?;
            }
            for piece in pieces(&corners) {
                let line = LineSeries::new(piece.iter().copied(), CURVES[1].0.stroke_width(2));
                chart.draw_series(line).map_err(failed)?;
            }
            Ok(())
        })
    }

    fn difference(&self, area: &Page<'_>, curve: &Curve) -> Result<(), ChartError> {
        let rows = round(self.apart, 2);
        let top = rows.last().copied().unwrap_or(1.0);
        let below = rows.iter().skip(1).rev().map(|mark| -mark);
        let marks = below.chain(rows.iter().copied()).collect();
        let values = Marked { start: -top, end: top, marks };
        let corners = steps(curve, self.start);
        self.draw(area, values, &|chart| {
            chart.draw_series(AreaSeries::new(corners.clone(), 0.0, SHADE)).map_err(failed)?;
            let line = LineSeries::new(corners.iter().copied(), CURVES[0].0.stroke_width(2));
            chart.draw_series(line).map_err(failed).map(drop)
        })
    }

    fn draw<'s>(
        &self,
        area: &Page<'s>,
        values: Marked,
        series: &dyn Fn(&mut Plot<'_, 's>) -> Result<(), ChartError>,
    ) -> Result<(), ChartError> {
        let times =
            Marked { start: 0.0, end: self.span, marks: self.columns.iter().map(|(at, _)| *at).collect() };
        let labels = paint::labels(&self.columns);
        let mut plot = paint::plot(
            area,
            &PANEL,
            Axis { marked: times, write: &labels },
            Axis { marked: values, write: &|value| signed(*value) },
        )?;
        series(&mut plot)
    }
}

fn signed(value: f64) -> String {
    if value < 0.0 { format!("−{}", number(-value)) } else { number(value) }
}

impl Curve {
    fn minus(&self, other: &Self) -> Self {
        let less = |(place, (at, value)): (usize, &(Tick, f64))| {
            (*at, value - other.steps.get(place).map_or(0.0, |(_, value)| *value))
        };
        Self { steps: self.steps.iter().enumerate().map(less).collect(), ..self.clone() }
    }
}
