//! The units of calendar windows.

use core::time::Duration;

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CalendarUnit {
    /// From full minute to full minute.
    Minute,
    /// From full hour to full hour of the local clock.
    Hour,
    /// From midnight to midnight: 23 to 25 hours.
    Day,
    /// From Monday to Monday, as in ISO 8601.
    Week,
    /// From the first of a month to the first of the next.
    Month,
    /// From the first of January to the next.
    Year,
    /// From full second to full second.
    Second,
}

impl CalendarUnit {
    /// Every unit, in the order of their numbers in stored cells. A new unit is added at the end.
    pub const ALL: [Self; 7] =
        [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year, Self::Second];

    /// Returns its name: `second` to `year`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the usual length: 30 days for a month, 365 for a year. For headers and charts, not for decisions.
    #[must_use]
    pub const fn usual(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }
}
