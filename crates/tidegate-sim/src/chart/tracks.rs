//! Several measures of one run over one time axis, one below the other: load, calls in flight, the state of a
//! breaker.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use tidegate::Tick;

use super::axis::{number, round};
use super::canvas::{CURVES, HIT, INK, LIMIT, QUIET, SHADE};
use super::over_time::{pieces, steps};
use super::paint::{self, Axis, Marked, Page, Sample, Surroundings, failed, text_width};
use super::{Chart, ChartError, Curve, TimeAxis};

const MOST: usize = 12;
const HEIGHT: u32 = 148;
const LOW: u32 = 104;
const HEAD: u32 = 44;
const FOOT: u32 = 44;
const TRACK: Surroundings = Surroundings { above: 30, below: 6, label_height: 4, label_size: 11 };
/// The only one with time labels below.
const LAST: Surroundings = Surroundings { above: 30, below: 6, label_height: 22, label_size: 11 };

/// The height of a band. It tells the state without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Height {
    /// The state in which everything passes.
    Low,
    /// The state between the other two.
    Middle,
    /// The state in which everything is refused.
    High,
}

/// A span of time in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// How high it is drawn.
    pub height: Height,
    /// When the state begins.
    pub from: Tick,
    /// When the state ends.
    pub until: Tick,
}

/// One measure over time.
#[derive(Clone, Debug, PartialEq)]
pub enum Track {
    /// Numbers over time.
    Curves {
        /// The title of the track, with the unit: `requests per second`.
        name: String,
        /// A curve drawn as an area behind the others.
        area: Option<Curve>,
        /// The curves; only the first six are drawn. A value that is NaN leaves a gap. A curve without steps
        /// still uses up its colour.
        curves: Vec<Curve>,
        /// A limit, which may change over time.
        limit: Option<Curve>,
    },
    /// A sequence of states.
    Bands {
        /// The title of the track.
        name: String,
        /// The names of the states, from low to high.
        words: [&'static str; 3],
        /// The spans, in order.
        bands: Vec<Band>,
    },
}

/// Tracks below each other, over one time axis.
#[derive(Clone, Debug)]
pub struct Tracks<'a> {
    /// The title above the chart.
    pub title: &'a str,
    /// How times are written.
    pub axis: TimeAxis,
    /// The tracks; only the first twelve are drawn.
    pub tracks: Vec<Track>,
}

struct Times {
    start: Tick,
    span: f64,
    columns: Vec<(f64, String)>,
}

impl Chart for Tracks<'_> {
    fn svg(&self) -> Result<String, ChartError> {
        paint::svg(self.title, self.height(), |page| self.draw(page))
    }

    fn png(&self) -> Result<Vec<u8>, ChartError> {
        paint::png(self.title, self.height(), |page| self.draw(page))
    }
}

impl Tracks<'_> {
    fn drawn(&self) -> &[Track] {
        &self.tracks[..self.tracks.len().min(MOST)]
    }

    fn height(&self) -> u32 {
        HEAD + self.drawn().iter().map(Track::height).sum::<u32>() + FOOT
    }

    fn draw(&self, page: &Page<'_>) -> Result<(), ChartError> {
        let drawn = self.drawn();
        let spans = || drawn.iter().filter_map(Track::span);
        let start = spans().map(|(start, _)| start).min().unwrap_or(Tick::EPOCH);
        let end = spans().map(|(_, end)| end).max().unwrap_or(start);
        let end = end.max(Tick::from_nanos(start.as_nanos().saturating_add(1_000_000)));
        let columns = self.axis.ticks(start, end, 8);
        let times = Times { start, span: end.since(start).as_secs_f64(), columns };
        let mut top = HEAD;
        for (place, track) in drawn.iter().enumerate() {
            let is_last = place + 1 == drawn.len();
            let height = track.height() + if is_last { LAST.label_height - TRACK.label_height } else { 0 };
            let area = page.clone().shrink((0, top), (paint::WIDTH, height));
            track.draw(&area, &times, is_last)?;
            top += track.height();
        }
        let mut caption = self.axis.caption(start, end);
        if drawn.len() < self.tracks.len() {
            caption += &format!("; {} more are not drawn", self.tracks.len() - drawn.len());
        }
        let at = (64, self.height() as i32 - 14);
        paint::write(page, &caption, at, 12.0, &QUIET, HPos::Left)
    }
}

impl Track {
    fn height(&self) -> u32 {
        let rest = paint::legend_rest(self.legend_left(), &self.samples());
        match self {
            Self::Curves { .. } => HEIGHT + rest,
            Self::Bands { .. } => LOW + rest,
        }
    }

    fn name(&self) -> &str {
        let (Self::Curves { name, .. } | Self::Bands { name, .. }) = self;
        name
    }

    fn legend_left(&self) -> i32 {
        20 + text_width(self.name(), 13.0) + 28
    }

    fn span(&self) -> Option<(Tick, Tick)> {
        match self {
            Self::Curves { area, curves, .. } => {
                let spans = area.iter().chain(curves).filter_map(Curve::span);
                spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
            }
            Self::Bands { bands, .. } => Some((bands.first()?.from, bands.last()?.until)),
        }
    }

    fn draw(&self, area: &Page<'_>, times: &Times, is_last: bool) -> Result<(), ChartError> {
        let samples = self.samples();
        paint::write(area, self.name(), (20, 16), 13.0, &INK, HPos::Left)?;
        paint::legend_at(area, (self.legend_left(), 16), &samples)?;
        let around = if is_last { LAST } else { TRACK };
        let rest = paint::legend_rest(self.legend_left(), &samples);
        let around = Surroundings { above: around.above + rest, ..around };
        match self {
            Self::Curves { area: behind, curves, limit, .. } => {
                let highest = behind.iter().chain(curves).chain(limit).map(Curve::max).fold(0.0, f64::max);
                let rows = round(highest * 1.04, 3);
                let values = Marked { start: 0.0, end: rows.last().copied().unwrap_or(1.0), marks: rows };
                let mut plot = times.plot(area, &around, is_last, values, &|value| number(*value))?;
                let corners = |curve: &Curve| steps(curve, times.start);
                if let Some(behind) = behind {
                    plot.draw_series(AreaSeries::new(corners(behind), 0.0, SHADE)).map_err(failed)?;
                }
                for (curve, (colour, ..)) in curves.iter().zip(CURVES) {
                    let corners = corners(curve);
                    // NaN marks a time without a value.
                    let known = corners.split(|(_, value)| value.is_nan());
                    for piece in known.flat_map(pieces) {
                        let line = LineSeries::new(piece.iter().copied(), colour.stroke_width(2));
                        plot.draw_series(line).map_err(failed)?;
                    }
                }
                if let Some(limit) = limit {
                    let line = LineSeries::new(corners(limit), LIMIT.stroke_width(1));
                    plot.draw_series(line).map_err(failed)?;
                }
                Ok(())
            }
            Self::Bands { words, bands, .. } => {
                let values = Marked { start: 0.0, end: 3.4, marks: vec![1.0, 2.0, 3.0] };
                let word = |value: &f64| {
                    let place = (value.round() as usize).saturating_sub(1);
                    words.get(place).map_or_else(String::new, |word| (*word).to_owned())
                };
                let mut plot = times.plot(area, &around, is_last, values, &word)?;
                let at = |tick: Tick| tick.since(times.start).as_secs_f64();
                let bars = bands.iter().map(|band| {
                    let (top, colour) = band.height.look();
                    Rectangle::new([(at(band.from), 0.0), (at(band.until), top)], colour.filled())
                });
                plot.draw_series(bars).map_err(failed).map(drop)
            }
        }
    }

    fn samples(&self) -> Vec<Sample<'_>> {
        match self {
            Self::Curves { area, curves, limit, .. } => {
                let area = area.iter().map(|area| Sample::Area(&area.name, SHADE));
                let curves = curves.iter().zip(CURVES).filter(|(curve, _)| !curve.steps.is_empty());
                let curves = curves.map(|(curve, (colour, ..))| Sample::Line(&curve.name, colour));
                let limit = limit.iter().map(|limit| Sample::Line(&limit.name, LIMIT));
                area.chain(curves).chain(limit).collect()
            }
            Self::Bands { words, .. } => {
                let heights = [Height::Low, Height::Middle, Height::High];
                let word = |(word, height): (&'static str, Height)| Sample::Area(word, height.look().1);
                words.iter().copied().zip(heights).map(word).collect()
            }
        }
    }
}

impl Height {
    fn look(self) -> (f64, RGBColor) {
        match self {
            Self::Low => (1.0, SHADE),
            Self::Middle => (2.0, CURVES[1].0),
            Self::High => (3.0, HIT),
        }
    }
}

impl Times {
    fn plot<'p, 's>(
        &self,
        area: &'p Page<'s>,
        around: &Surroundings,
        is_last: bool,
        values: Marked,
        write: &dyn Fn(&f64) -> String,
    ) -> Result<paint::Plot<'p, 's>, ChartError> {
        let marks = self.columns.iter().map(|(at, _)| *at).collect();
        let across = Marked { start: 0.0, end: self.span, marks };
        let labels = paint::labels(&self.columns);
        let label = |at: &f64| if is_last { labels(at) } else { String::new() };
        paint::plot(area, around, Axis { marked: across, write: &label }, Axis { marked: values, write })
    }
}
