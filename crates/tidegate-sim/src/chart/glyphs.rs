//! Text as outlines, in the one font that the program carries: the pictures look the same on a machine without fonts.
//!
//! Noto Sans has the Latin, Greek and Cyrillic letters, and arrows. A letter it does not have is drawn as a box; letters stand side by
//! side from the left, so scripts that join or turn their letters are not set as their readers expect.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::ChartError;
use super::outline::{Outline, at};

/// A font, ready to draw.
pub(super) struct Font(Face<'static>);

impl Font {
    /// Reads the font; that takes microseconds, nothing is copied.
    pub(super) fn read() -> Result<Self, ChartError> {
        let face = Face::parse(ttf_noto_sans::REGULAR, 0);
        face.map(Self).map_err(|error| ChartError(error.to_string()))
    }

    /// Returns how wide a text is at a size: both in pixels.
    pub(super) fn width(&self, text: &str, size: f32) -> f32 {
        text.chars().map(|letter| self.advance(self.glyph(letter), size)).sum()
    }

    /// Returns the height of an `x` at a size, by which text is centred.
    pub(super) fn x_height(&self, size: f32) -> f32 {
        // A font that does not say has a half, as in CSS.
        self.0.x_height().map_or(size / 2.0, |height| f32::from(height) * self.scale(size))
    }

    /// Returns the outlines of the letters of a text that begins at a point of its baseline, without those that begin right of `end`.
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

    /// Returns the glyph of a letter, or the first of the font, which is the box for those it does not have.
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

/// Moves a glyph from the font's units, in which y grows upward, to its place in the picture.
struct Pen {
    outline: Outline,
    x: f32,
    baseline: f32,
    scale: f32,
}

impl Pen {
    fn place(&self, x: f32, y: f32) -> ab_glyph_rasterizer::Point {
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

    /// The third-degree curves of other kinds of font, of which this one has none: close enough as two straight lines.
    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.outline.line(self.place((x1 + x2) / 2.0, (y1 + y2) / 2.0));
        self.outline.line(self.place(x, y));
    }

    fn close(&mut self) {
        self.outline.close();
    }
}
