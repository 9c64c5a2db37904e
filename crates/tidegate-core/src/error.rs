//! Why parameters are refused as a limit, and the largest count and burst.
//!
//! This module depends on no other, so that rates, algorithms and quotas refuse their parameters with one error.

use core::fmt::Debug;
use core::ops::RangeInclusive;
use core::time::Duration;

/// The largest count of a rate, and the largest burst: 2⁶⁰. Published as [`Rate::MAX_COUNT`](crate::Rate::MAX_COUNT).
pub(crate) const MAX_COUNT: u64 = 1 << 60;

/// Why parameters are refused as a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// A count of zero, or above [`Rate::MAX_COUNT`](crate::Rate::MAX_COUNT).
    #[error("count {count} is not a limit; use 1 to {}", MAX_COUNT)]
    Count {
        /// The count given.
        count: u64,
    },
    /// A period of zero, or above [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    #[error("a period of {period:?} is too {}; use 1 ns to 146 years", if period.is_zero() { "short" } else { "long" })]
    Period {
        /// The period given.
        period: Duration,
    },
    /// A burst of zero, or above [`Rate::MAX_COUNT`](crate::Rate::MAX_COUNT).
    #[error("burst {burst} is not a limit; use 1 to {}", MAX_COUNT)]
    Burst {
        /// The burst given.
        burst: u64,
    },
    /// A time zone that is not in the table of zones.
    #[error("time zone `{zone}` is not known; {}", instead_of_zone(meant.as_deref()))]
    Zone {
        /// The name given.
        zone: String,
        /// The name that was probably meant.
        meant: Option<String>,
    },
    /// Any other parameter that is not valid.
    #[error("{name} {value} {want}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: String,
        /// What is wrong and what would work, as the end of the sentence.
        want: &'static str,
    },
}

/// For `TryInto<Quota>`: a finished quota converts into itself without error.
impl From<core::convert::Infallible> for QuotaError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

fn instead_of_zone(meant: Option<&str>) -> String {
    match meant {
        Some(name) => format!("did you mean `{name}`?"),
        None => "use an IANA name such as `Europe/Berlin` or `UTC`".to_owned(),
    }
}

pub(crate) fn burst_in_range(burst: u64) -> Result<u64, QuotaError> {
    if burst == 0 || burst > MAX_COUNT { Err(QuotaError::Burst { burst }) } else { Ok(burst) }
}

// The range check of all parameters, for every kind of number, with one error.

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
