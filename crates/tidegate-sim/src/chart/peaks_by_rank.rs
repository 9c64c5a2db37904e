//! A chart of the peaks of all keys in descending order: where a limit cuts, and which keys it hits.

use maud::html;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{decades, number};
use super::canvas::{CURVES, HIT, HIT_OPACITY, INK, LIMIT, PAPER, QUIET, WOULD_HIT, hex};
use super::paint::{self, Axis, Marked, Page, Sample, failed};
use super::{Chart, ChartError, Level};
use crate::peaks::Distinct;
use crate::units::grouped;

/// A limit up to this multiple of the highest peak is drawn as a line.
const FAR: f64 = 30.0;

/// The edges of the plot area that [`paint::WHOLE_PAGE`] leaves.
const LEFT: f64 = 64.0;
const RIGHT: f64 = paint::WIDTH as f64 - 28.0;
const TOP: f64 = 90.0;
const BOTTOM: f64 = paint::HEIGHT as f64 - 54.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeakOfKey {
    /// Units asked for within the window.
    pub(crate) peak: u64,
    pub(crate) is_hit: bool,
}

/// A chart of the peaks of all keys, highest first, on logarithmic axes. The area below keys that were hit is filled.
#[derive(Clone, Debug)]
pub(crate) struct PeaksByRank<'a> {
    pub(crate) title: &'a str,
    /// The unit of the peaks, such as `requests in any second`.
    pub(crate) unit: &'a str,
    /// Whose peaks are known, highest first.
    pub(crate) keys: &'a [PeakOfKey],
    /// The number of distinct keys. It exceeds the length of `keys` if some keys were forgotten.
    pub(crate) of: Distinct,
    /// The units granted within the window, if known.
    pub(crate) level: Option<Level>,
    /// Whether the limit only measures, in shadow mode: keys that it would hit have another colour and another word.
    pub(crate) only_measures: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// The logarithm of the rank at the right edge.
    ranks: f64,
    /// The logarithms of the values at the lower and the upper edge.
    low: f64,
    high: f64,
}

/// Keys drawn as one: the many at the right share columns of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Column {
    from: usize,
    to: usize,
    peak: u64,
    hit: f64,
}

impl Scale {
    /// Makes a scale for keys in descending order of peak, with room for those levels that are near the peaks.
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

    /// Returns the vertical position of a value, from the top of the picture. Values outside the plot are moved to its
    /// edge.
    pub(super) fn y(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

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
            // Rounded to eighths, so that neighbours can be merged, and up, so that a single hit key stays visible.
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

    /// The left edge, right edge and top of each column with hit keys. The height is in proportion to the share of keys
    /// that were hit.
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

    pub(super) fn outline(&self, keys: &[PeakOfKey], is_hit: impl Fn(usize) -> bool) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        for (left, right, top) in self.bars(keys, is_hit) {
            let _ = write!(out, "M{left:.1} {BOTTOM}V{top:.1}H{right:.1}V{BOTTOM}Z");
        }
        out
    }
}

fn is_near(level: f64, highest: f64) -> bool {
    level <= highest * FAR
}

impl Chart for PeaksByRank<'_> {
    fn svg(&self) -> Result<String, ChartError> {
        let scale = self.scale();
        let hits = scale.outline(self.keys, |place| self.keys[place].is_hit);
        let svg = paint::svg(self.title, paint::HEIGHT, |page| self.axes(page, &scale, &self.caption()))?;
        let hits = format!(
            "<path d=\"{hits}\" fill=\"{}\" fill-opacity=\"{HIT_OPACITY}\"/>",
            hex(self.hit_colour())
        );
        Ok(paint::behind(&svg, &hits))
    }

    fn png(&self) -> Result<Vec<u8>, ChartError> {
        let scale = self.scale();
        paint::png(self.title, paint::HEIGHT, |page| {
            for (left, right, top) in scale.bars(self.keys, |place| self.keys[place].is_hit) {
                let whole = |place: f64| place.round() as i32;
                // At least one unit wide, so that a single hit key is visible.
                let right = whole(right).max(whole(left) + 1);
                let corners = [(whole(left), whole(top)), (right, whole(BOTTOM))];
                let bar = Rectangle::new(corners, self.hit_colour().mix(HIT_OPACITY).filled());
                page.draw(&bar).map_err(failed)?;
            }
            self.axes(page, &scale, &self.caption())
        })
    }
}

impl PeaksByRank<'_> {
    fn scale(&self) -> Scale {
        Scale::new(self.keys, self.level.iter().map(|level| level.value))
    }

    pub(super) fn hit_colour(&self) -> RGBColor {
        if self.only_measures { WOULD_HIT } else { HIT }
    }

    #[must_use]
    pub(crate) fn hit(&self) -> usize {
        self.keys.iter().filter(|key| key.is_hit).count()
    }

    /// Keys that asked for more within a window than the limit grants in it.
    #[must_use]
    pub(crate) fn above(&self) -> usize {
        let level = self.level.as_ref().map_or(f64::INFINITY, |level| level.value);
        self.keys.partition_point(|key| key.peak as f64 > level)
    }

    /// Draws everything except the keys that were hit. Those are drawn first, behind it.
    pub(super) fn axes(&self, page: &Page<'_>, scale: &Scale, caption: &str) -> Result<(), ChartError> {
        let highest = self.keys.first().map_or(1.0, |key| key.peak as f64);
        let (near, far): (Vec<&Level>, Vec<&Level>) =
            self.level.iter().partition(|level| is_near(level.value, highest));
        let columns: Vec<f64> = (0..=scale.ranks.floor() as u32).map(f64::from).collect();
        let rows = decades(scale.low, scale.high);
        let curve = self.corners(scale);
        let hit = match self.only_measures {
            true => "would be hit (shadow)",
            false => "hit: denied at least once",
        };
        let curves = [Sample::Area(hit, self.hit_colour()), Sample::Line("peak of each key", CURVES[0].0)];
        // Next to the line, the label would cover the hit keys.
        let lines = near.iter().map(|level| Sample::Line(&level.name, LIMIT));
        paint::legend(page, &curves.into_iter().chain(lines).collect::<Vec<_>>())?;
        paint::write(page, self.unit, (20, 76), 12.0, &QUIET, HPos::Left)?;
        let mut chart = paint::plot(
            page,
            &paint::WHOLE_PAGE,
            Axis {
                marked: Marked { start: 0.0, end: scale.ranks, marks: columns.clone() },
                write: &|power| number(10f64.powf(*power).round()),
            },
            Axis {
                marked: Marked { start: scale.low, end: scale.high, marks: rows.clone() },
                write: &|power| number(10f64.powf(*power)),
            },
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

    fn caption(&self) -> String {
        let hit = if self.only_measures { "would be hit" } else { "hit" };
        let mut words = format!("keys, fastest first: {} of {} {hit}", grouped(self.hit() as u64), self.of);
        if self.level.is_some() {
            words += &format!("; {} asked for more than the line", grouped(self.above() as u64));
        }
        if self.keys.len() as u64 != self.of.about() {
            words += &format!("; drawn are the {} that asked most", grouped(self.keys.len() as u64));
        }
        words
    }

    /// Returns the corners of the curve, as logarithms of rank and peak.
    fn corners(&self, scale: &Scale) -> Vec<(f64, f64)> {
        let log = |value: u64| (value.max(1) as f64).log10();
        let columns = scale.columns(self.keys, |_| false);
        let both = |column: &Column| {
            [column.from, column.to].map(|rank| (log(rank as u64), log(column.peak).max(scale.low)))
        };
        columns.iter().flat_map(both).collect()
    }
}

/// How far from the line, in units of the picture, a pointer can still grab it.
const GRIP: f64 = 16.0;

/// The chart of peaks with a limit line that a page can move. The movable parts have a CSS class.
#[derive(Debug)]
pub(crate) struct Movable<'a> {
    chart: PeaksByRank<'a>,
    scale: Scale,
}

impl<'a> Movable<'a> {
    pub(crate) fn new(chart: &PeaksByRank<'a>, levels: impl Iterator<Item = f64> + Clone) -> Self {
        Self { scale: Scale::new(chart.keys, levels), chart: PeaksByRank { level: None, ..*chart } }
    }

    /// Says whether a level lies above the plot. Its line is then drawn at the upper edge.
    pub(crate) fn is_above(&self, level: f64) -> bool {
        self.scale.is_above(level)
    }

    /// Returns the vertical position of a level, from the top of the picture.
    pub(crate) fn y(&self, level: f64) -> f64 {
        self.scale.y(level)
    }

    /// The outline of the keys that a limit hits, as the path data of an SVG.
    pub(crate) fn outline(&self, hit: &[bool]) -> String {
        self.scale.outline(self.chart.keys, |place| hit.get(place).copied().unwrap_or(false))
    }

    /// Draws the picture with one of the limits. `.hits` is the outline of the keys that the limit hits, `.level` its
    /// line, which moves by its `transform`, and `.grip` the area that a pointer grabs.
    pub(crate) fn svg(&self, level: &Level, hit: &[bool]) -> Result<String, ChartError> {
        let chart = &self.chart;
        let drawn = paint::svg(chart.title, paint::HEIGHT, |page| {
            chart.axes(page, &self.scale, "keys, fastest first")
        })?;
        let hits = html! {
            path class="hits" d=(self.outline(hit)) fill=(hex(chart.hit_colour())) fill-opacity=(HIT_OPACITY) {}
        };
        let line = html! {
            g class="level" transform=(format!("translate(0 {:.1})", self.y(level.value))) {
                line x1=(LEFT) x2=(RIGHT) y1="0" y2="0" stroke=(hex(LIMIT)) stroke-width="2" stroke-dasharray="4 3" {}
                text x=(RIGHT - 4.0) y="-8" text-anchor="end" font-size="12" fill=(hex(INK)) stroke=(hex(PAPER))
                    stroke-width="4" paint-order="stroke" { (level.name) }
                circle cx=(LEFT) cy="0" r="7" fill=(hex(PAPER)) stroke=(hex(LIMIT)) stroke-width="2" {}
                rect class="grip" x=(LEFT - GRIP) y=(-GRIP) width=(RIGHT - LEFT + GRIP) height=(2.0 * GRIP) fill="transparent" {}
            }
        };
        let all = paint::behind(&drawn, &hits.into_string());
        let end = all.rfind("</svg>").unwrap_or(all.len());
        Ok(format!("{}{}{}", &all[..end], line.into_string(), &all[end..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::PeakOfKey;

    #[test]
    fn the_line_moves_within_the_plot_and_names_stay_text() {
        let keys = [900, 40, 3, 1].map(|peak| PeakOfKey { peak, is_hit: false });
        let chart = PeaksByRank {
            title: "<t>",
            unit: "",
            keys: &keys,
            of: Distinct::Exactly(4),
            level: None,
            only_measures: false,
        };
        let levels = [2.0, 80.0, 1e12];
        let movable = Movable::new(&chart, levels.iter().copied());
        let heights = levels.map(|level| movable.y(level));
        assert!(heights[0] > heights[1] && heights[1] > heights[2], "{heights:?}");
        assert!(heights.iter().all(|y| (TOP..=BOTTOM).contains(y)), "{heights:?}");
        let level = Level { name: "</text><script>".to_owned(), value: 80.0 };
        let drawn = movable.svg(&level, &[true, false]).unwrap();
        assert!(drawn.contains("&lt;script&gt;") && !drawn.contains("<script"), "{drawn}");
        assert!(drawn.ends_with("</g></svg>\n") && drawn.contains("class=\"hits\" d=\"M64.0 "), "{drawn}");
        assert_eq!(levels.map(|level| movable.is_above(level)), [false, false, true]);
        assert_eq!(movable.outline(&[]), "");
    }
}
