//! Parses timestamps, mostly without a date library.
//!
//! Most lines of a log have the same second as the line before, and nearly all have the same day. Both are cached, so
//! that a line usually costs one comparison.

use std::time::Duration;

use tidegate::policy::span;

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Timestamps {
    /// The last `dd/Mon/yyyy:HH:MM:SS +zone`.
    last: [u8; 26],
    last_nanos: u64,
    /// Seconds since 1970 at the last day's local midnight, with its zone; valid once `last` is set.
    midnight: i64,
}

impl Timestamps {
    /// Parses `17/May/2015:10:05:03 +0000`, without brackets.
    #[inline]
    pub(super) fn clf(&mut self, at: &[u8; 26]) -> Option<u64> {
        if *at == self.last {
            return Some(self.last_nanos);
        }
        self.clf_anew(at)
    }

    fn clf_anew(&mut self, at: &[u8; 26]) -> Option<u64> {
        if at[11] != b':' || at[14] != b':' || at[17] != b':' || at[20] != b' ' {
            return None;
        }
        let clock = clock(two(&at[12..14])?, two(&at[15..17])?, two(&at[18..20])?)?;
        // Until the first success `last` is all zeros, which no date equals.
        let midnight = if at[..11] == self.last[..11] && at[21..] == self.last[21..] {
            self.midnight
        } else {
            if at[2] != b'/' || at[6] != b'/' {
                return None;
            }
            let (day, month) = (two(&at[..2])?, month(&at[3..6])?);
            days(four(&at[7..11])?, month, day)? * 86_400 - zone(&at[21..])?
        };
        let nanos = nanos(midnight + clock, 0)?;
        (self.last, self.last_nanos, self.midnight) = (*at, nanos, midnight);
        Some(nanos)
    }

    /// Parses any of the forms in JSON and CSV logs: RFC 3339 and its relaxed variants (a space for the `T`, no zone
    /// for UTC), Unix seconds with or without fraction, milli-, micro- or nanoseconds, and the access log's own form.
    pub(super) fn any(&mut self, text: &[u8]) -> Option<u64> {
        let text = text.trim_ascii();
        if let Ok(clf) = <&[u8; 26]>::try_from(text)
            && clf[2] == b'/'
        {
            return self.clf(clf);
        }
        match text {
            [b'[', inner @ .., b']'] => self.any(inner),
            [_, _, _, _, b'-', ..] => iso(text),
            [_, _, b'/', ..] => self.clf_with_fraction(text),
            [first, ..] if first.is_ascii_digit() => unix(text),
            _ => mail(text),
        }
    }
}

/// The length of `17/May/2015:10:05:03`.
const CLF_SECOND: usize = 20;

impl Timestamps {
    /// Parses `17/May/2015:10:05:03.123 +0200`, as Apache writes it if told to, and `17/May/2015:10:05:03.123`, as
    /// HAProxy does. Without a zone it is UTC.
    fn clf_with_fraction(&mut self, text: &[u8]) -> Option<u64> {
        let (head, mut rest) = text.split_at_checked(CLF_SECOND)?;
        let mut fraction = 0;
        if let [b'.' | b',' | b':', digits @ ..] = rest {
            let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count == 0 {
                return None;
            }
            fraction = part_nanos(&digits[..count]);
            rest = &digits[count..];
        }
        let mut whole = *b"17/May/2015:10:05:03 +0000";
        whole[..CLF_SECOND].copy_from_slice(head);
        if !rest.is_empty() {
            whole[CLF_SECOND..].copy_from_slice(rest.get(..6).filter(|_| rest.len() == 6)?);
        }
        self.clf(&whole)?.checked_add(fraction)
    }
}

/// Parses `Sun, 17 May 2015 10:05:03 GMT`; rare, so left to the library.
fn mail(text: &[u8]) -> Option<u64> {
    let at = jiff::fmt::rfc2822::parse(std::str::from_utf8(text).ok()?).ok()?;
    u64::try_from(at.timestamp().as_nanosecond()).ok()
}

/// Parses `2015-05-17T10:05:03.123456789+02:00`.
fn iso(text: &[u8]) -> Option<u64> {
    let (head, mut rest) = text.split_at_checked(19)?;
    if head[7] != b'-' || !matches!(head[10], b'T' | b't' | b' ') || head[13] != b':' || head[16] != b':' {
        return None;
    }
    let days = days(four(&head[..4])?, two(&head[5..7])?, two(&head[8..10])?)?;
    let clock = clock(two(&head[11..13])?, two(&head[14..16])?, two(&head[17..19])?)?;
    let mut fraction = 0;
    if let [b'.' | b',', digits @ ..] = rest {
        let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return None;
        }
        fraction = part_nanos(&digits[..count]);
        rest = &digits[count..];
    }
    let zone = match rest.trim_ascii() {
        b"" | b"Z" | b"z" | b"UTC" | b"GMT" => 0,
        sign_and_time => zone(sign_and_time)?,
    };
    nanos(days * 86_400 + clock - zone, fraction)
}

/// Parses a count since 1970. Its number of digits tells the unit; eleven digits of seconds reach the year 5138.
fn unix(text: &[u8]) -> Option<u64> {
    let point = memchr::memchr(b'.', text).unwrap_or(text.len());
    let (whole, part) = (&text[..point], text.get(point + 1..).unwrap_or(b""));
    if whole.len() > 20 || part.iter().any(|byte| !byte.is_ascii_digit()) {
        return None;
    }
    let count = digits(whole)?;
    let unit: u64 = match whole.len() {
        ..=11 => SECOND,
        12..=14 => SECOND / 1_000,
        15..=17 => SECOND / 1_000_000,
        _ => 1,
    };
    count.checked_mul(unit)?.checked_add(part_nanos(part) / (SECOND / unit))
}

/// Converts the digits after a decimal point to nanoseconds. Finer digits are cut off.
fn part_nanos(part: &[u8]) -> u64 {
    let kept = &part[..part.len().min(9)];
    let value = kept.iter().fold(0u64, |sum, byte| sum * 10 + u64::from(byte - b'0'));
    value * 10u64.pow(9 - kept.len() as u32)
}

pub(super) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

fn two(text: &[u8]) -> Option<i64> {
    let (tens, ones) = (text[0].wrapping_sub(b'0'), text[1].wrapping_sub(b'0'));
    (tens <= 9 && ones <= 9).then(|| i64::from(tens) * 10 + i64::from(ones))
}

fn four(text: &[u8]) -> Option<i64> {
    Some(two(&text[..2])? * 100 + two(&text[2..4])?)
}

fn month(name: &[u8]) -> Option<i64> {
    const NAMES: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let at = NAMES.iter().position(|have| have.eq_ignore_ascii_case(name))?;
    Some(at as i64 + 1)
}

/// A leap second, 60, counts as the first second of the next minute.
fn clock(hour: i64, minute: i64, second: i64) -> Option<i64> {
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

/// Parses `+0200`, `-04:00` or `+02` as seconds east of Greenwich.
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, rest) = text.split_first()?;
    let (hours, minutes) = match rest {
        [a, b] => (two(&[*a, *b])?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (two(&[*a, *b])?, two(&[*c, *d])?),
        _ => return None,
    };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let east = hours * 3_600 + minutes * 60;
    match sign {
        b'+' => Some(east),
        b'-' => Some(-east),
        _ => None,
    }
}

/// Returns the days from 1970-01-01 to a date; `None` if the date does not exist.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    const LENGTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = LENGTHS.get(usize::try_from(month - 1).ok()?)? + i64::from(leap && month == 2);
    if !(1..=length).contains(&day) {
        return None;
    }
    // Counting years from March puts the leap day last; 146,097 days are 400 years.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    Some(year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468)
}

fn nanos(seconds: i64, fraction: u64) -> Option<u64> {
    u64::try_from(seconds).ok()?.checked_mul(SECOND)?.checked_add(fraction)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanos(u32),
    /// Whole numbers are milliseconds, and numbers with a decimal point seconds: `time-taken` and the like.
    WholeMillis,
    /// Some systems write whole milliseconds under the name and some nanoseconds. All mean seconds by a decimal point.
    Unsaid,
}

impl Unit {
    /// Infers the unit from a name: `request_time` is in seconds, as in nginx; `time-taken` in milliseconds, as IIS
    /// writes it, or in seconds with a decimal point, as CloudFront does.
    pub(super) fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let ends = |with: [&str; 2]| with.iter().any(|with| name.ends_with(with));
        match name.as_str() {
            "duration" => Self::Unsaid,
            "time-taken" | "properties.timetaken" => Self::WholeMillis,
            "latencies.request" | "responselatency" => Self::Nanos(1_000_000),
            _ if ends(["_ms", "millis"]) => Self::Nanos(1_000_000),
            _ if ends(["_us", "micros"]) => Self::Nanos(1_000),
            _ if ends(["_ns", "nanos"]) => Self::Nanos(1),
            _ => Self::Nanos(1_000_000_000),
        }
    }

    /// A number in this unit, or one with a unit of its own, such as `12ms`.
    pub(super) fn read(self, value: &[u8]) -> Option<Duration> {
        let text = std::str::from_utf8(value).ok()?;
        let Ok(number) = text.parse::<f64>() else {
            // Most other values are a dash; building an error for each would cost time.
            return if text.starts_with(|first: char| first.is_ascii_digit()) {
                span(text).ok()
            } else {
                None
            };
        };
        let nanos = match self {
            Self::Nanos(nanos) => nanos,
            Self::Unsaid | Self::WholeMillis if text.contains('.') => 1_000_000_000,
            Self::WholeMillis => 1_000_000,
            Self::Unsaid => return None,
        };
        // Divided only at the end, to be exact to the nanosecond.
        Duration::try_from_secs_f64(number * f64::from(nanos) / 1e9).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms() {
        const AT: u64 = 1_431_857_103;
        let rows: [(&str, Option<u64>); 38] = [
            ("17/May/2015:10:05:03 +0000", Some(AT * SECOND)),
            ("[17/May/2015:10:05:03 +0000]", Some(AT * SECOND)),
            ("17/May/2015:12:05:03 +0200", Some(AT * SECOND)),
            ("17/May/2015:05:35:03 -0430", Some(AT * SECOND)),
            ("29/Feb/2016:00:00:00 +0000", Some(1_456_704_000 * SECOND)),
            ("29/Feb/2015:00:00:00 +0000", None),
            ("31/Apr/2015:00:00:00 +0000", None),
            ("17/Mai/2015:10:05:03 +0000", None),
            ("17/May/2015:12:05:03.123 +0200", Some(AT * SECOND + 123_000_000)),
            ("17/May/2015:12:05:03:123456 +0200", Some(AT * SECOND + 123_456_000)),
            ("17/May/2015:10:05:03.5", Some(AT * SECOND + 500_000_000)),
            ("17/May/2015:10:05:03", Some(AT * SECOND)),
            ("17/May/2015:10:05:03. +0000", None),
            ("17/May/2015:10:05:03.1 CEST", None),
            ("17/May/2015:10:05:03.1x", None),
            ("17/May/2015", None),
            ("17/May/2015:24:05:03 +0000", None),
            ("31/Dec/2016:23:59:60 +0000", Some(1_483_228_800 * SECOND)),
            ("2015-05-17T10:05:03Z", Some(AT * SECOND)),
            ("2015-05-17 10:05:03", Some(AT * SECOND)),
            ("2015-05-17T12:05:03.25+02:00", Some(AT * SECOND + 250_000_000)),
            ("2015-05-17T12:05:03,123456789123+0200", Some(AT * SECOND + 123_456_789)),
            ("2015-05-17 10:05:03.1 UTC", Some(AT * SECOND + 100_000_000)),
            ("2023-11-16 18:15:46.6805900", Some(1_700_158_546_680_590_000)),
            ("2015-05-17T10:05:03.", None),
            ("2015-05-17", None),
            ("2015-13-17T10:05:03Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("2600-01-01T00:00:00Z", None),
            ("807256800", Some(807_256_800 * SECOND)),
            ("1431857103.25", Some(AT * SECOND + 250_000_000)),
            ("1431857103250", Some(AT * SECOND + 250_000_000)),
            ("1431857103250000.5", Some(AT * SECOND + 250_000_500)),
            ("1431857103250000000", Some(AT * SECOND + 250_000_000)),
            ("0", Some(0)),
            ("Sun, 17 May 2015 10:05:03 GMT", Some(AT * SECOND)),
            ("yesterday", None),
            ("", None),
        ];
        for (text, want) in rows {
            assert_eq!(Timestamps::default().any(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn a_remembered_day_does_not_leak_into_another_zone() {
        let mut times = Timestamps::default();
        assert_eq!(times.clf(b"01/Jan/1970:10:00:00 +0000"), Some(36_000 * SECOND));
        assert_eq!(times.clf(b"01/Jan/1970:10:00:00 +0100"), Some(32_400 * SECOND));
        assert_eq!(times.clf(b"01/Jan/1970:10:00:60 +0100"), Some(32_460 * SECOND));
        assert_eq!(times.clf(b"02/Jan/1970:10:00:00 +0100"), Some(118_800 * SECOND));
    }

    proptest! {
        #[test]
        fn the_calendar_agrees_with_a_date_library(seconds in 0i64..16_000_000_000, east in -840i32..=840) {
            let offset = jiff::tz::Offset::from_seconds(east * 60).unwrap();
            let zoned = jiff::Timestamp::from_second(seconds).unwrap().to_zoned(offset.to_time_zone());
            let written = zoned.strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            let want = u64::try_from(seconds).unwrap() * SECOND;
            prop_assert_eq!(Timestamps::default().any(written.as_bytes()), Some(want));
            let written = zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
            prop_assert_eq!(Timestamps::default().any(written.as_bytes()), Some(want));
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>, text in "[0-9:/+. TZa-z-]{0,40}") {
            let _ = Timestamps::default().any(&bytes);
            let _ = Timestamps::default().any(text.as_bytes());
        }
    }

    #[test]
    fn a_unit_is_read_off_the_name_or_the_value() {
        let rows = [
            ("request_time", "0.250", Some(250_000_000)),
            ("request_time", "2", Some(2_000_000_000)),
            ("duration_ms", "12", Some(12_000_000)),
            ("Duration_US", "12", Some(12_000)),
            ("tookNanos", "12", Some(12)),
            ("time-taken", "40", Some(40_000_000)),
            ("time-taken", "0.250", Some(250_000_000)),
            ("properties.timeTaken", "0.012", Some(12_000_000)),
            ("latencies.request", "12", Some(12_000_000)),
            ("httpRequest.latency", "0.012s", Some(12_000_000)),
            ("duration", "0.5", Some(500_000_000)),
            ("duration", "12ms", Some(12_000_000)),
            // As Go programs write it.
            ("duration", "1.234567ms", Some(1_234_567)),
            ("duration", "1m2.5s", Some(62_500_000_000)),
            ("duration", "12\u{b5}s", Some(12_000)),
            // Milliseconds in Envoy, nanoseconds in Traefik: undecidable.
            ("duration", "500", None),
            ("request_time", "-", None),
            ("request_time", "-1", None),
            ("request_time", "inf", None),
            ("request_time", "NaN", None),
        ];
        for (name, value, nanos) in rows {
            let read = Unit::of(name).read(value.as_bytes());
            assert_eq!(read, nanos.map(Duration::from_nanos), "{name} {value}");
        }
    }
}
