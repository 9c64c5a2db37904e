//! Formats counts for people.

/// Formats a count with commas between thousands: `1,204,331`.
///
/// # Examples
/// ```
/// use tidegate_sim::thousands::grouped;
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
