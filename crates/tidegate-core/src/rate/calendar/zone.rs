//! The clock of one place, from the table of zones that is compiled in (IANA, through `jiff`). So all nodes of one
//! build agree, whatever their machines have installed.

use std::sync::LazyLock;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

use super::CalendarUnit;
use crate::spelling::{LONGEST, distance};
use crate::time::Tick;

/// The table of zones. It reads a zone at the first request and keeps it: at most all of them, about six hundred.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

pub(super) fn names() -> Vec<String> {
    let mut names: Vec<String> = ZONES.available().map(|name| name.as_str().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the name that was probably meant: the one of that city, or else the most similar one.
pub(super) fn meant(text: &str) -> Option<String> {
    if text.is_empty() || text.len() > LONGEST {
        return None;
    }
    let text = plain(text);
    let city = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let mut names = names();
    let plains: Vec<String> = names.iter().map(|name| plain(name)).collect();
    if let Some(at) = plains.iter().position(|name| city(name) == city(&text)) {
        return Some(names.swap_remove(at));
    }
    let apart = |name: &str| {
        let of_city = if text.contains('/') { None } else { distance(&text, &city(name)) };
        distance(&text, name).into_iter().chain(of_city).min()
    };
    let near = plains.iter().enumerate().filter_map(|(at, name)| Some((apart(name)?, at)));
    near.min().map(|(_, at)| names.swap_remove(at))
}

/// Returns a name in lower case, with underscores as names have them between words.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zone(TimeZone);

impl Zone {
    pub(super) fn find(name: &str) -> Option<Self> {
        let found = ZONES.get(name).ok();
        found.filter(|found| !found.is_unknown() && found.iana_name().is_some()).map(Self)
    }

    pub(super) fn name(&self) -> &str {
        self.0.iana_name().expect("only named zones are accepted")
    }

    /// Returns the first nanosecond since 1970 of the window around a tick, and the first of the next.
    pub(super) fn around(&self, unit: CalendarUnit, tick: Tick) -> (i128, i128) {
        let nanos = i128::from(tick.as_nanos());
        let instant =
            Timestamp::from_nanosecond(nanos).expect("ticks end in 2554, the calendar goes on to 9999");
        let (start, end) = match unit {
            CalendarUnit::Second => (self.full(instant, 1), self.next_full(instant, 1)),
            CalendarUnit::Minute => (self.full(instant, 60), self.next_full(instant, 60)),
            CalendarUnit::Hour => (self.full(instant, 3600), self.next_full(instant, 3600)),
            _ => self.dates_around(unit, instant),
        };
        (start.as_nanosecond(), end.as_nanosecond())
    }

    fn dates_around(&self, unit: CalendarUnit, instant: Timestamp) -> (Timestamp, Timestamp) {
        let mut first = first_date(unit, self.0.to_datetime(instant).date());
        // A clock put back over midnight shows yesterday's date again after today has begun. The instant then belongs
        // to today, whose first instant has passed.
        loop {
            let next = next_date(unit, first);
            let end = self.first_instant(next);
            if instant < end {
                return (self.first_instant(first), end);
            }
            first = next;
        }
    }

    /// Returns the first instant that shows a date, or a later one if the place never had that date.
    fn first_instant(&self, date: Date) -> Timestamp {
        let midnight = DateTime::from(date);
        let offset = match self.0.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset,
            // Midnight comes twice: the day begins at the first.
            AmbiguousOffset::Fold { before, .. } => before,
            // The clock jumps over midnight: the day begins where the clock lands, at the moment of the jump.
            AmbiguousOffset::Gap { after, .. } => {
                let not_yet = after.to_timestamp(midnight).expect(IN_RANGE);
                return self.0.following(not_yet).next().expect("the jump follows").timestamp();
            }
        };
        offset.to_timestamp(midnight).expect(IN_RANGE)
    }

    /// Returns the last instant not after `instant` at which the clock showed a full unit of `secs`.
    fn full(&self, instant: Timestamp, secs: i64) -> Timestamp {
        let mut instant = instant;
        loop {
            let offset = i64::from(self.0.to_offset(instant).seconds());
            let full = (whole_second(instant) + offset).div_euclid(secs) * secs - offset;
            let full = Timestamp::from_second(full).expect(IN_RANGE);
            // The jump that set the offset at `instant`. `preceding` leaves out the instant that it is given.
            let after = instant.checked_add(1.nanosecond()).expect(IN_RANGE);
            match self.0.preceding(after).next() {
                Some(jump) if full < jump.timestamp() => {
                    instant = jump.timestamp().checked_sub(1.nanosecond()).expect(IN_RANGE);
                }
                _ => return full,
            }
        }
    }

    /// Returns the first instant after `instant` at which the clock shows a full unit of `secs`.
    fn next_full(&self, instant: Timestamp, secs: i64) -> Timestamp {
        let offset = i64::from(self.0.to_offset(instant).seconds());
        let second = whole_second(instant);
        let next = ((second + offset).div_euclid(secs) + 1) * secs - offset;
        let mut next = Timestamp::from_second(next).expect(IN_RANGE);
        for jump in self.0.following(instant) {
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

fn first_date(unit: CalendarUnit, date: Date) -> Date {
    match unit {
        CalendarUnit::Week => date.saturating_sub(i64::from(date.weekday().to_monday_zero_offset()).days()),
        CalendarUnit::Month => date.first_of_month(),
        CalendarUnit::Year => date.first_of_year(),
        CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => date,
    }
}

fn next_date(unit: CalendarUnit, first: Date) -> Date {
    first.saturating_add(match unit {
        CalendarUnit::Week => 1.week(),
        CalendarUnit::Month => 1.month(),
        CalendarUnit::Year => 1.year(),
        CalendarUnit::Second | CalendarUnit::Minute | CalendarUnit::Hour | CalendarUnit::Day => 1.day(),
    })
}

const IN_RANGE: &str = "ticks begin in 1970 and end in 2554, well inside the calendar";

/// Returns the second in which an instant lies, rounded down also before 1970. Ticks have at most 2^64 ns, so it fits.
fn whole_second(instant: Timestamp) -> i64 {
    instant.as_nanosecond().div_euclid(1_000_000_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_city_and_a_slip_have_a_name() {
        for (text, name) in [
            ("Shanghai", Some("Asia/Shanghai")),
            ("Asia/Shangai", Some("Asia/Shanghai")),
            ("Shangai", Some("Asia/Shanghai")),
            ("new york", Some("America/New_York")),
            ("Europe/New_York", Some("America/New_York")),
            ("Europa/Berlin", Some("Europe/Berlin")),
            ("Viena", Some("Europe/Vienna")),
            ("Mars", None),
            ("", None),
        ] {
            assert_eq!(meant(text).as_deref(), name, "{text}");
        }
        assert_eq!(meant(&"x".repeat(1000)), None);
    }
}
