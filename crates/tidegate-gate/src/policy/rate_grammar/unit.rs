//! The units of time and their spellings.

use std::str::FromStr;
use std::time::Duration;

/// A unit of time as written in rates and spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// `ns`
    Nanosecond,
    /// `us`, `µs`
    Microsecond,
    /// `ms`
    Millisecond,
    /// `s`, `sec`, `second`
    Second,
    /// `min`, `minute`, `m`
    Minute,
    /// `h`, `hour`
    Hour,
    /// `d`, `day`: 24 hours
    Day,
    /// `w`, `week`: 7 days
    Week,
    /// `month`: 30 days
    Month,
    /// `y`, `year`: 365 days
    Year,
}

/// All units with their spellings, the printed one first. Includes the spellings of humantime and Go, which logs of
/// durations use.
pub(super) const UNITS: [(Unit, &[&str]); 10] = [
    (Unit::Nanosecond, &["ns", "nsec", "nanos", "nanosecond", "nanoseconds"]),
    // The micro sign, and the Greek letter mu, which looks the same.
    (Unit::Microsecond, &["us", "\u{b5}s", "\u{3bc}s", "usec", "micros", "microsecond", "microseconds"]),
    (Unit::Millisecond, &["ms", "msec", "millis", "millisecond", "milliseconds"]),
    (Unit::Second, &["s", "sec", "secs", "second", "seconds"]),
    (Unit::Minute, &["min", "m", "mins", "minute", "minutes"]),
    (Unit::Hour, &["h", "hr", "hrs", "hour", "hours"]),
    (Unit::Day, &["day", "d", "days"]),
    (Unit::Week, &["week", "w", "wk", "wks", "weeks"]),
    (Unit::Month, &["month", "months"]),
    (Unit::Year, &["year", "y", "yr", "yrs", "years"]),
];

/// Why a text is not a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// `M`, which some programs read as a month.
    #[error("\"M\" could be minute or month; write min or month")]
    MinuteOrMonth,
    /// The text is not a unit.
    #[error("unknown unit \"{text}\"; use ns, us, ms, s, min, h, day, week, month or year")]
    Unknown {
        /// The unit as written.
        text: String,
    },
}

impl Unit {
    /// Returns the length of one unit; a month is 30 days, a year 365 days.
    #[must_use]
    pub const fn length(self) -> Duration {
        const DAY: u64 = 86_400;
        match self {
            Self::Nanosecond => Duration::from_nanos(1),
            Self::Microsecond => Duration::from_micros(1),
            Self::Millisecond => Duration::from_millis(1),
            Self::Second => Duration::from_secs(1),
            Self::Minute => Duration::from_secs(60),
            Self::Hour => Duration::from_secs(3600),
            Self::Day => Duration::from_secs(DAY),
            Self::Week => Duration::from_secs(7 * DAY),
            Self::Month => Duration::from_secs(30 * DAY),
            Self::Year => Duration::from_secs(365 * DAY),
        }
    }

    /// Expresses a span as a whole number of the largest unit that divides it, up to days. A zero span is 0 seconds.
    pub(super) fn largest_of(span: Duration) -> (u64, Self) {
        let nanos = span.as_nanos();
        let up_to_days =
            [Self::Day, Self::Hour, Self::Minute, Self::Second, Self::Millisecond, Self::Microsecond];
        let unit = match nanos {
            0 => Self::Second,
            _ => up_to_days
                .into_iter()
                .find(|unit| nanos.is_multiple_of(unit.length().as_nanos()))
                .unwrap_or(Self::Nanosecond),
        };
        // A span has less than 2^63 ns.
        (u64::try_from(nanos / unit.length().as_nanos()).unwrap_or(u64::MAX), unit)
    }

    /// Returns the printed spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        UNITS.iter().find(|(unit, _)| *unit == self).map_or("", |(_, names)| names[0])
    }
}

impl FromStr for Unit {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "M" {
            return Err(UnitError::MinuteOrMonth);
        }
        let lower = text.to_ascii_lowercase();
        UNITS
            .iter()
            .find(|(_, names)| names.contains(&lower.as_str()))
            .map(|(unit, _)| *unit)
            .ok_or_else(|| UnitError::Unknown { text: text.to_owned() })
    }
}
