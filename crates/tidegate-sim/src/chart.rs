//! Pictures of a run: SVG for pages and files, PNG for whatever shows no SVG, blocks for terminals.
//!
//! Curves are told apart by dash and by word, never by colour alone. The SVG follows the reader's light or dark scheme, holds
//! its text as text, and needs no font, script or network. The PNG is the same drawing on light paper, twice as large, in a font that the
//! program carries; reading it needs no font, and neither does making it.

mod axis;
mod canvas;
mod falling;
mod glyphs;
mod movable;
mod outline;
mod over_time;
mod paint;
mod palette;
mod panels;
mod pixels;
mod terminal;
mod tracks;

pub use axis::TimeAxis;
pub use falling::{Falling, PeakOfKey};
pub(crate) use movable::Movable;
pub use over_time::OverTime;
pub(crate) use paint::style;
pub use panels::{Panel, Panels};
pub use terminal::{Bars, sparkline};
pub use tracks::{Band, Height, Track, Tracks};

use tidegate::Tick;

use crate::levels::Levels;
use crate::series::Series;

/// A chart, to be drawn in either form.
pub trait Chart {
    /// Draws an SVG 900 wide.
    ///
    /// # Errors
    /// [`ChartError`], which drawing into memory does not give.
    fn svg(&self) -> Result<String, ChartError>;

    /// Draws a PNG 1800 wide: the SVG in its light form, with two pixels for each of its units. Takes about 0.1 s, and some 20 bytes of memory
    /// for each pixel: 26 MB for one plot, 115 MB for [`Panels`] of twelve runs.
    ///
    /// # Errors
    /// [`ChartError`], which drawing into memory does not give.
    fn png(&self) -> Result<Vec<u8>, ChartError>;
}

/// A curve of steps over time: each value holds from its tick to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name, for the legend.
    pub name: String,
    /// When each step begins, and its value.
    pub steps: Vec<(Tick, f64)>,
    /// When the last step ends.
    pub end: Tick,
}

impl Curve {
    /// Makes a curve of the averages of one lane.
    pub fn averages(name: impl Into<String>, series: &Series, lane: usize) -> Self {
        let steps: Vec<_> = series.points(lane).map(|point| (point.at, point.per_second)).collect();
        let end = steps.last().map_or(Tick::EPOCH, |(at, _)| at.after(series.width()));
        Self { name: name.into(), steps, end }
    }

    /// Makes a curve of the highest values of one lane within the resolution of the series.
    pub fn peaks(name: impl Into<String>, series: &Series, lane: usize) -> Self {
        let averages = Self::averages(name, series, lane);
        let steps = series.points(lane).map(|point| (point.at, point.peak_per_second)).collect();
        Self { steps, ..averages }
    }

    /// Makes a curve of levels that lasts until `end`.
    pub fn levels(name: impl Into<String>, levels: &Levels, end: Tick) -> Self {
        let mut steps: Vec<_> = levels.points().map(|(at, level)| (at, level as f64)).collect();
        // A bin has its highest level; what was set last holds after the last bin.
        let after = steps.last().map(|(at, _)| at.after(levels.width()));
        steps.extend(after.filter(|after| *after < end).map(|after| (after, levels.now() as f64)));
        Self { name: name.into(), steps, end }
    }

    fn max(&self) -> f64 {
        self.steps.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }

    fn span(&self) -> Option<(Tick, Tick)> {
        Some((self.steps.first()?.0, self.end))
    }
}

/// A limit to draw a line at.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Its words: `limit 100/s`.
    pub name: String,
    /// Where it lies, in the unit of the axis.
    pub value: f64,
}

/// Why a picture could not be drawn. Drawing into memory does not fail; this is what the drawing library could say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chart could not be drawn: {0}")]
pub struct ChartError(String);

#[cfg(test)]
mod tests;
