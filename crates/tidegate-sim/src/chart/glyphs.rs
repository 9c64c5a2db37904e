//! Text as outlines, in the font that is built into the program, so that pictures look the same on a machine
//! without fonts.
//!
//! The font is Noto Sans, with Latin, Greek and Cyrillic letters and arrows. A missing letter is drawn as a
//! box. Letters are placed side by side from left to right, so scripts with joined letters or other directions
//! are not set correctly.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::ChartError;
use super::outline::{Outline, at};

/// The built-in font, parsed.
pub(super) struct Font(Face<'static>);

impl Font {
    /// Parses the font. Takes microseconds and copies nothing.
    pub(super) fn read() -> Result<Self, ChartError> {
        let face = Face::parse(ttf_noto_sans::REGULAR, 0);
        face.map(Self).map_err(|error| ChartError(error.to_string()))
    }

    /// Returns the width of a text in pixels, at a font size in pixels.
    pub(super) fn width(&self, text: &str, size: f32) -> f32 {
        text.chars().map(|letter| self.advance(self.glyph(letter), size)).sum()
    }

    /// Returns the height of an `x` at a font size, for centring text vertically.
    pub(super) fn x_height(&self, size: f32) -> f32 {
        // For a font without an x-height, use half the size, as CSS does.
        self.0.x_height().map_or(size / 2.0, |height| f32::from(height) * self.scale(size))
    }

    /// Returns the outlines of the letters of a text that starts at a point on its baseline. Letters that start
    /// right of `end` are left out.
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

    /// Returns the glyph of a letter, or the font's first glyph, a box, if the font lacks the letter.
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

/// Converts the outline of a glyph from font units, with y upward, to pixels of the picture.
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
