//! The range check of all parameters, for every kind of number, with one error.

use core::fmt::Debug;
use core::ops::RangeInclusive;

use crate::error::QuotaError;

/// Returns `value` if it lies in `range`; otherwise [`QuotaError::Parameter`]. NaN lies in no range.
pub(crate) fn in_range<T: PartialOrd + Debug>(
    name: &'static str,
    value: T,
    range: &RangeInclusive<T>,
    want: &'static str,
) -> Result<T, QuotaError> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(QuotaError::Parameter { name, value: format!("{value:?}"), want })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_knob_its_value_and_what_would_work() {
        let want = "is not a share; use 0 to 1";
        assert_eq!(in_range("smoothing", 0.2, &(0.0..=1.0), want), Ok(0.2));
        let refused = in_range("smoothing", f64::NAN, &(0.0..=1.0), want).map_err(|error| error.to_string());
        assert_eq!(refused, Err("smoothing NaN is not a share; use 0 to 1".into()));
    }
}
