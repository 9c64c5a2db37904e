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
            ZoneKind::Utc => around_in_utc(self.unit, tick),
            ZoneKind::Epoch => even(self.unit.usual(), tick),
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

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

/// Returns the window around a tick and the first nanosecond of the next, where windows of equal length follow each
/// other from 1970 on.
fn even(length: Duration, tick: Tick) -> (i128, i128) {
    // The length is at most a year, so it fits.
    let (nanos, length) = (i128::from(tick.as_nanos()), length.as_nanos() as i128);
    let start = nanos - nanos % length;
    (start, start + length)
}

/// Returns the first nanosecond since 1970 of the window around a tick in UTC, and the first of the next: days of equal
/// length, and the months and years of the Gregorian calendar.
fn around_in_utc(unit: CalendarUnit, tick: Tick) -> (i128, i128) {
    let nanos = i128::from(tick.as_nanos());
    // At most 213,503 days.
    let day = (nanos / DAY) as i64;
    let days = |(first, next): (i64, i64)| (i128::from(first) * DAY, i128::from(next) * DAY);
    match unit {
        CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => {
            even(unit.usual(), tick)
        }
        CalendarUnit::Week => {
            // The first day of 1970 was a Thursday.
            let monday = day - (day + 3) % 7;
            days((monday, monday + 7))
        }
        CalendarUnit::Month => {
            let (year, month) = month_of(day);
            days((first_day(year, month), first_day(year, month + 1)))
        }
        CalendarUnit::Year => {
            let (year, _) = month_of(day);
            days((first_day(year, 1), first_day(year + 1, 1)))
        }
    }
}

/// Days from March 1 of the year 0 to January 1, 1970.
const BEFORE_1970: i64 = 719_468;

/// Days in 400 years, after which the calendar repeats.
const DAYS_OF_400_YEARS: i64 = 146_097;

/// Returns the year, and the month from 1 to 12, of a day since 1970.
///
/// Years are counted from March, so that the leap day is the last of its year.
///
/// # Source
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn month_of(day: i64) -> (i64, i64) {
    let day = day + BEFORE_1970;
    let (cycle, day) = (day / DAYS_OF_400_YEARS, day % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let year = 400 * cycle + year;
    if from_march < 10 { (year, from_march + 3) } else { (year + 1, from_march - 9) }
}

/// Returns the day since 1970 on which a month begins; month 13 is the first of the next year.
///
/// # Source
/// As [`month_of`], `days_from_civil`.
fn first_day(year: i64, month: i64) -> i64 {
    let (year, from_march) = match month {
        1 | 2 => (year - 1, month + 9),
        13 => (year, 10),
        _ => (year, month - 3),
    };
    let (cycle, year) = (year / 400, year % 400);
    let day_of_year = (153 * from_march + 2) / 5;
    cycle * DAYS_OF_400_YEARS + 365 * year + year / 4 - year / 100 + day_of_year - BEFORE_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every month from 1970 to 2554 follows the one before it, and has the length of the Gregorian calendar.
    #[test]
    fn months_are_as_long_as_they_are() {
        let mut day = 0;
        for year in 1970..2555 {
            for month in 1..=12 {
                assert_eq!(first_day(year, month), day);
                let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
                let length = match month {
                    2 if leap => 29,
                    2 => 28,
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                assert!((day..day + length).all(|day| month_of(day) == (year, month)), "{year}-{month}");
                day += length;
            }
            assert_eq!(first_day(year, 13), day);
        }
    }

    /// In other rate limiters, weeks begin on Thursdays and months have 30 days, whatever the calendar says.
    #[test]
    fn windows_since_the_epoch_are_cut_at_multiples_of_their_length() {
        let now = Tick::from_secs(1_762_059_600);
        for (unit, first) in [
            (CalendarUnit::Second, 1_762_059_600),
            (CalendarUnit::Minute, 1_762_059_600),
            (CalendarUnit::Day, 1_762_041_600),
            (CalendarUnit::Week, 1_761_782_400),
            (CalendarUnit::Month, 1_759_968_000),
            (CalendarUnit::Year, 1_734_480_000),
        ] {
            let length = unit.usual().as_secs();
            assert_eq!((first % length, first <= 1_762_059_600), (0, true), "{unit:?}");
            let (start, end) = even(unit.usual(), now);
            assert_eq!(
                (start, end),
                (i128::from(first) * SECOND, i128::from(first + length) * SECOND),
                "{unit:?}"
            );
        }
        let (start, end) = even(CalendarUnit::Year.usual(), Tick::MAX);
        assert!(start < i128::from(u64::MAX) && i128::from(u64::MAX) < end);
    }

    #[test]
    fn windows_are_cut_at_the_ends_of_time_and_nowhere_else() {
        assert_eq!(around_in_utc(CalendarUnit::Week, Tick::EPOCH), (-3 * DAY, 4 * DAY));
        for unit in CalendarUnit::ALL {
            for tick in [Tick::EPOCH, Tick::from_secs(1_762_059_600), Tick::MAX] {
                let nanos = i128::from(tick.as_nanos());
                let (start, end) = around_in_utc(unit, tick);
                assert!(start <= nanos && nanos < end, "{unit:?} {tick:?}");
            }
        }
    }
}
