/// Formats a count with commas between thousands: `1,204,331`.
///
/// # Examples
/// ```
/// use tidegate_sim::grouped;
/// assert_eq!([0, 999, 1_000, 1_204_331].map(grouped), ["0", "999", "1,000", "1,204,331"]);
/// ```
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a share as a percentage, with two decimals below 10 % and one from there on.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        p if p < 0.01 => "< 0.01 %".to_owned(),
        p if p < 10.0 => format!("{p:.2} %"),
        p => format!("{p:.1} %"),
    }
}
