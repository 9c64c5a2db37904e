//! Charts of a run: SVG for pages and files, PNG for programs that cannot show SVG, block characters for terminals.
//!
//! Curves differ by dash and by name, never by colour alone. The SVG follows the reader's light or dark scheme and
//! needs no font, script or network. The PNG is the same drawing on a light background at twice the size, in a font
//! that is built into the program.

mod axis;
mod canvas;
mod outline;
mod over_time;
mod paint;
mod peaks_by_rank;
mod terminal;
mod tracks;

pub use axis::TimeAxis;
pub use over_time::OverTime;
pub(crate) use over_time::{Panel, Panels};
pub(crate) use paint::style;
pub(crate) use peaks_by_rank::{Movable, PeakOfKey, PeaksByRank};
pub use terminal::Bars;
pub use tracks::{Band, Height, Track, Tracks};

use tidegate::Tick;

use crate::series::{Levels, Series};

/// A chart that can be drawn as SVG or PNG.
pub trait Chart {
    /// Draws an SVG 900 units wide.
    ///
    /// # Errors
    /// [`ChartError`] if the drawing library fails.
    fn svg(&self) -> Result<String, ChartError>;

    /// Draws the SVG in its light scheme as a PNG, two pixels for each unit. Takes about 0.1 s, and about 20 bytes of
    /// memory for each pixel: 26 MB for one plot, 115 MB for twelve.
    ///
    /// # Errors
    /// [`ChartError`] if the drawing library fails.
    fn png(&self) -> Result<Vec<u8>, ChartError>;
}

/// A step curve over time: each value holds from its tick to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// The start of each step, and its value.
    pub steps: Vec<(Tick, f64)>,
    /// The end of the last step.
    pub end: Tick,
}

impl Curve {
    /// Makes a curve of the averages of one lane of the series.
    ///
    /// # Panics
    /// If there is no such lane in a series that has bins.
    pub fn averages(name: impl Into<String>, series: &Series, lane: usize) -> Self {
        let steps: Vec<_> = series.points(lane).map(|point| (point.at, point.per_second)).collect();
        let end = steps.last().map_or(Tick::EPOCH, |(at, _)| at.after(series.width()));
        Self { name: name.into(), steps, end }
    }

    /// Makes a curve of the peaks of one lane of the series, one for each bin.
    ///
    /// # Panics
    /// As [`Curve::averages`].
    pub fn peaks(name: impl Into<String>, series: &Series, lane: usize) -> Self {
        let averages = Self::averages(name, series, lane);
        let steps = series.points(lane).map(|point| (point.at, point.peak_per_second)).collect();
        Self { steps, ..averages }
    }

    pub(crate) fn levels(name: impl Into<String>, levels: &Levels, end: Tick) -> Self {
        let mut steps: Vec<_> = levels.points().map(|(at, level)| (at, level as f64)).collect();
        // The current level holds from the end of the last bin on.
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

/// A limit that is drawn as a horizontal line.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The label, such as `limit 100/s`.
    pub name: String,
    /// The value, in the unit of the axis.
    pub value: f64,
}

/// An error from the drawing library. Drawing into memory does not fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chart could not be drawn: {0}")]
pub struct ChartError(String);

#[cfg(test)]
mod tests;
