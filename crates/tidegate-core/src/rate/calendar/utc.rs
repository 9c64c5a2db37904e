//! The calendar of UTC: days of equal length, and the months and years of the Gregorian calendar.

use core::time::Duration;

use super::CalendarUnit;
use crate::time::Tick;

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

/// Returns the window around a tick and the first nanosecond of the next, where windows of equal length follow each
/// other from 1970 on.
pub(super) fn even(length: Duration, tick: Tick) -> (i128, i128) {
    // The length is at most a year, so it fits.
    let (nanos, length) = (i128::from(tick.as_nanos()), length.as_nanos() as i128);
    let start = nanos - nanos % length;
    (start, start + length)
}

/// Returns the first nanosecond since 1970 of the window around a tick, and the first of the next.
pub(super) fn around(unit: CalendarUnit, tick: Tick) -> (i128, i128) {
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
        assert_eq!(around(CalendarUnit::Week, Tick::EPOCH), (-3 * DAY, 4 * DAY));
        for unit in CalendarUnit::ALL {
            for tick in [Tick::EPOCH, Tick::from_secs(1_762_059_600), Tick::MAX] {
                let nanos = i128::from(tick.as_nanos());
                let (start, end) = around(unit, tick);
                assert!(start <= nanos && nanos < end, "{unit:?} {tick:?}");
            }
        }
    }
}
