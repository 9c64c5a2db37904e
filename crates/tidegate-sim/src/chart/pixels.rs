//! A chart as pixels on a light background: the drawing of the SVG, twice as large.

use ab_glyph_rasterizer::Rasterizer;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::BackendColor;
use png::{BitDepth, ColorType, Encoder, PixelDimensions, Unit};
use tidegate::visible;

use super::outline::{Font, Outline, at};
use super::{ChartError, canvas};

/// Pixels for each unit of the picture, for screens of twice the usual density.
const SCALE: f32 = 2.0;
/// Programs that respect it show the picture as large as the SVG, at 96 units per inch.
const PER_METRE: u32 = 7_559;

/// Three bytes per pixel.
pub(super) struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
    font: Font,
    /// The work area for outlines. It grows to the size of the largest.
    raster: Rasterizer,
}

impl Pixels {
    pub(super) fn new((width, height): (u32, u32)) -> Result<Self, ChartError> {
        let pixels = |units: u32| (units as f32 * SCALE) as usize;
        let (width, height) = (pixels(width), pixels(height));
        let RGBColor(r, g, b) = canvas::PAPER;
        let rgb = [r, g, b].repeat(width * height);
        Ok(Self { width, height, rgb, font: Font::read()?, raster: Rasterizer::new(0, 0) })
    }

    /// Fills a rectangle with edges on pixel borders.
    pub(super) fn rectangle(
        &mut self,
        (left, top): (i32, i32),
        (right, bottom): (i32, i32),
        colour: BackendColor,
    ) {
        // The cast saturates: a negative value becomes 0.
        let pixel = |units: i32, most: usize| ((units as f32 * SCALE) as usize).min(most);
        for y in pixel(top, self.height)..pixel(bottom, self.height) {
            for x in pixel(left, self.width)..pixel(right, self.width) {
                blend(&mut self.rgb, y * self.width + x, colour, 1.0);
            }
        }
    }

    pub(super) fn polygon(&mut self, corners: impl IntoIterator<Item = (i32, i32)>, colour: BackendColor) {
        self.fill(&Outline::polygon(corners.into_iter().map(scaled)), colour);
    }

    /// Draws a line through corners. It is dashed if the palette has dashes for the colour.
    pub(super) fn line(
        &mut self,
        corners: impl IntoIterator<Item = (i32, i32)>,
        width: u32,
        colour: BackendColor,
    ) {
        let (r, g, b) = colour.rgb;
        let dash = canvas::dashed().find(|(dashed, _)| *dashed == RGBColor(r, g, b));
        let lengths = dash.map_or("", |(_, lengths)| lengths).split(' ');
        let dashes: Vec<f32> =
            lengths.filter_map(|length| length.parse().ok()).map(|length: f32| length * SCALE).collect();
        let corners: Vec<_> = corners.into_iter().map(scaled).collect();
        self.fill(&Outline::line_through(&corners, width as f32 * SCALE, &dashes), colour);
    }

    /// Writes a text in one line. Invisible characters are escaped.
    pub(super) fn text(
        &mut self,
        text: &str,
        place: (i32, i32),
        size: f64,
        anchor: &Pos,
        colour: BackendColor,
    ) {
        let text = visible::line(text);
        let size = size as f32 * SCALE;
        let place = scaled(place);
        let width = self.font.width(&text, size);
        let x = match anchor.h_pos {
            HPos::Left => place.x,
            HPos::Center => place.x - width / 2.0,
            HPos::Right => place.x - width,
        };
        // Where the SVG has it.
        let y = match anchor.v_pos {
            VPos::Top => place.y + 0.76 * size,
            VPos::Center => place.y + self.font.x_height(size) / 2.0,
            VPos::Bottom => place.y - self.font.x_height(size) / 2.0,
        };
        // A baseline on whole pixels keeps the feet of letters sharp.
        for letter in self.font.letters(&text, size, (x, y.round()), self.width as f32) {
            self.fill(&letter, colour);
        }
    }

    fn fill(&mut self, outline: &Outline, colour: BackendColor) {
        let Some(bounds) = outline.bounds(self.width, self.height) else { return };
        let (rgb, width) = (&mut self.rgb, self.width);
        outline.cover(bounds, &mut self.raster, |x, y, cover| blend(rgb, y * width + x, colour, cover));
    }

    /// Encodes the picture as PNG, with a title for readers who cannot see it.
    pub(super) fn png(&self, title: &str) -> Result<Vec<u8>, ChartError> {
        let mut out = Vec::new();
        let encode = |out: &mut Vec<u8>| {
            let mut encoder = Encoder::new(out, self.width as u32, self.height as u32);
            encoder.set_color(ColorType::Rgb);
            encoder.set_depth(BitDepth::Eight);
            encoder.set_pixel_dims(Some(PixelDimensions {
                xppu: PER_METRE,
                yppu: PER_METRE,
                unit: Unit::Meter,
            }));
            encoder.add_itxt_chunk("Title".to_owned(), visible::line(title).into_owned())?;
            let mut writer = encoder.write_header()?;
            writer.write_image_data(&self.rgb)?;
            writer.finish()
        };
        encode(&mut out).map_err(|error| ChartError(error.to_string()))?;
        Ok(out)
    }
}

fn blend(rgb: &mut [u8], pixel: usize, colour: BackendColor, cover: f32) {
    let cover = cover * colour.alpha as f32;
    if cover <= 0.0 {
        return;
    }
    let (r, g, b) = colour.rgb;
    for (old, new) in rgb.iter_mut().skip(pixel * 3).zip([r, g, b]) {
        // Both values lie between 0 and 255, so the result does too.
        *old = (f32::from(*old) + (f32::from(new) - f32::from(*old)) * cover).round() as u8;
    }
}

fn scaled((x, y): (i32, i32)) -> ab_glyph_rasterizer::Point {
    at(x as f32 * SCALE, y as f32 * SCALE)
}
