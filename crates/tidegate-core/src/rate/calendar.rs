//! Windows as people name them, from a second to a year, on the clock of one place.
//!
//! Two rules determine every edge, and every instant lies in exactly one window:
//! * *A day, week, month or year begins at the first instant that shows its first date.* Where the clock jumps over
//!   midnight, that is later than 00:00. A date that the place never had is a window of no length. A day of 23 or 25
//!   hours is one window.
//! * *A second, minute or hour begins whenever the wall clock shows a full one.* An hour that comes twice is two
//!   windows; where the clock is moved by half an hour, that hour lasts 90 minutes. So a change of the clocks never
//!   grants a limit twice.
//!
//! The table of all zones but UTC comes with the feature `tz`. The zone `epoch` is not a place: there every unit has
//! its usual length, and windows begin at its multiples since 1970: a week begins on a Thursday, and a month is 30
//! days.

mod utc;
#[cfg(feature = "tz")]
mod zone;

use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Tick, Wall, WallAhead};

const UTC: &str = "UTC";

/// The name for windows of equal length since 1970.
const EPOCH: &str = "epoch";

/// Returns the name of every time zone that a calendar window can follow, aliases included, in alphabetical order.
/// Without the feature `tz` that is `UTC` alone. Allocates once per name.
pub fn zone_names() -> impl Iterator<Item = String> {
    #[cfg(feature = "tz")]
    let names = zone::names();
    #[cfg(not(feature = "tz"))]
    let names = vec![UTC.to_owned()];
    names.into_iter()
}

/// Returns the name of the time zone that a text probably means: the zone of a city that is named alone, such as
/// `Shanghai`, or else the most similar name, if at most a third of the letters differ. `None` if no name is similar,
/// for more than 64 bytes, and without the feature `tz`. Compares the text with all names (about 600).
pub fn zone_meant(text: &str) -> Option<String> {
    #[cfg(feature = "tz")]
    return zone::meant(text);
    #[cfg(not(feature = "tz"))]
    {
        let _ = text;
        None
    }
}

#[cfg(feature = "tz")]
fn unknown(zone: &str) -> QuotaError {
    QuotaError::Zone { zone: zone.to_owned(), meant: zone_meant(zone) }
}

#[cfg(not(feature = "tz"))]
fn unknown(zone: &str) -> QuotaError {
    QuotaError::Parameter {
        name: "time zone",
        value: format!("`{zone}`"),
        want: "needs the feature `tz`, which this build is without; use `UTC`",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    unit: CalendarUnit,
    place: ZoneKind,
    wall: Wall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ZoneKind {
    Utc,
    Epoch,
    #[cfg(feature = "tz")]
    Zone(zone::Zone),
}

impl Calendar {
    pub(crate) fn new(unit: CalendarUnit, zone: &str) -> Result<Self, QuotaError> {
        let place = match zone {
            _ if zone.eq_ignore_ascii_case(UTC) => Some(ZoneKind::Utc),
            _ if zone.eq_ignore_ascii_case(EPOCH) => Some(ZoneKind::Epoch),
            zone => named(zone),
        };
        let place = place.ok_or_else(|| unknown(zone))?;
        Ok(Self { unit, place, wall: Wall::default() })
    }

    pub(crate) fn follow(&self, wall: &WallAhead) {
        self.wall.follow(wall);
    }

    #[inline]
    pub(crate) fn ahead(&self) -> i64 {
        self.wall.ahead()
    }

    pub(crate) const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    pub(crate) fn zone(&self) -> &str {
        match &self.place {
            ZoneKind::Utc => UTC,
            ZoneKind::Epoch => EPOCH,
            #[cfg(feature = "tz")]
            ZoneKind::Zone(zone) => zone.name(),
        }
    }

    /// Returns the first and the last tick of the window around `tick`, all by the wall clock; a window open at either
    /// end of time is cut there.
    pub(crate) fn around(&self, tick: Tick) -> (Tick, Tick) {
        let (start, end) = match &self.place {
            ZoneKind::Utc => utc::around(self.unit, tick),
            ZoneKind::Epoch => utc::even(self.unit.usual(), tick),
            #[cfg(feature = "tz")]
            ZoneKind::Zone(zone) => zone.around(self.unit, tick),
        };
        (to_tick(start), to_tick(end - 1))
    }
}

#[cfg(feature = "tz")]
fn named(zone: &str) -> Option<ZoneKind> {
    zone::Zone::find(zone).map(ZoneKind::Zone)
}

#[cfg(not(feature = "tz"))]
fn named(_: &str) -> Option<ZoneKind> {
    None
}

/// Returns the tick of a nanosecond since 1970, or the nearest possible one.
fn to_tick(nanos: i128) -> Tick {
    Tick::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

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
