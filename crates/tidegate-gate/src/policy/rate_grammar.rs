//! The grammar of rates and spans of time: `100/s`, `60/min`, `100/10min`, `unlimited`; `200ms`, `1h30min`.
//!
//! The same grammar serves the file, the command line, traffic, logs and all output. `m` is a minute; `M` is refused,
//! because some programs read it as a month. A month is 30 days and a year 365 days, since a span must have a fixed
//! length; for windows of calendar months a limit has `calendar: ZONE`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

impl FromStr for WrittenRate {
    type Err = GrammarError;

    /// Parses `COUNT/[TIMES]UNIT` or `unlimited`. Digits may be grouped with `_` and followed by `k` for thousand.
    fn from_str(text: &str) -> Result<Self, GrammarError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let other_form = || Some(GrammarError::OtherForm { text: text.to_owned(), rate: rate_meant(text)? });
        let Some((count, period)) = text.split_once('/') else {
            let text = text.to_owned();
            let plain = match plain_number(&text) {
                Ok(0) => GrammarError::Zero { text },
                Ok(_) => GrammarError::NoPeriod { text },
                Err(_) => GrammarError::Rate { text },
            };
            return Err(other_form().unwrap_or(plain));
        };
        let count = plain_number(count.trim()).map_err(|error| other_form().unwrap_or(error))?;
        if count == 0 {
            return Err(GrammarError::Zero { text: text.to_owned() });
        }
        let (times, unit) = counted_unit(period.trim()).map_err(|error| other_form().unwrap_or(error))?;
        if times == 0 {
            return Err(GrammarError::NoTime { text: text.to_owned(), count, unit });
        }
        let rate = Self::Per { count, times, unit };
        if rate.period().is_none() {
            return Err(GrammarError::TooLong { text: text.to_owned() });
        }
        Ok(rate)
    }
}

/// Parses `min`, `10min` or `10 min`. Any other span is converted to the largest unit that divides it: `1h30min` is 90
/// minutes. The number may be 0.
fn counted_unit(text: &str) -> Result<(u64, Unit), GrammarError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if !digits.is_empty() && (unit.is_empty() || unit.contains(|c: char| c == '.' || c.is_ascii_digit())) {
        return Ok(Unit::largest_of(span(text)?));
    }
    let unit = unit.trim().parse()?;
    let times = if digits.is_empty() { 1 } else { plain_number(digits)? };
    Ok((times, unit))
}

/// The largest period that the core crate accepts.
const MAX_PERIOD: Duration = tidegate_core::Rate::MAX_PERIOD;

/// A rate as written: a count per number of units, or unlimited.
///
/// Keeps the author's form: `100/10min` prints as `100/10min`, not as `10/min`, which is a different limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrittenRate {
    /// Deliberately no limit.
    Unlimited,
    /// `count` per `times` units.
    Per {
        /// The count, 1 to 2⁶⁰.
        count: u64,
        /// The number of units in the period, 1 or more.
        times: u64,
        /// The unit.
        unit: Unit,
    },
}

impl WrittenRate {
    /// Returns the period; `None` if unlimited.
    #[must_use]
    pub fn period(self) -> Option<Duration> {
        match self {
            Self::Unlimited => None,
            Self::Per { times, unit, .. } => multiply(unit.length(), times),
        }
    }
}

fn multiply(length: Duration, times: u64) -> Option<Duration> {
    let nanos = length.as_nanos().checked_mul(u128::from(times))?;
    (nanos <= MAX_PERIOD.as_nanos()).then(|| tidegate_core::time::span(nanos))
}

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Per { count, times: 1, unit } => write!(f, "{count}/{}", unit.name()),
            Self::Per { count, times, unit } => write!(f, "{count}/{times}{}", unit.name()),
        }
    }
}

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

/// The largest count that the core crate accepts.
const MAX_COUNT: u64 = tidegate_core::Rate::MAX_COUNT;

/// Parses a whole number that stands alone: as in a rate, or with a fraction of zeros, as programs that write files add
/// one.
///
/// # Errors
/// [`GrammarError::Number`] if the text is not such a number, or the number is above
/// [`Rate::MAX_COUNT`](tidegate_core::Rate::MAX_COUNT).
#[cfg(feature = "config")]
pub fn whole_number(text: &str) -> Result<u64, GrammarError> {
    match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => {
            plain_number(whole)
        }
        _ => plain_number(text),
    }
}

/// Parses a whole number: digits, `_` between digits, `k` for thousand.
///
/// # Errors
/// [`GrammarError::Number`] if the text is not such a number, or the number is too large.
fn plain_number(text: &str) -> Result<u64, GrammarError> {
    let refuse = || GrammarError::Number { text: text.to_owned() };
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let outside = digits.starts_with('_') || digits.ends_with('_') || digits.is_empty();
    if outside || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(refuse());
    }
    let plain: String = digits.chars().filter(|digit| *digit != '_').collect();
    let number: u64 = plain.parse().map_err(|_| refuse())?;
    number.checked_mul(factor).filter(|number| *number <= MAX_COUNT).ok_or_else(refuse)
}

/// The most decimals of a number: a second has nine down to the nanosecond.
const DECIMALS: usize = 9;

/// Parses a span of time: one or more pairs of number and unit, such as `200ms`, `10s`, `1h30min`, `2 min`, `1.5s`.
///
/// The range is zero to 146 years. Exact: a number with decimals must be a whole number of nanoseconds.
///
/// # Errors
/// [`GrammarError`] with the part that is wrong.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::span;
/// assert_eq!(span("1h30min"), Ok(Duration::from_secs(5400)));
/// assert_eq!(span("1h30m"), span("1.5h"));
/// assert_eq!(span("90").unwrap_err().to_string(), "\"90\" has no unit; write 90ms, 90s or 90min");
/// ```
pub fn span(text: &str) -> Result<Duration, GrammarError> {
    let refuse = || GrammarError::Span { text: text.to_owned() };
    let mut rest = text.trim();
    let mut total = 0_u128;
    if rest.is_empty() {
        return Err(refuse());
    }
    while !rest.is_empty() {
        let (number, after) = leading(rest, |c| matches!(c, '0'..='9' | '_' | '.'));
        let (unit, after) = leading(after.trim_start(), char::is_alphabetic);
        if unit.is_empty() && after.is_empty() && number == text.trim() && plain_number(number).is_ok() {
            return Err(GrammarError::NoUnit { text: number.to_owned() });
        }
        if number.is_empty() || unit.is_empty() {
            return Err(refuse());
        }
        let length = unit.parse::<Unit>()?.length().as_nanos();
        // Each part is below 2^115 ns; the sum is checked after each part.
        total += nanos(number, length)?;
        if total > MAX_PERIOD.as_nanos() {
            return Err(GrammarError::TooLong { text: text.to_owned() });
        }
        rest = after.trim_start();
    }
    Ok(tidegate_core::time::span(total))
}

/// Splits off the leading characters that satisfy `of`.
fn leading(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()))
}

/// Returns a number of units in nanoseconds.
fn nanos(number: &str, length: u128) -> Result<u128, GrammarError> {
    let Some((whole, decimals)) = number.split_once('.') else {
        return Ok(u128::from(plain_number(number)?) * length);
    };
    let refuse = || GrammarError::Decimals { text: number.to_owned() };
    let is_plain =
        !whole.is_empty() && !decimals.is_empty() && decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || decimals.len() > DECIMALS {
        return Err(refuse());
    }
    let parts = 10_u128.pow(u32::try_from(decimals.len()).map_err(|_| refuse())?);
    let part = decimals.parse::<u128>().map_err(|_| refuse())? * length;
    if !part.is_multiple_of(parts) {
        return Err(refuse());
    }
    Ok(u128::from(plain_number(whole)?) * length + part / parts)
}

// Recognises rates in the form of other systems: `10r/s`, `10rps`, `0.5/s`, `300-M`, `10M/min`, `5/mo`.
//
// Such a rate is refused, so that files have one form for rates; the error shows the same rate in that form.

/// Words for the things counted, before the slash or the `p` of "per".
const THINGS: [&str; 15] = [
    "r", "q", "t", "req", "reqs", "request", "requests", "hit", "hits", "query", "queries", "token",
    "tokens", "call", "calls",
];

/// The last letters of `rps`, `rpm`, `rph` and `rpd`.
const PER: [(char, Unit); 4] =
    [('s', Unit::Second), ('m', Unit::Minute), ('h', Unit::Hour), ('d', Unit::Day)];

/// Words before the slash that multiply the count: thousands and millions, of bytes too.
const TIMES: [(&str, u64); 6] = [
    ("k", 1000),
    ("kb", 1000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
];

/// Words for a period that are no units here.
const PERIODS: [(&str, Unit); 5] = [
    ("mo", Unit::Month),
    ("mon", Unit::Month),
    ("mth", Unit::Month),
    ("hourly", Unit::Hour),
    ("daily", Unit::Day),
];

/// The most decimals of a count that are converted to a whole count: more than anybody types.
const FOREIGN_DECIMALS: usize = 9;

/// Returns the rate in the form that is accepted; `None` if it is unclear which rate was meant. The text comes from a
/// file and may have any length and any characters.
fn rate_meant(text: &str) -> Option<WrittenRate> {
    let text = text.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '_' | ',')).unwrap_or(text.len());
    let (count, rest) = text.split_at(end);
    let count = &*without_commas(count)?;
    let mut factor = 1;
    let (mut times, unit) = match rest.split_once('/').or_else(|| rest.split_once(" per ")) {
        Some((thing, period)) => {
            let word = thing.trim();
            if !is_thing(thing) {
                // `20k tokens`
                let word =
                    word.split_once(' ').filter(|(_, of)| is_thing(of)).map_or(word, |(times, _)| times);
                // `10m/s` could be anything.
                let fits = |(name, _): &&(&str, u64)| word != "m" && name.eq_ignore_ascii_case(word);
                factor = TIMES.iter().find(fits)?.1;
            }
            let period = period.trim();
            let named = PERIODS.iter().find(|(name, _)| period.eq_ignore_ascii_case(name));
            named.map_or_else(|| counted_unit(period).ok(), |(_, unit)| Some((1, *unit)))?
        }
        None if rest.starts_with('-') => {
            let (_, unit) =
                PER.iter().find(|(letter, _)| rest[1..].trim().to_ascii_lowercase().chars().eq([*letter]))?;
            (1, *unit)
        }
        None => {
            let rest = rest.to_ascii_lowercase();
            let (thing, per) = rest.trim().rsplit_once('p')?;
            let (_, unit) = PER.iter().find(|(letter, _)| per.chars().eq([*letter]))?;
            (!thing.is_empty() && is_thing(thing)).then_some((1, *unit))?
        }
    };
    let count = match count.split_once('.') {
        None => plain_number(count).ok()?,
        Some((whole, decimals)) => {
            let is_plain = decimals.bytes().all(|byte| byte.is_ascii_digit());
            if !is_plain || decimals.is_empty() || decimals.len() > FOREIGN_DECIMALS {
                return None;
            }
            let parts = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
            let whole = if whole.is_empty() { 0 } else { plain_number(whole).ok()? };
            let count = whole.checked_mul(parts)?.checked_add(decimals.parse().ok()?)?;
            // 0.5 per second is 5 per 10 s, reduced to 1 per 2 s: the burst is the count unless it is given.
            let shared = greatest_divisor(count, parts);
            times = times.checked_mul(parts / shared)?;
            count / shared
        }
    };
    let written = WrittenRate::Per { count: count.checked_mul(factor)?, times, unit };
    // Only a rate that the parser accepts is proposed.
    (written.to_string().parse() == Ok(written)).then_some(written)
}

/// Returns a count without the commas between its thousands; `None` if a comma stands elsewhere.
fn without_commas(count: &str) -> Option<Cow<'_, str>> {
    let Some((first, groups)) = count.split_once(',') else { return Some(Cow::Borrowed(count)) };
    let is_grouped = (1..=3).contains(&first.len()) && groups.split(',').all(|group| group.len() == 3);
    is_grouped.then(|| Cow::Owned(count.replace(',', "")))
}

fn is_thing(text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    text.is_empty() || THINGS.contains(&text.as_str())
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Why a text is not a rate or a span.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A rate in the form of another system.
    #[error("\"{text}\" is not how a rate is written here; write {rate}")]
    OtherForm {
        /// The rate as written.
        text: String,
        /// The same rate in the form that is accepted.
        rate: WrittenRate,
    },
    /// The text is not a rate.
    #[error("\"{text}\" is not a rate; write 100/s, 60/min or unlimited")]
    Rate {
        /// The text.
        text: String,
    },
    /// A number without a period.
    #[error("\"{text}\" does not say per what; write {text}/s, {text}/min or {text}/day")]
    NoPeriod {
        /// The text.
        text: String,
    },
    /// The unit is invalid.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The text is not a whole number, or out of range.
    #[error("\"{text}\" is not a whole number from 1 to 2^60")]
    Number {
        /// The number as written.
        text: String,
    },
    /// A rate of zero.
    #[error("\"{text}\" lets nothing pass; use 1 or more, or access.deny to refuse everyone")]
    Zero {
        /// The rate as written.
        text: String,
    },
    /// A rate over a period of zero.
    #[error("\"{text}\" has a period of 0; write {count}/{unit}, or {count}/10{unit} for ten of those", unit = .unit.name())]
    NoTime {
        /// The rate as written.
        text: String,
        /// The count of the rate.
        count: u64,
        /// The unit of the period.
        unit: Unit,
    },
    /// The span exceeds what clocks can represent.
    #[error("\"{text}\" is longer than 146 years")]
    TooLong {
        /// The span as written.
        text: String,
    },
    /// The text is not a span.
    #[error("\"{text}\" is not a span of time; write 200ms, 10s or 1h30min")]
    Span {
        /// The text.
        text: String,
    },
    /// A number without a unit.
    #[error("\"{text}\" has no unit; write {text}ms, {text}s or {text}min")]
    NoUnit {
        /// The text.
        text: String,
    },
    /// A number with too many decimals, or decimals finer than a nanosecond.
    #[error(
        "\"{text}\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms"
    )]
    Decimals {
        /// The number.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    //! Tests of the grammar: the forms that it accepts, and the messages for those that it refuses.

    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Result<WrittenRate, GrammarError> {
        text.parse()
    }

    #[test]
    fn every_form_of_the_manual_is_read() {
        for (text, count, secs) in [
            ("100/s", 100, 1),
            ("60/min", 60, 60),
            ("3/h", 3, 3600),
            ("5/day", 5, 86_400),
            ("1/week", 1, 604_800),
            ("100/10min", 100, 600),
            ("1000/month", 1000, 2_592_000),
            ("1_000 / minute", 1000, 60),
            ("5k/2h", 5000, 7200),
            ("1/year", 1, 31_536_000),
            ("60/m", 60, 60),
            ("60/10m", 60, 600),
            ("5/2w", 5, 1_209_600),
            ("10/1h30min", 10, 5400),
            ("10/1.5h", 10, 5400),
            ("10/5 min", 10, 300),
            ("10/1d12h", 10, 129_600),
        ] {
            let rate = rate(text).unwrap();
            let WrittenRate::Per { count: have, .. } = rate else { panic!("{text} is limited") };
            assert_eq!((have, rate.period()), (count, Some(Duration::from_secs(secs))), "{text}");
        }
        assert_eq!(rate("Unlimited"), Ok(WrittenRate::Unlimited));
    }

    /// Formerly the grammar of a rate's period differed from that of spans: `1.5s` was read as a unit called ".5s".
    #[test]
    fn a_period_is_any_span() {
        for (text, prints) in [
            ("10/1h30min", "10/90min"),
            ("10/1.5s", "10/1500ms"),
            ("10/0.5s", "10/500ms"),
            ("10/1000us 1ns", "10/1000001ns"),
            ("10/2h0s", "10/2h"),
        ] {
            assert_eq!(rate(text).unwrap().to_string(), prints, "{text}");
        }
        let says = |text: &str| rate(text).unwrap_err().to_string();
        assert_eq!(says("10/90"), "\"90\" has no unit; write 90ms, 90s or 90min");
        assert_eq!(says("10/1h30"), "\"1h30\" is not a span of time; write 200ms, 10s or 1h30min");
        assert_eq!(says("10/0h0s"), "\"10/0h0s\" has a period of 0; write 10/s, or 10/10s for ten of those");
    }

    #[test]
    fn what_could_be_two_things_is_refused() {
        let says = |text: &str| rate(text).unwrap_err().to_string();
        assert_eq!(says("60/M"), "\"M\" could be minute or month; write min or month");
        assert_eq!(says("60/10M"), "\"M\" could be minute or month; write min or month");
        assert_eq!(says("0.5r/M"), "\"0.5r\" is not a whole number from 1 to 2^60");
        assert_eq!(says("100"), "\"100\" does not say per what; write 100/s, 100/min or 100/day");
        assert_eq!(
            says("5/fortnight"),
            "unknown unit \"fortnight\"; use ns, us, ms, s, min, h, day, week, month or year"
        );
        assert_eq!(says("0"), "\"0\" lets nothing pass; use 1 or more, or access.deny to refuse everyone");
        assert_eq!(
            says("0/s"),
            "\"0/s\" lets nothing pass; use 1 or more, or access.deny to refuse everyone"
        );
        assert_eq!(says("-1/s"), "\"-1\" is not a whole number from 1 to 2^60");
        assert_eq!(says("1/0s"), "\"1/0s\" has a period of 0; write 1/s, or 1/10s for ten of those");
        assert_eq!(says("1/200year"), "\"1/200year\" is longer than 146 years");
    }

    /// Formerly the error for `10rps` proposed `10rps/s`, and that for nginx's `10r/s` called "10r" not a number.
    #[test]
    fn rates_of_other_systems_are_told_how_they_are_written_here() {
        for (text, write) in [
            ("10r/s", "10/s"),
            ("300-M", "300/min"),
            ("5/mo", "5/month"),
            ("10kb/s", "10000/s"),
            ("10M/min", "10000000/min"),
            ("20k tokens/min", "20000/min"),
            ("20k tokens per minute", "20000/min"),
            ("5 tokens/s", "5/s"),
            ("10 r/s", "10/s"),
            ("10r/m", "10/min"),
            ("0.5/m", "1/2min"),
            ("10R/S", "10/s"),
            ("100r/10min", "100/10min"),
            ("5 requests/hour", "5/h"),
            ("10 req per min", "10/min"),
            ("10 per second", "10/s"),
            ("10rps", "10/s"),
            ("10 qps", "10/s"),
            ("600rpm", "600/min"),
            ("5rpd", "5/day"),
            ("0.5/s", "1/2s"),
            (".5r/s", "1/2s"),
            ("1.5/s", "3/2s"),
            ("2.0/min", "2/min"),
            ("0.5rps", "1/2s"),
            ("1.25/10s", "5/40s"),
        ] {
            let expected = format!("\"{text}\" is not how a rate is written here; write {write}");
            assert_eq!(rate(text).unwrap_err().to_string(), expected);
            assert!(rate(write).is_ok(), "{write}");
        }
        for (text, says) in [
            ("fast", "\"fast\" is not a rate; write 100/s, 60/min or unlimited"),
            ("10ps", "\"10ps\" is not a rate; write 100/s, 60/min or unlimited"),
            ("0.0/s", "\"0.0\" is not a whole number from 1 to 2^60"),
            ("1.5.5/s", "\"1.5.5\" is not a whole number from 1 to 2^60"),
            ("0.1234567890/s", "\"0.1234567890\" is not a whole number from 1 to 2^60"),
        ] {
            assert_eq!(rate(text).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn spans_are_sums() {
        let nanos = |text: &str| span(text).unwrap().as_nanos();
        assert_eq!(nanos("200ms"), 200_000_000);
        assert_eq!(nanos("0s"), 0);
        assert_eq!(nanos("1h 30 min"), 5_400_000_000_000);
        assert_eq!(nanos("1h30m"), nanos("1.5h"));
        assert_eq!(nanos("1m30.5s"), 90_500_000_000);
        assert_eq!(nanos("1.234567ms"), 1_234_567);
        assert_eq!([nanos("1\u{b5}s"), nanos("1\u{3bc}s"), nanos("1000ns")], [1000; 3]);
        assert_eq!(nanos("2W 1d"), nanos("15 days"));
        assert_eq!(nanos("1_000s"), 1_000_000_000_000);
    }

    /// Each error says what would work. Formerly `m` was refused here, but was a minute in flags, whose grammar was
    /// another.
    #[test]
    fn a_span_that_cannot_be_read_says_what_can() {
        for (text, says) in [
            ("", "\"\" is not a span of time; write 200ms, 10s or 1h30min"),
            ("10", "\"10\" has no unit; write 10ms, 10s or 10min"),
            ("s", "\"s\" is not a span of time; write 200ms, 10s or 1h30min"),
            ("10s5", "\"10s5\" is not a span of time; write 200ms, 10s or 1h30min"),
            ("-1s", "\"-1s\" is not a span of time; write 200ms, 10s or 1h30min"),
            (
                "1.s",
                "\"1.\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
            ),
            (
                "1.5ns",
                "\"1.5\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
            ),
            (
                "1.0000000001s",
                "\"1.0000000001\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
            ),
            (
                ".5s",
                "\".5\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms",
            ),
            ("10M", "\"M\" could be minute or month; write min or month"),
            (
                "1 fortnight",
                "unknown unit \"fortnight\"; use ns, us, ms, s, min, h, day, week, month or year",
            ),
            ("147y", "\"147y\" is longer than 146 years"),
            ("99999999999999 year", "\"99999999999999 year\" is longer than 146 years"),
            ("100y 100y", "\"100y 100y\" is longer than 146 years"),
        ] {
            assert_eq!(span(text).unwrap_err().to_string(), says, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_rate_reads_back(count in 1..=tidegate_core::Rate::MAX_COUNT, times in 1..200_u64, unit in 0..UNITS.len()) {
            let rate = WrittenRate::Per { count, times, unit: UNITS[unit].0 };
            prop_assume!(rate.period().is_some());
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn every_spelling_of_a_unit_is_read(number in 1..100_u32, unit in 0..UNITS.len()) {
            let (unit, names) = UNITS[unit];
            prop_assume!(unit.length() * number < MAX_PERIOD);
            for name in names {
                prop_assert_eq!(span(&format!("{number}{name}")), Ok(unit.length() * number));
                prop_assert_eq!(rate(&format!("5/{number} {name}")).map(WrittenRate::period), Ok(Some(unit.length() * number)));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = rate(&text);
            let _ = span(&text);
        }
    }
}
