//! The chart of peaks with a limit line that a page can move. The movable parts have a CSS class.

use maud::html;

use super::canvas::{HIT_OPACITY, INK, LIMIT, PAPER, hex};
use super::peaks_by_rank::{LEFT, PeaksByRank, RIGHT, Scale};
use super::{ChartError, Level, paint};

/// How far from the line, in units of the picture, a pointer can still grab it.
const GRIP: f64 = 16.0;

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
    use crate::chart::peaks_by_rank::{BOTTOM, TOP};
    use crate::peaks::Distinct;

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
