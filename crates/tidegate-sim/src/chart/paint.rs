//! The look that all charts share: frame, title, legend, and the last touch that makes an SVG follow the reader's scheme.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tidegate::visible;

use super::ChartError;
use super::canvas::Canvas;
use super::palette::{CURVES, GRID, HIT, INK, LIMIT, PAPER, QUIET, SHADE, dashed, hex};
use super::pixels::Pixels;

pub(super) const WIDTH: u32 = 900;
pub(super) const HEIGHT: u32 = 360;

/// Around the one plot of a page: title and legend above it, its caption below.
pub(super) const WHOLE_PAGE: Surroundings =
    Surroundings { above: 90, below: 30, label_height: 24, label_size: 12 };

/// An axis whose ticks are given: full minutes and round numbers, which the drawing library would not choose.
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

/// The page a chart is drawn on.
pub(super) type Page<'s> = DrawingArea<Canvas<'s>, Shift>;

pub(super) fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

/// Draws on an empty page and returns the finished SVG.
pub(super) fn svg(
    title: &str,
    height: u32,
    draw: impl FnOnce(&Page<'_>) -> Result<(), ChartError>,
) -> Result<String, ChartError> {
    let mut svg = String::new();
    page(Canvas::Svg(SVGBackend::with_string(&mut svg, (WIDTH, height))), title, draw)?;
    // XML allows no control characters, and a name with one would leave a picture that nothing draws.
    Ok(visible::lines(&finish(&svg, title)).into_owned())
}

/// Draws on an empty page and returns it as PNG, light and twice as large.
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

/// What lies around the curves of a plot, in units of the picture.
pub(super) struct Surroundings {
    /// Free above and below it.
    pub(super) above: u32,
    pub(super) below: u32,
    /// The height of the labels under the horizontal axis, and the size of all labels.
    pub(super) label_height: u32,
    pub(super) label_size: i32,
}

/// One axis: where it runs, and how its marks are written.
pub(super) type Axis<'a> = (Marked, &'a dyn Fn(&f64) -> String);

/// A plot, ready for its curves.
pub(super) type Plot<'p, 's> = ChartContext<'p, Canvas<'s>, Cartesian2d<Marked, Marked>>;

/// Draws the axes and the grid of a plot on a page, or on a part of one.
pub(super) fn plot<'p, 's>(
    area: &'p Page<'s>,
    around: &Surroundings,
    (across, write_across): Axis<'_>,
    (up, write_up): Axis<'_>,
) -> Result<Plot<'p, 's>, ChartError> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(around.above)
        .margin_right(28)
        .margin_left(8)
        .margin_bottom(around.below)
        .x_label_area_size(around.label_height)
        .y_label_area_size(56)
        .build_cartesian_2d(across, up)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_label_formatter(&write_across)
        .y_label_formatter(&write_up)
        .label_style(("sans-serif", around.label_size).into_font().color(&INK))
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

/// Returns how times are written on an axis: the labels of its marks, each with its place.
pub(super) fn labels(marks: &[(f64, String)]) -> impl Fn(&f64) -> String + '_ {
    |at| {
        let found = marks.iter().find(|(place, _)| (place - at).abs() < 1e-9);
        found.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// About how wide a text is: there are no fonts here to ask.
pub(super) fn text_width(text: &str, size: f64) -> i32 {
    (text.chars().count() as f64 * size * 0.56) as i32
}

/// A sample of the legend and its words.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sample<'a> {
    Area(&'a str, RGBColor),
    Line(&'a str, RGBColor),
}

/// Writes the legend in one line below the title, from the left: a sample and a word each.
pub(super) fn legend(page: &Page<'_>, samples: &[Sample<'_>]) -> Result<(), ChartError> {
    legend_at(page, (20, 50), samples)
}

/// Writes a legend in one line that begins at a point.
pub(super) fn legend_at(
    page: &Page<'_>,
    (mut x, y): (i32, i32),
    samples: &[Sample<'_>],
) -> Result<(), ChartError> {
    for sample in samples {
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
        x += 32 + text_width(name, 13.0) + 22;
    }
    Ok(())
}

/// Puts elements behind all that is drawn on the paper.
pub(super) fn behind(svg: &str, elements: &str) -> String {
    // The paper is the first shape.
    let paper = svg.find("<rect").and_then(|begin| Some(begin + svg[begin..].find("/>")? + 2));
    let mut out = svg.to_owned();
    if let Some(place) = paper {
        out.insert_str(place, elements);
    }
    out
}

/// Names the picture for readers who cannot see it, puts the dashes on, and adds the dark scheme.
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

/// The style sheet of every picture: the reader's own font, and the dark scheme.
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
