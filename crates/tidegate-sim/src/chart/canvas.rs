//! The drawing surface of a chart: SVG or pixels, chosen at run time, so that one drawing routine serves both.

use std::io;

use ab_glyph_rasterizer::Rasterizer;
use plotters::prelude::SVGBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};
use png::{BitDepth, ColorType, Encoder, PixelDimensions, Unit};
use tidegate::visible;

use super::ChartError;
use super::outline::{Font, Outline, at};

/// The drawing library divides the font size of an SVG by this factor, and the pixel surface to match.
const SMALLER: f64 = 1.24;

pub(super) enum Canvas<'s> {
    Svg(SVGBackend<'s>),
    Pixels { size: (u32, u32), pixels: &'s mut Pixels },
}

type Drawn = Result<(), DrawingErrorKind<io::Error>>;

impl DrawingBackend for Canvas<'_> {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        match self {
            Self::Svg(svg) => svg.get_size(),
            Self::Pixels { size, .. } => *size,
        }
    }

    fn ensure_prepared(&mut self) -> Drawn {
        match self {
            Self::Svg(svg) => svg.ensure_prepared(),
            Self::Pixels { .. } => Ok(()),
        }
    }

    fn present(&mut self) -> Drawn {
        match self {
            Self::Svg(svg) => svg.present(),
            Self::Pixels { .. } => Ok(()),
        }
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn {
        match self {
            Self::Svg(svg) => svg.draw_pixel(point, color),
            Self::Pixels { pixels, .. } => {
                pixels.rectangle(point, (point.0 + 1, point.1 + 1), color);
                Ok(())
            }
        }
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        match self {
            Self::Svg(svg) => svg.draw_line(from, to, style),
            Self::Pixels { .. } => self.draw_path([from, to], style),
        }
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        bottom_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        match self {
            Self::Svg(svg) => svg.draw_rect(upper_left, bottom_right, style, fill),
            Self::Pixels { pixels, .. } if fill => {
                pixels.rectangle(upper_left, bottom_right, style.color());
                Ok(())
            }
            Self::Pixels { .. } => {
                let (left, top, right, bottom) = (upper_left.0, upper_left.1, bottom_right.0, bottom_right.1);
                self.draw_path(
                    [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)],
                    style,
                )
            }
        }
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        match self {
            Self::Svg(svg) => svg.draw_path(path, style),
            Self::Pixels { pixels, .. } => {
                pixels.line(path, style.stroke_width(), style.color());
                Ok(())
            }
        }
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        vert: I,
        style: &S,
    ) -> Drawn {
        match self {
            Self::Svg(svg) => svg.fill_polygon(vert, style),
            Self::Pixels { pixels, .. } => {
                pixels.polygon(vert, style.color());
                Ok(())
            }
        }
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, pos: BackendCoord) -> Drawn {
        match self {
            Self::Svg(svg) => svg.draw_text(text, style, pos),
            Self::Pixels { pixels, .. } => {
                pixels.text(text, pos, style.size() / SMALLER, &style.anchor(), style.color());
                Ok(())
            }
        }
    }
}

// Colours by use, and the dashes that tell curves apart without colour.

/// Each colour has one use only, so that dashes and the dark scheme can be assigned by colour.
pub(super) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
pub(super) const QUIET: RGBColor = RGBColor(0x57, 0x60, 0x6a);
pub(super) const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
pub(super) const PAPER: RGBColor = RGBColor(0xfe, 0xfe, 0xfe);
pub(super) const SHADE: RGBColor = RGBColor(0xc9, 0xd1, 0xd9);
pub(super) const LIMIT: RGBColor = RGBColor(0x1f, 0x23, 0x28);

/// The colour of keys with denied requests.
pub(super) const HIT: RGBColor = RGBColor(0xc2, 0x38, 0x2e);
pub(super) const WOULD_HIT: RGBColor = RGBColor(0xc9, 0x8a, 0x1b);
pub(super) const HIT_OPACITY: f64 = 0.75;

/// Curves in order: colour, dash, colour on dark paper. The colours follow Okabe and Ito and are distinct to most eyes.
pub(super) const CURVES: [(RGBColor, &str, &str); 6] = [
    (RGBColor(0x00, 0x72, 0xb2), "", "#58a6ff"),
    (RGBColor(0xd5, 0x5e, 0x00), "7 4", "#ff9352"),
    (RGBColor(0x00, 0x9e, 0x73), "2 3", "#3fcf9f"),
    (RGBColor(0xb0, 0x5a, 0x8c), "10 3 2 3", "#e394c2"),
    (RGBColor(0x8a, 0x6d, 0x00), "14 4", "#e3b341"),
    (RGBColor(0x3d, 0x3d, 0x9e), "1 5", "#a5a5f5"),
];

/// The colours that are drawn dashed: the lengths of lines and gaps in turn, as in SVG.
pub(super) fn dashed() -> impl Iterator<Item = (RGBColor, &'static str)> {
    let curves = CURVES.into_iter().map(|(colour, dash, _)| (colour, dash));
    curves.chain([(LIMIT, "4 3")]).filter(|(_, dash)| !dash.is_empty())
}

pub(super) fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Pixels for each unit of the picture, for screens of twice the usual density.
const SCALE: f32 = 2.0;
/// Programs that respect it show the picture as large as the SVG, at 96 units per inch.
const PER_METRE: u32 = 7_559;

/// A chart as pixels on a light background: the drawing of the SVG, twice as large. Three bytes per pixel.
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
        let RGBColor(r, g, b) = PAPER;
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
        let dash = dashed().find(|(dashed, _)| *dashed == RGBColor(r, g, b));
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
