//! The peak of each key, falling: where a limit cuts, and which keys it hit.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{decades, number};
use super::paint::{self, Marked, Page, Sample, failed};
use super::palette::{CURVES, HIT, HIT_OPACITY, INK, LIMIT, QUIET, hex};
use super::{Chart, ChartError, Level};
use crate::peaks::Distinct;
use crate::thousands::grouped;

/// How many times the highest peak a limit may be and still be drawn: the axis is logarithmic, so this is a third of it at most.
const FAR: f64 = 30.0;

/// The edges of the plot within the picture, in its units: what [`paint::WHOLE_PAGE`] comes to.
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = paint::WIDTH as f64 - 28.0;
pub(super) const TOP: f64 = 90.0;
pub(super) const BOTTOM: f64 = paint::HEIGHT as f64 - 54.0;

/// One key of a chart of peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakOfKey {
    /// The most it asked within the window.
    pub peak: u64,
    /// Whether it was denied anything.
    pub is_hit: bool,
}

/// A chart of the peaks of all keys, highest first, on logarithmic axes; keys that were hit are filled.
#[derive(Clone, Debug)]
pub struct Falling<'a> {
    /// What it shows, above it.
    pub title: &'a str,
    /// What the peaks are: `requests in any second`.
    pub unit: &'a str,
    /// The keys that are known one by one, by their peaks, highest first.
    pub keys: &'a [PeakOfKey],
    /// How many keys there were: more than `keys` where some were forgotten.
    pub of: Distinct,
    /// What the limit grants within the window, if that is known.
    pub level: Option<Level>,
}

/// Where ranks and peaks lie in the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// The logarithm of the rank at the right edge.
    ranks: f64,
    /// The logarithms of the values at the lower and the upper edge.
    low: f64,
    high: f64,
}

/// Keys that share one column of pixels at least: the many at the right have no column of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Column {
    /// The rank of its first key, from 1, and of the first key behind it.
    from: usize,
    to: usize,
    peak: u64,
    /// The share of its keys that were hit.
    hit: f64,
}

impl Scale {
    /// Makes a scale for keys by falling peaks, wide enough for levels.
    pub(super) fn new(keys: &[PeakOfKey], levels: impl Iterator<Item = f64> + Clone) -> Self {
        let value = |peak: Option<&PeakOfKey>| peak.map_or(1, |key| key.peak.max(1)) as f64;
        let (highest, lowest) = (value(keys.first()), value(keys.last()));
        let drawn = levels.filter(|level| is_near(*level, highest));
        let high = drawn.clone().fold(highest, f64::max) * 1.15;
        let low = drawn.fold(lowest, f64::min).max(1.0) * 0.6;
        Self { ranks: ((keys.len() + 1).max(10) as f64).log10(), low: low.log10(), high: high.log10() }
    }

    fn x(&self, rank: usize) -> f64 {
        LEFT + (rank.max(1) as f64).log10() / self.ranks * (RIGHT - LEFT)
    }

    /// Returns where a value lies, from the top of the picture; within the plot, whatever the value.
    pub(super) fn y(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    /// Says whether a value lies above the plot.
    pub(super) fn is_above(&self, value: f64) -> bool {
        value.max(f64::MIN_POSITIVE).log10() > self.high
    }

    fn columns(&self, keys: &[PeakOfKey], is_hit: impl Fn(usize) -> bool) -> Vec<Column> {
        let mut out: Vec<Column> = Vec::new();
        let mut place = 0;
        while let Some(first) = keys.get(place) {
            let mut end = place + 1;
            while end < keys.len() && self.x(end + 1) - self.x(place + 1) < 1.0 {
                end += 1;
            }
            // In eighths, so that neighbours are often equal and drawn as one; rounded up, so that one hit key is seen.
            let hit = (place..end).filter(|place| is_hit(*place)).count();
            let hit = (hit as f64 / (end - place) as f64 * 8.0).ceil() / 8.0;
            match out.last_mut() {
                Some(last) if last.peak == first.peak && last.hit == hit => last.to = end + 1,
                _ => out.push(Column { from: place + 1, to: end + 1, peak: first.peak, hit }),
            }
            place = end;
        }
        out
    }

    /// Returns the left edge, the right edge and the top of each bar of keys that were hit: a column of which a half was hit is half as high.
    fn bars(
        &self,
        keys: &[PeakOfKey],
        is_hit: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (f64, f64, f64)> {
        self.columns(keys, is_hit).into_iter().filter(|column| column.hit > 0.0).map(|column| {
            let top = BOTTOM - (BOTTOM - self.y(column.peak as f64)) * column.hit;
            (self.x(column.from), self.x(column.to), top)
        })
    }

    /// Returns the outline of the keys that were hit, as the data of an SVG path.
    pub(super) fn outline(&self, keys: &[PeakOfKey], is_hit: impl Fn(usize) -> bool) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        for (left, right, top) in self.bars(keys, is_hit) {
            // Writing to a string does not fail.
            let _ = write!(out, "M{left:.1} {BOTTOM}V{top:.1}H{right:.1}V{BOTTOM}Z");
        }
        out
    }
}

fn is_near(level: f64, highest: f64) -> bool {
    level <= highest * FAR
}

impl Chart for Falling<'_> {
    fn svg(&self) -> Result<String, ChartError> {
        let scale = self.scale();
        let hits = scale.outline(self.keys, |place| self.keys[place].is_hit);
        let svg = paint::svg(self.title, paint::HEIGHT, |page| self.axes(page, &scale, &self.caption()))?;
        let hits = format!("<path d=\"{hits}\" fill=\"{}\" fill-opacity=\"{HIT_OPACITY}\"/>", hex(HIT));
        Ok(paint::behind(&svg, &hits))
    }

    fn png(&self) -> Result<Vec<u8>, ChartError> {
        let scale = self.scale();
        paint::png(self.title, paint::HEIGHT, |page| {
            for (left, right, top) in scale.bars(self.keys, |place| self.keys[place].is_hit) {
                let whole = |place: f64| place.round() as i32;
                // A unit wide at least, so that one key that was hit is seen.
                let right = whole(right).max(whole(left) + 1);
                let corners = [(whole(left), whole(top)), (right, whole(BOTTOM))];
                let bar = Rectangle::new(corners, HIT.mix(HIT_OPACITY).filled());
                page.draw(&bar).map_err(failed)?;
            }
            self.axes(page, &scale, &self.caption())
        })
    }
}

impl Falling<'_> {
    fn scale(&self) -> Scale {
        Scale::new(self.keys, self.level.iter().map(|level| level.value))
    }

    /// Returns how many of the keys were hit.
    #[must_use]
    pub fn hit(&self) -> usize {
        self.keys.iter().filter(|key| key.is_hit).count()
    }

    /// Returns how many of the keys asked for more within a window than the limit grants in it.
    #[must_use]
    pub fn above(&self) -> usize {
        let level = self.level.as_ref().map_or(f64::INFINITY, |level| level.value);
        self.keys.partition_point(|key| key.peak as f64 > level)
    }

    /// Draws all but the keys that were hit, which lie behind it.
    pub(super) fn axes(&self, page: &Page<'_>, scale: &Scale, caption: &str) -> Result<(), ChartError> {
        let highest = self.keys.first().map_or(1.0, |key| key.peak as f64);
        let (near, far): (Vec<&Level>, Vec<&Level>) =
            self.level.iter().partition(|level| is_near(level.value, highest));
        let columns: Vec<f64> = (0..=scale.ranks.floor() as u32).map(f64::from).collect();
        let rows = decades(scale.low, scale.high);
        let curve = self.corners(scale);
        let curves =
            [Sample::Area("hit: denied at least once", HIT), Sample::Line("peak of each key", CURVES[0].0)];
        // Named here and not at the line, where the keys that were hit would lie behind the words.
        let lines = near.iter().map(|level| Sample::Line(&level.name, LIMIT));
        paint::legend(page, &curves.into_iter().chain(lines).collect::<Vec<_>>())?;
        paint::write(page, self.unit, (20, 76), 12.0, &QUIET, HPos::Left)?;
        let mut chart = paint::plot(
            page,
            &paint::WHOLE_PAGE,
            (Marked { start: 0.0, end: scale.ranks, marks: columns.clone() }, &|power| {
                number(10f64.powf(*power).round())
            }),
            (Marked { start: scale.low, end: scale.high, marks: rows.clone() }, &|power| {
                number(10f64.powf(*power))
            }),
        )?;
        chart.draw_series(LineSeries::new(curve, CURVES[0].0.stroke_width(2))).map_err(failed)?;
        for level in far {
            let name = format!("{} (above this chart) ↑", level.name);
            paint::write(page, &name, (paint::WIDTH as i32 - 28, 76), 12.0, &INK, HPos::Right)?;
        }
        for level in near {
            let height = level.value.log10().max(scale.low);
            let line = [(0.0, height), (scale.ranks, height)];
            chart.draw_series(LineSeries::new(line, LIMIT.stroke_width(1))).map_err(failed)?;
        }
        paint::write(page, caption, (64, paint::HEIGHT as i32 - 16), 12.0, &QUIET, HPos::Left)
    }

    /// The words below the chart: the numbers of the table.
    fn caption(&self) -> String {
        let mut words = format!("keys, fastest first: {} of {} hit", grouped(self.hit() as u64), self.of);
        if self.level.is_some() {
            words += &format!("; {} asked for more than the line", grouped(self.above() as u64));
        }
        if self.keys.len() as u64 != self.of.about() {
            words += &format!("; drawn are the {} that asked most", grouped(self.keys.len() as u64));
        }
        words
    }

    /// Returns the corners of the curve: the logarithms of rank and peak.
    fn corners(&self, scale: &Scale) -> Vec<(f64, f64)> {
        let log = |value: u64| (value.max(1) as f64).log10();
        let columns = scale.columns(self.keys, |_| false);
        let both = |column: &Column| {
            [column.from, column.to].map(|rank| (log(rank as u64), log(column.peak).max(scale.low)))
        };
        columns.iter().flat_map(both).collect()
    }
}
