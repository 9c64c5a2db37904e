//! Parses whole numbers: `1000`, `1_000`, `5k`, `5.0`.

use super::error::GrammarError;

/// The largest count that the core crate accepts.
const MAX_COUNT: u64 = tidegate_core::Rate::MAX_COUNT;

/// Parses a whole number that stands alone: as in a rate, or with a fraction of zeros, as programs that write files add
/// one.
///
/// # Errors
/// [`GrammarError::Number`] if the text is not such a number, or the number is above
/// [`Rate::MAX_COUNT`](tidegate_core::Rate::MAX_COUNT).
#[cfg(feature = "config")]
pub fn whole_number(text: &str) -> Result<u64, GrammarError> {
    match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => {
            plain_number(whole)
        }
        _ => plain_number(text),
    }
}

/// Parses a whole number: digits, `_` between digits, `k` for thousand.
///
/// # Errors
/// [`GrammarError::Number`] if the text is not such a number, or the number is too large.
pub(super) fn plain_number(text: &str) -> Result<u64, GrammarError> {
    let refuse = || GrammarError::Number { text: text.to_owned() };
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let outside = digits.starts_with('_') || digits.ends_with('_') || digits.is_empty();
    if outside || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(refuse());
    }
    let plain: String = digits.chars().filter(|digit| *digit != '_').collect();
    let number: u64 = plain.parse().map_err(|_| refuse())?;
    number.checked_mul(factor).filter(|number| *number <= MAX_COUNT).ok_or_else(refuse)
}
