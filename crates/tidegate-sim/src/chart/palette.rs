//! Colours by use, and the dashes that tell curves apart without colour.

use plotters::style::RGBColor;

/// Each colour has one use only, so that dashes and the dark scheme can be assigned by colour.
pub(super) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);
pub(super) const QUIET: RGBColor = RGBColor(0x57, 0x60, 0x6a);
pub(super) const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
pub(super) const PAPER: RGBColor = RGBColor(0xfe, 0xfe, 0xfe);
pub(super) const SHADE: RGBColor = RGBColor(0xc9, 0xd1, 0xd9);
pub(super) const LIMIT: RGBColor = RGBColor(0x1f, 0x23, 0x28);

/// The colour of keys with denied requests.
pub(super) const HIT: RGBColor = RGBColor(0xc2, 0x38, 0x2e);
/// The colour of keys that a policy in shadow mode would have denied requests of, in both schemes.
pub(super) const WOULD_HIT: RGBColor = RGBColor(0xc9, 0x8a, 0x1b);
/// The opacity of the area of keys that were hit.
pub(super) const HIT_OPACITY: f64 = 0.75;

/// Curves in order: colour, dash, colour on dark paper. The colours follow Okabe and Ito and are distinct to
/// most eyes; the dashes tell the curves apart without colour.
pub(super) const CURVES: [(RGBColor, &str, &str); 6] = [
    (RGBColor(0x00, 0x72, 0xb2), "", "#58a6ff"),
    (RGBColor(0xd5, 0x5e, 0x00), "7 4", "#ff9352"),
    (RGBColor(0x00, 0x9e, 0x73), "2 3", "#3fcf9f"),
    (RGBColor(0xb0, 0x5a, 0x8c), "10 3 2 3", "#e394c2"),
    (RGBColor(0x8a, 0x6d, 0x00), "14 4", "#e3b341"),
    (RGBColor(0x3d, 0x3d, 0x9e), "1 5", "#a5a5f5"),
];

/// Returns the colours that are drawn dashed, with their dashes: the lengths of lines and gaps in turn, as in
/// SVG.
pub(super) fn dashed() -> impl Iterator<Item = (RGBColor, &'static str)> {
    let curves = CURVES.into_iter().map(|(colour, dash, _)| (colour, dash));
    curves.chain([(LIMIT, "4 3")]).filter(|(_, dash)| !dash.is_empty())
}

pub(super) fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}
