//! The drawing surface of a chart: SVG or pixels, chosen at run time, so that one drawing routine serves both.

use std::io;

use plotters::prelude::SVGBackend;
use plotters::style::RGBColor;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

use super::pixels::Pixels;

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
