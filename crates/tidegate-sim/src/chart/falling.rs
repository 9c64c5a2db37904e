//! The peak rate of each key, falling: where a limit cuts, and how many keys it touches.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{number, round};
use super::over_time::FAR;
use super::paint::{self, CURVES, GRID, INK, LIMIT, Marked, QUIET, SHADE, failed};
use super::{ChartError, Level};

/// A chart of the peaks of all keys, highest first, on a logarithmic axis of keys.
#[derive(Clone, Debug)]
pub struct Falling<'a> {
    /// What it shows, above it.
    pub title: &'a str,
    /// What the peaks are: `requests in one second`.
    pub unit: &'a str,
    /// The peak of each key, falling; see [`crate::peaks::Peaks::falling`].
    pub peaks: &'a [u64],
    /// The limit.
    pub limit: Option<Level>,
}

impl Falling<'_> {
    /// Returns how many keys went above the limit.
    #[must_use]
    pub fn above(&self) -> usize {
        let limit = self.limit.as_ref().map_or(f64::INFINITY, |limit| limit.value);
        self.peaks.partition_point(|peak| *peak as f64 > limit)
    }

    /// Draws an SVG of 900 × 360.
    ///
    /// # Errors
    /// [`ChartError`], which drawing into memory does not give.
    pub fn svg(&self) -> Result<String, ChartError> {
        let limit = self.limit.as_ref().map_or(0.0, |limit| limit.value);
        let highest = self.peaks.first().copied().unwrap_or(1) as f64;
        // As over time: a limit far above everyone is named, not drawn.
        let drawn = self.limit.as_ref().filter(|limit| limit.value <= highest * FAR);
        let rows = round(drawn.map_or(highest, |limit| limit.value.max(highest)) * 1.04, 5);
        let top = rows.last().copied().unwrap_or(1.0);
        let right = (self.peaks.len().max(10) as f64).log10();
        let columns: Vec<f64> = (0..=right.floor() as u32).map(f64::from).collect();
        let curve = self.corners();
        paint::page(self.title, |page| {
            paint::legend(page, None, &["peak of each key"])?;
            paint::write(page, self.unit, (20, 76), 12.0, &QUIET, HPos::Left)?;
            let mut chart = ChartBuilder::on(page)
                .margin_top(90)
                .margin_right(28)
                .margin_left(8)
                .margin_bottom(30)
                .x_label_area_size(24)
                .y_label_area_size(56)
                .build_cartesian_2d(
                    Marked { end: right, marks: columns.clone() },
                    Marked { end: top, marks: rows.clone() },
                )
                .map_err(failed)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID)
                .axis_style(GRID)
                .x_label_formatter(&|power: &f64| number(10f64.powf(*power).round()))
                .y_label_formatter(&|value: &f64| number(*value))
                .label_style(("sans-serif", 12).into_font().color(&INK))
                .draw()
                .map_err(failed)?;
            let mut words = format!("keys, fastest first ({} keys)", self.peaks.len());
            if drawn.is_some() {
                let cut: Vec<(f64, f64)> = curve.iter().copied().filter(|(_, peak)| *peak > limit).collect();
                chart.draw_series(AreaSeries::new(cut, limit, SHADE)).map_err(failed)?;
                words =
                    format!("keys, fastest first: {} of {} above the limit", self.above(), self.peaks.len());
            }
            chart.draw_series(LineSeries::new(curve, CURVES[0].0.stroke_width(2))).map_err(failed)?;
            if drawn.is_none()
                && let Some(limit) = &self.limit
            {
                let name = format!("{} (above this chart) ↑", limit.name);
                paint::write(page, &name, (paint::WIDTH as i32 - 28, 76), 12.0, &INK, HPos::Right)?;
            }
            if let Some(limit) = drawn {
                let line = [(0.0, limit.value), (right, limit.value)];
                chart.draw_series(LineSeries::new(line, LIMIT.stroke_width(1))).map_err(failed)?;
                let (x, y) = chart.backend_coord(&(right, limit.value));
                paint::write(page, &limit.name, (x - 4, y - 9), 12.0, &INK, HPos::Right)?;
            }
            paint::write(page, &words, (64, paint::HEIGHT as i32 - 16), 12.0, &QUIET, HPos::Left)
        })
    }

    /// Returns the corners of the curve: the logarithm of the rank, and the peak. Only where it falls.
    fn corners(&self) -> Vec<(f64, f64)> {
        let mut out: Vec<(f64, f64)> = Vec::new();
        let mut rank = 0;
        for run in self.peaks.chunk_by(|a, b| a == b) {
            let (from, to) = (rank + 1, rank + run.len() + 1);
            let to = if to > self.peaks.len() { self.peaks.len() } else { to };
            out.push(((from as f64).log10(), run[0] as f64));
            out.push(((to as f64).log10(), run[0] as f64));
            rank += run.len();
        }
        out
    }
}
