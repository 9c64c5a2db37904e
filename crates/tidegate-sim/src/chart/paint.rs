//! Parts that all charts share, and the final step that adapts an SVG to the reader's scheme.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tidegate::visible;

use super::ChartError;
use super::canvas::{CURVES, Canvas, GRID, HIT, INK, LIMIT, PAPER, Pixels, QUIET, SHADE, dashed, hex};

pub(super) const WIDTH: u32 = 900;
pub(super) const HEIGHT: u32 = 360;

pub(super) const WHOLE_PAGE: Surroundings =
    Surroundings { above: 90, below: 30, label_height: 24, label_size: 12 };

/// An axis with given ticks, which the drawing library would not choose itself.
pub(super) struct Marked {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.start) / (self.end - self.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.start..self.end
    }
}

pub(super) type Page<'s> = DrawingArea<Canvas<'s>, Shift>;

pub(super) fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

pub(super) fn svg(
    title: &str,
    height: u32,
    draw: impl FnOnce(&Page<'_>) -> Result<(), ChartError>,
) -> Result<String, ChartError> {
    let mut svg = String::new();
    page(Canvas::Svg(SVGBackend::with_string(&mut svg, (WIDTH, height))), title, draw)?;
    // XML does not allow control characters: one in a name would make the whole picture unreadable.
    Ok(visible::lines(&finish(&svg, title)).into_owned())
}

pub(super) fn png(
    title: &str,
    height: u32,
    draw: impl FnOnce(&Page<'_>) -> Result<(), ChartError>,
) -> Result<Vec<u8>, ChartError> {
    let size = (WIDTH, height);
    let mut pixels = Pixels::new(size)?;
    page(Canvas::Pixels { size, pixels: &mut pixels }, title, draw)?;
    pixels.png(title)
}

fn page(
    canvas: Canvas<'_>,
    title: &str,
    draw: impl FnOnce(&Page<'_>) -> Result<(), ChartError>,
) -> Result<(), ChartError> {
    let page = canvas.into_drawing_area();
    page.fill(&PAPER).map_err(failed)?;
    write(&page, title, (20, 26), 17.0, &INK, HPos::Left)?;
    draw(&page)?;
    page.present().map_err(failed)
}

pub(super) fn write(
    page: &Page<'_>,
    text: &str,
    at: (i32, i32),
    size: f64,
    colour: &RGBColor,
    side: HPos,
) -> Result<(), ChartError> {
    let style = ("sans-serif", size).into_font().color(colour).pos(Pos::new(side, VPos::Center));
    page.draw(&Text::new(text.to_owned(), at, style)).map_err(failed)
}

/// The space around the curves of a plot, in units of the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    pub(super) above: u32,
    pub(super) below: u32,
    /// The height of the labels under the horizontal axis, and the size of all labels.
    pub(super) label_height: u32,
    pub(super) label_size: i32,
}

pub(super) struct Axis<'a> {
    pub(super) marked: Marked,
    pub(super) write: &'a dyn Fn(&f64) -> String,
}

pub(super) type Plot<'p, 's> = ChartContext<'p, Canvas<'s>, Cartesian2d<Marked, Marked>>;

pub(super) fn plot<'p, 's>(
    area: &'p Page<'s>,
    around: &Surroundings,
    across: Axis<'_>,
    up: Axis<'_>,
) -> Result<Plot<'p, 's>, ChartError> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(around.above)
        .margin_right(28)
        .margin_left(8)
        .margin_bottom(around.below)
        .x_label_area_size(around.label_height)
        .y_label_area_size(56)
        .build_cartesian_2d(across.marked, up.marked)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_label_formatter(&across.write)
        .y_label_formatter(&up.write)
        .label_style(("sans-serif", around.label_size).into_font().color(&INK))
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

/// Returns a function that gives the label of a mark by its position.
pub(super) fn labels(marks: &[(f64, String)]) -> impl Fn(&f64) -> String + '_ {
    |at| {
        let found = marks.iter().find(|(place, _)| (place - at).abs() < 1e-9);
        found.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// An estimate; the SVG drawing has no font to measure with.
pub(super) fn text_width(text: &str, size: f64) -> i32 {
    (text.chars().count() as f64 * size * 0.56) as i32
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Sample<'a> {
    Area(&'a str, RGBColor),
    Line(&'a str, RGBColor),
}

const LEFT: i32 = 20;
const LEGEND_LINE: i32 = 20;

impl<'a> Sample<'a> {
    const fn name(&self) -> &'a str {
        match *self {
            Self::Area(name, _) | Self::Line(name, _) => name,
        }
    }
}

/// Returns where each entry of a legend begins, if the first one begins at a point. An entry that would reach beyond
/// the page begins a new line.
fn placed((mut x, mut y): (i32, i32), samples: &[Sample<'_>]) -> Vec<(i32, i32)> {
    let place = |sample: &Sample<'_>| {
        let width = 32 + text_width(sample.name(), 13.0);
        if x > LEFT && x + width > WIDTH as i32 {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += width + 22;
        at
    };
    samples.iter().map(place).collect()
}

/// Returns the height of all lines of a legend but the first, whose left edge is given.
pub(super) fn legend_rest(left: i32, samples: &[Sample<'_>]) -> u32 {
    placed((left, 0), samples).last().map_or(0, |(_, y)| y.unsigned_abs())
}

/// Returns the height of all lines but the first of a legend below the title.
pub(super) fn legend_below(samples: &[Sample<'_>]) -> u32 {
    legend_rest(LEFT, samples)
}

/// Draws the legend below the title, from the left.
pub(super) fn legend(page: &Page<'_>, samples: &[Sample<'_>]) -> Result<(), ChartError> {
    legend_at(page, (LEFT, 50), samples)
}

pub(super) fn legend_at(
    page: &Page<'_>,
    start: (i32, i32),
    samples: &[Sample<'_>],
) -> Result<(), ChartError> {
    for (sample, (x, y)) in samples.iter().zip(placed(start, samples)) {
        let name = match *sample {
            Sample::Area(name, colour) => {
                let corners = [(x, y - 6), (x + 26, y + 6)];
                page.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)?;
                name
            }
            Sample::Line(name, colour) => {
                let line = vec![(x, y), (x + 26, y)];
                page.draw(&PathElement::new(line, colour.stroke_width(2))).map_err(failed)?;
                name
            }
        };
        write(page, name, (x + 32, y), 13.0, &INK, HPos::Left)?;
    }
    Ok(())
}

pub(super) fn behind(svg: &str, elements: &str) -> String {
    // The first shape is the paper.
    let paper = svg.find("<rect").and_then(|begin| Some(begin + svg[begin..].find("/>")? + 2));
    let mut out = svg.to_owned();
    if let Some(place) = paper {
        out.insert_str(place, elements);
    }
    out
}

/// Adds the title for readers who cannot see the picture, the dashes, and the dark scheme.
fn finish(svg: &str, title: &str) -> String {
    let mut out = svg.to_owned();
    for (colour, dash) in dashed() {
        let stroke = format!("stroke=\"{}\"", hex(colour));
        out = out.replace(&stroke, &format!("{stroke} stroke-dasharray=\"{dash}\""));
    }
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let head = format!("<title>{title}</title><style>{}</style>", style());
    if let Some(end) = out.find('>') {
        out.insert_str(end + 1, &head);
    }
    out.replacen("<svg ", "<svg role=\"img\" ", 1)
}

/// The reader's own font, and the dark scheme.
pub(crate) fn style() -> String {
    let dark: String = CURVES
        .iter()
        .map(|(colour, _, dark)| (*colour, *dark))
        .chain([
            (INK, "#e6edf3"),
            (QUIET, "#9da7b1"),
            (GRID, "#30363d"),
            (PAPER, "#0d1117"),
            (SHADE, "#3d444d"),
            (HIT, "#f4766c"),
        ])
        .chain([(LIMIT, "#f0f3f6")])
        .map(|(colour, dark)| {
            let colour = hex(colour);
            format!("[fill=\"{colour}\"]{{fill:{dark}}}[stroke=\"{colour}\"]{{stroke:{dark}}}")
        })
        .collect();
    format!(
        "text{{font-family:system-ui,sans-serif;font-variant-numeric:tabular-nums}}\
         @media(prefers-color-scheme:dark){{{dark}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of compared runs must not run off the page.
    #[test]
    fn a_legend_goes_on_in_the_next_line() {
        let names: Vec<String> = (1..=6).map(|number| format!("concurrency, max {number}00")).collect();
        let samples: Vec<Sample<'_>> = names.iter().map(|name| Sample::Line(name, INK)).collect();
        let places = placed((300, 16), &samples);
        let end = |(sample, (x, _)): (&Sample<'_>, &(i32, i32))| x + 32 + text_width(sample.name(), 13.0);
        assert!(samples.iter().zip(&places).all(|one| end(one) <= WIDTH as i32), "{places:?}");
        let lines: Vec<i32> = places.iter().map(|(_, y)| *y).collect();
        assert_eq!(lines, [16, 16, 16, 36, 36, 36]);
        assert_eq!((legend_rest(300, &samples), legend_rest(LEFT, &samples[..2])), (20, 0));
    }
}
