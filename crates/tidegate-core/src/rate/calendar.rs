//! Windows as people name them: a minute, an hour, a day, a week, a month or a year on the clock of one place.
//!
//! Two rules give every edge, and no instant lies in two windows or in none:
//! * *A day, week, month or year begins at the first instant that shows its first date.* Where the clock jumps over
//!   midnight that is later than 00:00; a date the place never had is a window of no length. A day of 23 or 25 hours is
//!   one window.
//! * *A minute or an hour begins whenever the clock on the wall shows a full one.* An hour that comes twice is two
//!   windows; where the clock is moved by half an hour, that hour lasts 90 minutes. So neither is ever shorter than its
//!   unit, and a change of the clocks never deals out a limit twice.
//!
//! The table of zones is compiled in (IANA, through `jiff`): all nodes of one build agree, whatever their machines
//! hold.

use core::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

use crate::error::QuotaError;
use crate::time::Tick;

/// How long one calendar window is.
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
}

impl CalendarUnit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 6] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the word for it: `minute` to `year`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the length of a usual one: 30 days for a month, 365 for a year. For headers and pictures, not for
    /// deciding.
    #[must_use]
    pub const fn usual(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }
}

/// Returns the name of every time zone that a calendar window can follow, aliases included, in alphabetical order.
///
/// Allocates once per name; for the reader of a configuration that lists or suggests names.
///
/// # Examples
/// ```
/// use tidegate_core::rate::zone_names;
/// assert!(zone_names().any(|name| name == "Asia/Shanghai"));
/// ```
pub fn zone_names() -> impl Iterator<Item = String> {
    let zones = TimeZoneDatabase::bundled();
    let mut names: Vec<String> = zones.available().map(|name| name.as_str().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

/// A unit on the clock of one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
}

impl Calendar {
    /// Finds the zone by its IANA name, whatever its case.
    pub(crate) fn new(unit: CalendarUnit, zone: &str) -> Result<Self, QuotaError> {
        let found = TimeZoneDatabase::bundled().get(zone).ok();
        let named = found.filter(|found| !found.is_unknown() && found.iana_name().is_some());
        let zone = named.ok_or_else(|| QuotaError::Parameter {
            name: "time zone",
            value: format!("`{zone}`"),
            want: "is not known; use an IANA name such as `Europe/Berlin` or `UTC`",
        })?;
        Ok(Self { unit, zone })
    }

    pub(crate) const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    pub(crate) fn zone(&self) -> &str {
        self.zone.iana_name().expect("only named zones are accepted")
    }

    /// Returns the first and the last tick of the window around `tick`; a window open at either end of time is cut
    /// there.
    pub(crate) fn around(&self, tick: Tick) -> (Tick, Tick) {
        let nanos = i128::from(tick.as_nanos());
        let instant =
            Timestamp::from_nanosecond(nanos).expect("ticks end in 2554, the calendar goes on to 9999");
        let (start, end) = match self.unit {
            CalendarUnit::Minute => (self.full(instant, 60), self.next_full(instant, 60)),
            CalendarUnit::Hour => (self.full(instant, 3600), self.next_full(instant, 3600)),
            _ => self.dates_around(instant),
        };
        let last = end.as_nanosecond() - 1;
        (to_tick(start.as_nanosecond()), to_tick(last))
    }

    fn dates_around(&self, instant: Timestamp) -> (Timestamp, Timestamp) {
        let mut first = self.first_date(self.zone.to_datetime(instant).date());
        // A clock put back over midnight shows yesterday's date again after today has begun: the instant then belongs
        // to today, whose first instant has passed.
        loop {
            let next = self.next_date(first);
            let end = self.first_instant(next);
            if instant < end {
                return (self.first_instant(first), end);
            }
            first = next;
        }
    }

    /// First date of the window that holds a date.
    fn first_date(&self, date: Date) -> Date {
        match self.unit {
            CalendarUnit::Week => {
                date.saturating_sub(i64::from(date.weekday().to_monday_zero_offset()).days())
            }
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
            CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => date,
        }
    }

    /// First date of the window after the one that begins with a date.
    fn next_date(&self, first: Date) -> Date {
        first.saturating_add(match self.unit {
            CalendarUnit::Week => 1.week(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Year => 1.year(),
            CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => 1.day(),
        })
    }

    /// The first instant that shows a date, or a later one if the place never had it.
    fn first_instant(&self, date: Date) -> Timestamp {
        let midnight = DateTime::from(date);
        let offset = match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset,
            // Midnight comes twice: the day has begun at the first.
            AmbiguousOffset::Fold { before, .. } => before,
            // Midnight is jumped over: the day begins where the clock lands, which is the moment of the jump.
            AmbiguousOffset::Gap { after, .. } => {
                let not_yet = after.to_timestamp(midnight).expect(IN_RANGE);
                return self.zone.following(not_yet).next().expect("the jump follows").timestamp();
            }
        };
        offset.to_timestamp(midnight).expect(IN_RANGE)
    }

    /// The last instant not after `instant` at which the clock showed a full unit of `secs`.
    fn full(&self, instant: Timestamp, secs: i64) -> Timestamp {
        let mut instant = instant;
        loop {
            let offset = i64::from(self.zone.to_offset(instant).seconds());
            let full = (whole_second(instant) + offset).div_euclid(secs) * secs - offset;
            let full = Timestamp::from_second(full).expect(IN_RANGE);
            // The jump under whose offset `instant` is read; `preceding` leaves out the instant it is given.
            let after = instant.checked_add(1.nanosecond()).expect(IN_RANGE);
            match self.zone.preceding(after).next() {
                Some(jump) if full < jump.timestamp() => {
                    instant = jump.timestamp().checked_sub(1.nanosecond()).expect(IN_RANGE);
                }
                _ => return full,
            }
        }
    }

    /// The first instant after `instant` at which the clock shows a full unit of `secs`.
    fn next_full(&self, instant: Timestamp, secs: i64) -> Timestamp {
        let offset = i64::from(self.zone.to_offset(instant).seconds());
        let second = whole_second(instant);
        let next = ((second + offset).div_euclid(secs) + 1) * secs - offset;
        let mut next = Timestamp::from_second(next).expect(IN_RANGE);
        for jump in self.zone.following(instant) {
            if jump.timestamp() > next {
                break;
            }
            let (second, offset) = (jump.timestamp().as_second(), i64::from(jump.offset().seconds()));
            let past = (second + offset).rem_euclid(secs);
            let wait = if past == 0 { 0 } else { secs - past };
            next = jump.timestamp().checked_add(wait.seconds()).expect(IN_RANGE);
            if wait == 0 {
                break;
            }
        }
        next
    }
}

const IN_RANGE: &str = "ticks begin in 1970 and end in 2554, well inside the calendar";

/// The second an instant lies in, rounded down also before 1970. Ticks have at most 2^64 ns, so it fits.
fn whole_second(instant: Timestamp) -> i64 {
    instant.as_nanosecond().div_euclid(1_000_000_000) as i64
}

fn to_tick(nanos: i128) -> Tick {
    Tick::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}
