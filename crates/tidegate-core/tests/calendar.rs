//! Calendar windows around the days on which clocks change.
//!
//! Each table line was worked out by hand from the zone's published changes, in UTC.

#![cfg(feature = "tz")]

use crate::random;

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::bytes::{Bytes, Reader, Writer};
use tidegate_core::rate::{CalendarUnit, FixedWindow, zone_names};
use tidegate_core::time::WallAhead;
use tidegate_core::{Algorithm, Ask, Cost, Quota, QuotaError, Receipt, Retry, State, Tick, Transition};

use CalendarUnit::{Day, Hour, Minute, Month, Week, Year};

fn tick(utc: &str) -> Tick {
    let instant: Timestamp = utc.parse().expect("tables hold timestamps");
    Tick::from_nanos(u64::try_from(instant.as_nanosecond()).expect("after 1970"))
}

fn utc(tick: Tick) -> String {
    Timestamp::from_nanosecond(i128::from(tick.as_nanos())).expect("in range").to_string()
}

fn window(unit: CalendarUnit, zone: &str) -> FixedWindow {
    FixedWindow::calendar(5, unit, zone).unwrap()
}

#[test]
fn windows_follow_the_clock_on_the_wall() {
    // (zone, unit, an instant, first instant of its window, first instant of the next; all in UTC)
    for (zone, unit, at, start, end) in [
        // New York: 23 hours on 2025-03-09, 25 on 2025-11-02.
        ("America/New_York", Day, "2025-03-09T12:00:00Z", "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z"),
        ("America/New_York", Day, "2025-03-10T03:59:59Z", "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z"),
        ("America/New_York", Day, "2025-03-10T04:00:00Z", "2025-03-10T04:00:00Z", "2025-03-11T04:00:00Z"),
        ("America/New_York", Day, "2025-11-02T05:30:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z"),
        ("America/New_York", Day, "2025-11-02T06:30:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z"),
        ("America/New_York", Week, "2025-11-02T06:30:00Z", "2025-10-27T04:00:00Z", "2025-11-03T05:00:00Z"),
        ("America/New_York", Month, "2025-11-02T06:30:00Z", "2025-11-01T04:00:00Z", "2025-12-01T05:00:00Z"),
        ("America/New_York", Year, "2025-11-02T06:30:00Z", "2025-01-01T05:00:00Z", "2026-01-01T05:00:00Z"),
        // In November one o'clock comes twice and counts as two hours; in March two o'clock does not exist.
        ("America/New_York", Hour, "2025-11-02T05:59:59Z", "2025-11-02T05:00:00Z", "2025-11-02T06:00:00Z"),
        ("America/New_York", Hour, "2025-11-02T06:00:00Z", "2025-11-02T06:00:00Z", "2025-11-02T07:00:00Z"),
        ("America/New_York", Hour, "2025-03-09T06:59:59Z", "2025-03-09T06:00:00Z", "2025-03-09T07:00:00Z"),
        ("America/New_York", Hour, "2025-03-09T07:00:00Z", "2025-03-09T07:00:00Z", "2025-03-09T08:00:00Z"),
        (
            "America/New_York",
            Minute,
            "2025-11-02T06:00:30.5Z",
            "2025-11-02T06:00:00Z",
            "2025-11-02T06:01:00Z",
        ),
        // London: the day of the change, and months on either side of UTC midnight.
        ("Europe/London", Day, "2025-03-30T01:30:00Z", "2025-03-30T00:00:00Z", "2025-03-30T23:00:00Z"),
        ("Europe/London", Day, "2025-10-26T00:30:00Z", "2025-10-25T23:00:00Z", "2025-10-27T00:00:00Z"),
        ("Europe/London", Month, "2025-10-15T00:00:00Z", "2025-09-30T23:00:00Z", "2025-11-01T00:00:00Z"),
        // Lord Howe moves by half an hour: in April 02:00 becomes 01:30, in October 02:00 becomes 02:30.
        ("Australia/Lord_Howe", Day, "2025-04-05T15:00:00Z", "2025-04-05T13:00:00Z", "2025-04-06T13:30:00Z"),
        ("Australia/Lord_Howe", Day, "2025-10-04T20:00:00Z", "2025-10-04T13:30:00Z", "2025-10-05T13:00:00Z"),
        ("Australia/Lord_Howe", Hour, "2025-04-05T14:00:00Z", "2025-04-05T14:00:00Z", "2025-04-05T15:30:00Z"),
        ("Australia/Lord_Howe", Hour, "2025-04-05T15:29:59Z", "2025-04-05T14:00:00Z", "2025-04-05T15:30:00Z"),
        ("Australia/Lord_Howe", Hour, "2025-04-05T15:30:00Z", "2025-04-05T15:30:00Z", "2025-04-05T16:30:00Z"),
        ("Australia/Lord_Howe", Hour, "2025-10-04T15:59:59Z", "2025-10-04T14:30:00Z", "2025-10-04T16:00:00Z"),
        ("Australia/Lord_Howe", Hour, "2025-10-04T16:00:00Z", "2025-10-04T16:00:00Z", "2025-10-04T17:00:00Z"),
        (
            "Australia/Lord_Howe",
            Minute,
            "2025-04-05T15:00:00Z",
            "2025-04-05T15:00:00Z",
            "2025-04-05T15:01:00Z",
        ),
        // Shanghai: no change since 1991; half-hour zones count their own hours.
        ("Asia/Shanghai", Day, "2026-01-01T15:59:59Z", "2025-12-31T16:00:00Z", "2026-01-01T16:00:00Z"),
        ("Asia/Shanghai", Month, "2024-02-29T15:59:59Z", "2024-01-31T16:00:00Z", "2024-02-29T16:00:00Z"),
        ("Asia/Kolkata", Hour, "2026-01-01T00:29:59Z", "2025-12-31T23:30:00Z", "2026-01-01T00:30:00Z"),
        // Apia had no 30 December 2011: the 29th is followed by the 31st, the week has six days, the month thirty.
        ("Pacific/Apia", Day, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
        ("Pacific/Apia", Day, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
        ("Pacific/Apia", Week, "2011-12-31T00:00:00Z", "2011-12-26T10:00:00Z", "2012-01-01T10:00:00Z"),
        ("Pacific/Apia", Month, "2011-12-31T00:00:00Z", "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z"),
        // São Paulo changed its clocks at midnight: one day began at 01:00, and another had the hour from 23:00 to
        // 24:00 twice.
        ("America/Sao_Paulo", Day, "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
        ("America/Sao_Paulo", Day, "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"),
        // St. John's set clocks back at 00:01: midnight came twice, and the second evening belongs to the day that had
        // begun.
        ("America/St_Johns", Day, "2010-11-07T02:30:30Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"),
        ("America/St_Johns", Day, "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"),
        // Leap days, and the edges of weeks and years.
        ("UTC", Day, "2024-02-29T23:59:59.999999999Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("UTC", Month, "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("UTC", Month, "2100-02-28T12:00:00Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"),
        ("UTC", Month, "2025-12-31T23:59:59Z", "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("UTC", Week, "2024-02-29T12:00:00Z", "2024-02-26T00:00:00Z", "2024-03-04T00:00:00Z"),
        ("UTC", Week, "2026-01-04T23:59:59Z", "2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"),
        ("UTC", Week, "2026-01-05T00:00:00Z", "2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"),
        ("UTC", Year, "2024-12-31T23:59:59Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
    ] {
        let (first, last) = window(unit, zone).window_at(tick(at));
        let next = Tick::from_nanos(last.as_nanos() + 1);
        assert_eq!(
            (first, next),
            (tick(start), tick(end)),
            "{zone} {unit:?} {at}: {} {}",
            utc(first),
            utc(next)
        );
    }
}

#[test]
fn windows_leave_no_gap_and_no_overlap_in_any_zone() {
    // Instants an odd number of seconds apart, so that all hours of the day occur.
    const STEP: u64 = 40_009_397;
    for (salt, zone) in zone_names().enumerate() {
        for unit in CalendarUnit::ALL {
            let window = window(unit, &zone);
            let mut secs = salt as u64 * 7919;
            while secs < 2_600_000_000 {
                secs += STEP * 7;
                let at = Tick::from_secs(secs);
                let (start, last) = window.window_at(at);
                assert!(start <= at && at <= last, "{zone} {unit:?} {}", utc(at));
                assert_eq!(window.window_at(start), (start, last), "{zone} {unit:?} {}", utc(at));
                assert_eq!(window.window_at(last), (start, last), "{zone} {unit:?} {}", utc(at));
                let next = Tick::from_nanos(last.as_nanos() + 1);
                assert_eq!(window.window_at(next).0, next, "{zone} {unit:?} {}", utc(at));
            }
        }
    }
}

#[test]
fn a_clock_change_never_deals_out_the_limit_twice() {
    // Every change of these zones within fifteen years, minute by minute for the day around it.
    for zone in
        ["America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns", "Africa/Casablanca"]
    {
        let table = jiff::tz::TimeZone::get(zone).unwrap();
        let from: Timestamp = "2008-01-01T00:00:00Z".parse().unwrap();
        for jump in table.following(from).take_while(|jump| jump.timestamp().as_second() < 1_672_531_200) {
            let middle = u64::try_from(jump.timestamp().as_second()).unwrap();
            for unit in [Minute, Hour, Day] {
                let window = window(unit, zone);
                let mut at = Tick::from_secs(middle - 5 * 3600);
                while at < Tick::from_secs(middle + 5 * 3600) {
                    let (start, last) = window.window_at(at);
                    let length = last.since(start) + Duration::from_nanos(1);
                    let least = if unit == Day { Duration::from_secs(23 * 3600) } else { unit.usual() };
                    assert!(length >= least, "{zone} {unit:?} {}: {length:?}", utc(at));
                    at = Tick::from_nanos(last.as_nanos() + 1);
                }
            }
        }
    }
}

#[test]
fn the_ends_of_time_are_windows_too() {
    for unit in CalendarUnit::ALL {
        for zone in ["UTC", "Asia/Tokyo", "America/Los_Angeles", "Pacific/Kiritimati"] {
            let window = window(unit, zone);
            assert_eq!(window.window_at(Tick::EPOCH).0, Tick::EPOCH);
            let mut state = window.fresh(Tick::MAX);
            assert_eq!(window.window_at(Tick::MAX).1, Tick::MAX);
            let ask = Ask::within(Tick::MAX, Cost::new(5).unwrap(), Duration::MAX);
            let Transition::Allowed { next, .. } = window.decide(&state, ask) else {
                panic!("a fresh window")
            };
            state = next;
            assert_eq!(window.decide(&state, ask), Transition::NEVER, "time ends before this window does");
            assert_eq!(window.full_at(&state), None);
        }
    }
}

#[test]
fn a_week_of_five_a_day_meets_the_twenty_five_hour_day() {
    let limit = window(Day, "Europe/London");
    let mut state = limit.fresh(tick("2025-10-24T12:00:00Z"));
    for (at, waits_until) in [
        ("2025-10-24T12:00:00Z", "2025-10-24T23:00:00Z"),
        ("2025-10-24T23:00:00Z", "2025-10-25T23:00:00Z"),
        ("2025-10-26T12:00:00Z", "2025-10-27T00:00:00Z"),
        ("2025-10-27T00:00:00Z", "2025-10-28T00:00:00Z"),
    ] {
        let all = Ask::allow(tick(at), Cost::new(5).unwrap());
        let Transition::Allowed { next, .. } = limit.decide(&state, all) else {
            panic!("{at} begins a new day")
        };
        state = next;
        let one = limit.decide(&state, Ask::allow(tick(at), Cost::ONE));
        assert_eq!(
            one,
            Transition::Denied { retry: Retry::After(tick(waits_until).since(tick(at))) },
            "{at}"
        );
    }
}

/// UTC is computed without the time zone table, and agrees with it.
#[test]
fn utc_is_the_zone_of_that_name() {
    for unit in CalendarUnit::ALL {
        let (ours, table) = (window(unit, "utc"), window(unit, "Etc/UTC"));
        assert_eq!(ours.calendar_parts(), Some((unit, "UTC")));
        for step in 0..20_000u64 {
            // 584 years in steps of eleven days and a remainder, and the seconds around each.
            let tick = step * (u64::MAX / 20_000);
            let whole = tick / 86_400_000_000_000 * 86_400_000_000_000;
            for nanos in [tick, whole, whole.saturating_sub(1)] {
                let tick = Tick::from_nanos(nanos);
                assert_eq!(ours.window_at(tick), table.window_at(tick), "{unit:?} {}", utc(tick));
            }
        }
        assert_eq!(ours.window_at(Tick::MAX), table.window_at(Tick::MAX));
    }
}

#[test]
fn every_zone_is_found_by_its_name_and_comes_back_from_bytes() {
    let mut count = 0;
    for name in zone_names() {
        let window = match FixedWindow::calendar(1, Month, &name) {
            Ok(window) => window,
            Err(error) => panic!("{error}"),
        };
        let mut out = Writer::new(2);
        window.write(&mut out);
        let bytes = out.finish();
        let (_, mut from) = Reader::open(&bytes).unwrap();
        assert_eq!(FixedWindow::read(&mut from), Ok(window));
        count += 1;
    }
    assert!(count > 400, "the table is compiled in");
    for nowhere in ["", "Mars/Olympus", "Etc/Unknown", "+02:00", "../etc/passwd"] {
        let refused = FixedWindow::calendar(1, Month, nowhere);
        assert!(matches!(refused, Err(QuotaError::Zone { .. })), "{nowhere}");
    }
}

/// Three an hour, by a clock whose ticks do not follow the wall clock.
struct Hourly {
    quota: Quota,
    wall: WallAhead,
    state: State,
    now: Tick,
}

const HOUR: i64 = 3_600_000_000_000;

impl Hourly {
    fn new(now: &str) -> Self {
        let quota: Quota = FixedWindow::calendar(3, Hour, "UTC").unwrap().into();
        let (wall, now) = (WallAhead::default(), tick(now));
        quota.follow_wall(&wall);
        Self { state: quota.fresh(now), quota, wall, now }
    }

    /// Asks for a unit as a store does: a key that a fast clock wrote is set back first.
    fn ask(&mut self) -> Result<Receipt, Retry> {
        if let Some(back) = self.quota.set_back(&self.state, self.now) {
            self.state = back;
        }
        match self.quota.decide(&self.state, Ask::allow(self.now, Cost::ONE)) {
            Transition::Allowed { next, receipt, .. } => {
                self.state = next;
                Ok(receipt)
            }
            Transition::Denied { retry } => Err(retry),
        }
    }

    fn resets(&self) -> String {
        let at = self.now.after(self.quota.standing(&self.state, self.now).reset_after);
        let shown = i64::try_from(at.as_nanos()).unwrap() + self.wall.nanos();
        utc(Tick::from_nanos(shown.cast_unsigned()))
    }
}

/// A machine starts with its clock 5.5 hours slow or fast, and a time service corrects it. Regression: the windows kept
/// the clock of the start for ever.
#[test]
fn windows_follow_a_wall_clock_that_is_corrected() {
    let mut slow = Hourly::new("2026-03-05T06:25:00Z");
    slow.ask().unwrap();
    assert_eq!(slow.resets(), "2026-03-05T07:00:00Z");
    slow.wall.set(11 * HOUR / 2);
    slow.ask().unwrap();
    assert_eq!(slow.resets(), "2026-03-05T12:00:00Z");
    slow.now = slow.now.after(Duration::from_secs(300));
    assert!(slow.ask().is_ok() && slow.ask().is_ok() && slow.ask().is_ok(), "it is noon");
    assert_eq!(slow.ask(), Err(Retry::After(Duration::from_secs(3600))));

    let mut fast = Hourly::new("2026-03-05T17:25:00Z");
    assert!(fast.ask().is_ok() && fast.ask().is_ok());
    fast.wall.set(-11 * HOUR / 2);
    fast.ask().unwrap();
    assert_eq!(fast.resets(), "2026-03-05T12:00:00Z", "an hour that the key has not seen");
    assert!(fast.ask().is_err(), "what was spent counts in it");
    fast.now = fast.now.after(Duration::from_secs(300));
    assert!(fast.ask().is_ok());
}

#[test]
fn a_step_over_an_edge_opens_the_next_window_and_a_step_back_none_again() {
    let mut hourly = Hourly::new("2026-03-05T12:59:00Z");
    assert!(hourly.ask().is_ok() && hourly.ask().is_ok() && hourly.ask().is_ok() && hourly.ask().is_err());
    hourly.wall.set(HOUR / 60);
    let first = hourly.ask().unwrap();
    assert_eq!(hourly.resets(), "2026-03-05T14:00:00Z");
    hourly.wall.set(0);
    let Err(Retry::After(wait)) = hourly.ask() else { panic!("twelve o'clock is over") };
    assert!(wait <= Duration::from_secs(60), "{wait:?}");
    hourly.now = hourly.now.after(Duration::from_secs(60));
    assert!(hourly.ask().is_ok() && hourly.ask().is_ok() && hourly.ask().is_err(), "three in all");
    // A charge is settled in the window in which it was made, whatever the clock shows.
    hourly.state = hourly.quota.settle(&hourly.state, hourly.now, &first, 0);
    assert!(hourly.ask().is_err(), "the clock was set back since");
    let mut hourly = Hourly::new("2026-03-05T12:30:00Z");
    let first = hourly.ask().unwrap();
    hourly.wall.set(24 * HOUR);
    let second = hourly.ask().unwrap();
    hourly.state = hourly.quota.settle(&hourly.state, hourly.now, &first, 0);
    assert_eq!(hourly.quota.standing(&hourly.state, hourly.now).remaining, 2, "that was yesterday");
    hourly.state = hourly.quota.settle(&hourly.state, hourly.now, &second, 0);
    assert_eq!(hourly.quota.standing(&hourly.state, hourly.now).remaining, 3);
}

/// The wall clock is set at random: forward by anything, back by up to an hour. No hour that it shows grants more than
/// the limit.
#[test]
fn no_hour_is_granted_twice_however_the_clock_is_set() {
    for seed in 0..400 {
        let mut random = random::Random::new(seed);
        let mut hourly = Hourly::new("2026-03-05T12:30:00Z");
        let mut granted: HashMap<String, u64> = HashMap::new();
        for _ in 0..60 {
            match random.below(6) {
                0 => hourly.wall.set(hourly.wall.nanos() + random.below(3 * HOUR as u64) as i64),
                1 | 2 => hourly.wall.set(hourly.wall.nanos() - random.below(HOUR as u64) as i64),
                _ => hourly.now = hourly.now.after(random.span(HOUR as u64)),
            }
            for _ in 0..1 + random.below(4) {
                if let Ok(receipt) = hourly.ask() {
                    // After a step of seconds back, the key stands still at the later time.
                    let shown = receipt.at.as_nanos().saturating_add_signed(hourly.wall.nanos());
                    let hour = utc(Tick::from_nanos(shown / HOUR as u64 * HOUR as u64));
                    let units = granted.entry(hour.clone()).or_default();
                    *units += 1;
                    assert!(*units <= 3, "{hour}, seed {seed}");
                } else {
                    break;
                }
            }
        }
    }
}
