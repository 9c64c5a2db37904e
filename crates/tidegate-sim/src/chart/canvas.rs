//! The drawing surface of a chart: SVG or pixels, chosen at run time, so that one drawing routine serves both.

use std::io;

use plotters::prelude::SVGBackend;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

use super::pixels::Pixels;

/// The drawing library divides the font size of an SVG by this factor. The pixel surface divides it too, to
/// match.
const SMALLER: f64 = 1.24;

/// A picture in either form.
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
