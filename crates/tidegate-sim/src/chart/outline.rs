//! Outlines of filled areas: shapes, letters, and lines with a width.

use ab_glyph_rasterizer::{Point, Rasterizer, point as at_point};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::ChartError;

/// Closed loops of lines and curves, in pixels from the upper left corner.
#[derive(Clone, Debug, Default)]
pub(super) struct Outline {
    parts: Vec<OutlinePiece>,
    first: Point,
    last: Point,
}

#[derive(Clone, Copy, Debug)]
enum OutlinePiece {
    Line(Point, Point),
    Curve(Point, Point, Point),
}

/// The rectangle of pixels that an outline may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) left: usize,
    pub(super) top: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

pub(super) fn at(x: f32, y: f32) -> Point {
    at_point(x, y)
}

fn distance(from: Point, to: Point) -> f32 {
    (to.x - from.x).hypot(to.y - from.y)
}

impl Outline {
    pub(super) fn polygon(corners: impl IntoIterator<Item = Point>) -> Self {
        let mut out = Self::default();
        out.add(corners);
        out
    }

    /// A line with a width through corners. `dashes` holds the lengths of dashes and gaps in turn. Ends are cut off
    /// straight and corners are square, as step curves need them.
    pub(super) fn line_through(corners: &[Point], width: f32, dashes: &[f32]) -> Self {
        let mut out = Self::default();
        for piece in pieces(corners, dashes) {
            for (place, ends) in piece.windows(2).enumerate() {
                let (from, to) = (ends[0], ends[1]);
                let length = distance(from, to);
                let half = width / 2.0;
                let (x, y) = ((to.x - from.x) / length * half, (to.y - from.y) / length * half);
                // By half the width where another stretch follows, to fill the corner between the two.
                let before = if place > 0 { 1.0 } else { 0.0 };
                let after = if place + 2 < piece.len() { 1.0 } else { 0.0 };
                let (from, to) =
                    (at(from.x - x * before, from.y - y * before), at(to.x + x * after, to.y + y * after));
                out.add([
                    at(from.x - y, from.y + x),
                    at(to.x - y, to.y + x),
                    at(to.x + y, to.y - x),
                    at(from.x + y, from.y - x),
                ]);
            }
        }
        out
    }

    pub(super) fn begin(&mut self, to: Point) {
        (self.first, self.last) = (to, to);
    }

    pub(super) fn line(&mut self, to: Point) {
        self.parts.push(OutlinePiece::Line(self.last, to));
        self.last = to;
    }

    pub(super) fn curve(&mut self, bend: Point, to: Point) {
        self.parts.push(OutlinePiece::Curve(self.last, bend, to));
        self.last = to;
    }

    pub(super) fn close(&mut self) {
        self.line(self.first);
    }

    fn add(&mut self, corners: impl IntoIterator<Item = Point>) {
        let mut corners = corners.into_iter();
        let Some(first) = corners.next() else { return };
        self.begin(first);
        corners.for_each(|corner| self.line(corner));
        self.close();
    }

    /// Returns the pixels that the outline may touch in a picture of this size; `None` if it lies outside.
    pub(super) fn bounds(&self, width: usize, height: usize) -> Option<Bounds> {
        let points = self.parts.iter().flat_map(|part| match *part {
            OutlinePiece::Line(from, to) => [from, to, to],
            OutlinePiece::Curve(from, bend, to) => [from, bend, to],
        });
        let far = f32::INFINITY;
        let (low, high) = points.fold((at(far, far), at(-far, -far)), |(low, high), point| {
            (at(low.x.min(point.x), low.y.min(point.y)), at(high.x.max(point.x), high.y.max(point.y)))
        });
        // Casts saturate: a negative value becomes 0, infinity the largest integer.
        let (left, top) = (low.x.floor() as usize, low.y.floor() as usize);
        let (right, bottom) = ((high.x.ceil() as usize).min(width), (high.y.ceil() as usize).min(height));
        (left < right && top < bottom).then(|| Bounds {
            left,
            top,
            width: right - left,
            height: bottom - top,
        })
    }

    /// Calls `each` with every pixel within bounds and the share of it, 0 to 1, that the outline covers. Loops of the
    /// same direction add up to one area, as the letters of the font and the stretches of a line need. `raster` is a
    /// work area.
    pub(super) fn cover(
        &self,
        bounds: Bounds,
        raster: &mut Rasterizer,
        mut each: impl FnMut(usize, usize, f32),
    ) {
        let Bounds { left, top, width, height } = bounds;
        raster.reset(width, height);
        // The rasterizer expects all points inside.
        let inside = |point: Point| {
            at(
                (point.x - left as f32).clamp(0.0, width as f32),
                (point.y - top as f32).clamp(0.0, height as f32),
            )
        };
        for part in &self.parts {
            match *part {
                OutlinePiece::Line(from, to) => raster.draw_line(inside(from), inside(to)),
                OutlinePiece::Curve(from, bend, to) => {
                    raster.draw_quad(inside(from), inside(bend), inside(to));
                }
            }
        }
        raster.for_each_pixel(|place, cover| each(left + place % width, top + place / width, cover.min(1.0)));
    }
}

/// Cuts a line into its dashes. Equal neighbouring corners count once.
fn pieces(corners: &[Point], dashes: &[f32]) -> Vec<Vec<Point>> {
    let mut corners = corners.to_vec();
    corners.dedup();
    if dashes.is_empty() || dashes.iter().any(|length| *length <= 0.0) {
        return vec![corners];
    }
    let mut out = Vec::new();
    let mut dash = 0;
    let mut left = dashes[0];
    let mut piece: Vec<Point> = corners.first().copied().into_iter().collect();
    for ends in corners.windows(2) {
        let (mut from, to) = (ends[0], ends[1]);
        loop {
            let rest = distance(from, to);
            let is_drawn = dash % 2 == 0;
            if rest <= left {
                left -= rest;
                if is_drawn {
                    piece.push(to);
                }
                break;
            }
            let share = left / rest;
            from = at(from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share);
            if is_drawn {
                piece.push(from);
                out.push(std::mem::take(&mut piece));
            } else {
                piece = vec![from];
            }
            dash += 1;
            left = dashes[dash % dashes.len()];
        }
    }
    out.push(piece);
    out
}

// Text in a font that is built into the program, so that pictures look the same on a machine without fonts: Noto Sans,
// with Latin, Greek and Cyrillic letters and arrows. A missing letter is drawn as a box. Scripts with joined letters or
// other directions are not set correctly.

pub(super) struct Font(Face<'static>);

impl Font {
    /// Takes microseconds and copies nothing.
    pub(super) fn read() -> Result<Self, ChartError> {
        let face = Face::parse(ttf_noto_sans::REGULAR, 0);
        face.map(Self).map_err(|error| ChartError(error.to_string()))
    }

    pub(super) fn width(&self, text: &str, size: f32) -> f32 {
        text.chars().map(|letter| self.advance(self.glyph(letter), size)).sum()
    }

    /// Returns the height of an `x` at a font size, for centring text vertically.
    pub(super) fn x_height(&self, size: f32) -> f32 {
        // Half the size if the font does not tell, as CSS does.
        self.0.x_height().map_or(size / 2.0, |height| f32::from(height) * self.scale(size))
    }

    /// The letters of a text that starts at a point on its baseline. Letters that start right of `end` are left out.
    pub(super) fn letters(
        &self,
        text: &str,
        size: f32,
        (mut x, baseline): (f32, f32),
        end: f32,
    ) -> Vec<Outline> {
        let mut out = Vec::new();
        for letter in text.chars() {
            if x > end {
                break;
            }
            let glyph = self.glyph(letter);
            let mut pen = Pen { outline: Outline::default(), x, baseline, scale: self.scale(size) };
            // A blank has no outline.
            if self.0.outline_glyph(glyph, &mut pen).is_some() {
                out.push(pen.outline);
            }
            x += self.advance(glyph, size);
        }
        out
    }

    /// The font's first glyph, a box, stands for what it lacks.
    fn glyph(&self, letter: char) -> GlyphId {
        self.0.glyph_index(letter).unwrap_or(GlyphId(0))
    }

    fn advance(&self, glyph: GlyphId, size: f32) -> f32 {
        f32::from(self.0.glyph_hor_advance(glyph).unwrap_or(0)) * self.scale(size)
    }

    fn scale(&self, size: f32) -> f32 {
        size / f32::from(self.0.units_per_em())
    }
}

/// Converts from font units, with y upward, to pixels.
struct Pen {
    outline: Outline,
    x: f32,
    baseline: f32,
    scale: f32,
}

impl Pen {
    fn place(&self, x: f32, y: f32) -> Point {
        at(self.x + x * self.scale, self.baseline - y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        self.outline.begin(self.place(x, y));
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.outline.line(self.place(x, y));
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.outline.curve(self.place(x1, y1), self.place(x, y));
    }

    /// Draws a cubic curve as two straight lines. The built-in font has only quadratic curves, so this is never
    /// visible.
    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.outline.line(self.place((x1 + x2) / 2.0, (y1 + y2) / 2.0));
        self.outline.line(self.place(x, y));
    }

    fn close(&mut self) {
        self.outline.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the area that an outline covers, in square pixels.
    fn area(outline: &Outline) -> f32 {
        let mut sum = 0.0;
        if let Some(bounds) = outline.bounds(100, 100) {
            outline.cover(bounds, &mut Rasterizer::new(0, 0), |_, _, cover| sum += cover);
        }
        sum
    }

    fn about(outline: &Outline, wanted: f32) {
        let area = area(outline);
        assert!((area - wanted).abs() < 0.05, "{area} {wanted}");
    }

    #[test]
    fn a_line_covers_its_length_times_its_width() {
        let line = [at(10.0, 10.0), at(30.0, 10.0), at(30.0, 10.0), at(30.0, 40.0)];
        // The corner of 4 × 4 is covered once, whichever stretch fills it.
        about(&Outline::line_through(&line[..2], 4.0, &[]), 80.0);
        about(&Outline::line_through(&line, 4.0, &[]), (20.0 + 30.0) * 4.0);
        // Over a length of 50, dashes of 6 and gaps of 4 alternate five times.
        about(&Outline::line_through(&line, 2.0, &[6.0, 4.0]), 5.0 * 6.0 * 2.0);
        about(&Outline::line_through(&line[..1], 4.0, &[6.0]), 0.0);
        about(&Outline::line_through(&[], 4.0, &[6.0]), 0.0);
    }

    #[test]
    fn what_lies_outside_is_not_drawn() {
        let square = |low: f32, high: f32| {
            Outline::polygon([at(low, low), at(high, low), at(high, high), at(low, high)])
        };
        about(&square(20.0, 30.5), 10.5 * 10.5);
        about(&square(-20.0, 30.0), 30.0 * 30.0);
        about(&square(90.0, 1e30), 100.0);
        about(&square(-1e30, 1e30), 10_000.0);
        for outside in [square(-20.0, -10.0), square(100.0, 200.0), Outline::default()] {
            assert_eq!(outside.bounds(100, 100), None);
        }
    }
}
