//! Parses shares such as `80%`.

use tidegate_gate::policy::whole_number;
use tidegate_limits::priority::Kept;

/// Parses a percentage from `1%` to `100%`.
pub(super) fn percent(text: &str) -> Option<u8> {
    let number: u8 = text.strip_suffix('%')?.trim().parse().ok()?;
    (1..=100).contains(&number).then_some(number)
}

/// Parses a percentage (`0%` to `100%`) or a number of units.
pub(super) fn kept(text: &str) -> Option<Kept> {
    match text.trim_end().strip_suffix('%') {
        Some(number) if number.trim() == "0" => Some(Kept::Percent(0)),
        Some(_) => percent(text.trim_end()).map(Kept::Percent),
        None => whole_number(text).ok().map(Kept::Units),
    }
}
