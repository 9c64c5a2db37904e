//! The sources of conditions and moving rates: numbers of the machine, of the gate, of another policy, or reported by a
//! user.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rate_grammar::{WrittenRate, span};

/// A source of numbers that change while a gate runs.
///
/// # Examples
/// ```
/// use tidegate::policy::Source;
/// assert_eq!("cpu".parse(), Ok(Source::Cpu));
/// assert_eq!("signal queue-length".parse(), Ok(Source::Signal("queue-length".into())));
/// assert_eq!(Source::Policy("writes".into()).to_string(), "policy writes");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// `cpu`: processor time in use, in percent of what this process may use.
    Cpu,
    /// `memory`: memory in use, in percent of what this process may use.
    Memory,
    /// `load`: the machine's load average over one minute, a number of tasks.
    Load,
    /// `in-flight`: the number of the gate's admissions and tickets that have not ended.
    InFlight,
    /// `latency`: the mean duration, in milliseconds, of the work that ended within the last second, by its admission
    /// or its ticket.
    Latency,
    /// `rate`: the number of requests that the gate let through within the last second.
    Rate,
    /// `signal NAME`: a number that the user reports.
    Signal(Box<str>),
    /// `policy NAME`: how much of another policy's limit is in use, in percent.
    Policy(Box<str>),
    /// `switch NAME`: the number of levels of priority that a [switch](crate::switches) is off for, the least important
    /// first: 0 to 4.
    Switch(Box<str>),
}

/// Why a text is not a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The word is unknown.
    #[error("unknown word \"{word}\"")]
    Unknown {
        /// The word.
        word: String,
    },
    /// A word that needs a name has none.
    #[error("{word} has no name; write {word} NAME")]
    NoName {
        /// `signal`, `policy` or `switch`.
        word: &'static str,
    },
    /// A name that is too long, or that cannot stand unescaped in a path.
    #[error("\"{name}\" is not a name of a {word}; use 1 to 64 letters, digits, `-`, `_` or `.`")]
    Name {
        /// `signal` or `switch`.
        word: &'static str,
        /// The name.
        name: String,
    },
}

/// The error if a text is not a value of a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a value of {source_word}; write {example}")]
pub struct MeasureError {
    /// The text.
    pub text: String,
    /// The source.
    pub source_word: String,
    /// An example of a valid value.
    pub example: &'static str,
}

impl Source {
    /// The words of the file, in the order of the documentation.
    pub const WORDS: [&str; 9] =
        ["cpu", "memory", "load", "in-flight", "latency", "rate", "signal", "policy", "switch"];

    /// The longest name of a signal or a switch, in bytes.
    pub const LONGEST_NAME: usize = 64;

    /// Parses a value as files write it: `80%`, `200ms`, `1000/s` or a plain number, depending on the source.
    ///
    /// # Errors
    /// [`MeasureError`] with an example of a value of this source.
    pub fn measure(&self, text: &str) -> Result<f64, MeasureError> {
        let text = text.trim();
        let plain = |text: &str| {
            // Accepts no infinity, no NaN and no exponent.
            let written =
                text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_'));
            text.replace('_', "").parse::<f64>().ok().filter(|value| written && value.is_finite())
        };
        let value = match self {
            Self::Cpu | Self::Memory | Self::Policy(_) => text
                .strip_suffix('%')
                .and_then(|share| plain(share.trim_end()))
                .filter(|share| (0.0..=100.0).contains(share)),
            Self::Load | Self::InFlight => plain(text).filter(|number| *number >= 0.0),
            Self::Signal(_) => plain(text),
            // A switch has no numeric value to compare: see
            // [`Condition::switched_off`](super::Condition::switched_off).
            Self::Switch(_) => None,
            Self::Latency => span(text).ok().map(millis),
            Self::Rate => match text.parse() {
                Ok(rate @ WrittenRate::Per { count, .. }) => {
                    rate.period().map(|period| count as f64 / period.as_secs_f64())
                }
                _ => None,
            },
        };
        value.ok_or_else(|| MeasureError {
            text: text.to_owned(),
            source_word: self.to_string(),
            example: self.example(),
        })
    }

    const fn example(&self) -> &'static str {
        match self {
            Self::Cpu | Self::Memory | Self::Policy(_) => "80%",
            Self::Load => "8",
            Self::InFlight => "500",
            Self::Latency => "200ms",
            Self::Rate => "1000/s",
            Self::Signal(_) => "1000",
            Self::Switch(_) => "when: switch NAME off",
        }
    }

    /// Returns the largest value that a reading can have: 100 % for a share.
    pub(super) const fn most(&self) -> f64 {
        match self {
            Self::Cpu | Self::Memory | Self::Policy(_) => 100.0,
            _ => f64::MAX,
        }
    }

    /// Formats a value exactly, as files write it: parsing it again yields the same number.
    pub(super) fn written(&self, value: f64) -> String {
        match self {
            Self::Cpu | Self::Memory | Self::Policy(_) => format!("{value}%"),
            Self::Load | Self::InFlight | Self::Signal(_) | Self::Switch(_) => value.to_string(),
            Self::Latency => in_whole_units(value),
            Self::Rate => per_time(value),
        }
    }

    /// Formats a reading for people: with up to three decimals, and a rate in requests per second.
    pub(super) fn rounded(&self, value: f64) -> String {
        let thousandths = (value * 1000.0).round();
        let rounded = if thousandths.is_finite() { thousandths / 1000.0 } else { value };
        match self {
            Self::Latency => format!("{rounded}ms"),
            Self::Rate => format!("{rounded}/s"),
            _ => self.written(rounded),
        }
    }
}

/// Formats milliseconds in the largest unit in which they are a whole number.
fn in_whole_units(millis: f64) -> String {
    let units = [(1.0, "ms"), (1e3, "us"), (1e6, "ns")];
    let whole = units.into_iter().find(|(per_milli, _)| {
        let count = (millis * per_milli).round();
        // Divides as `millis` does, so that equality is exact to the bit.
        count / per_milli == millis
    });
    // No span in a file yields this number.
    whole.map_or_else(
        || format!("{millis}ms"),
        |(per_milli, unit)| format!("{}{unit}", (millis * per_milli).round()),
    )
}

/// Formats a rate over the shortest period that makes its count a whole number; if there is none, per second.
fn per_time(per_second: f64) -> String {
    const DAY: f64 = 86_400.0;
    const TIMES: [(f64, &str); 7] = [
        (1.0, "s"),
        (60.0, "min"),
        (3600.0, "h"),
        (DAY, "day"),
        (7.0 * DAY, "week"),
        (30.0 * DAY, "month"),
        (365.0 * DAY, "year"),
    ];
    // The tolerance covers the rounding errors of one division and one multiplication.
    let is_whole = |count: f64| count.round() >= 1.0 && (count - count.round()).abs() <= count * 1e-14;
    let whole = TIMES.into_iter().find(|(seconds, _)| is_whole(per_second * seconds));
    whole.map_or_else(
        || format!("{per_second}/s"),
        |(seconds, unit)| format!("{}/{unit}", (per_second * seconds).round()),
    )
}

/// Returns a span in milliseconds.
pub(crate) fn millis(span: Duration) -> f64 {
    // A single division, so that the nearest number prints as it was written: 0.0003, and not 0.00030000000000000003.
    span.as_nanos() as f64 / 1e6
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let text = text.trim();
        let (word, name) = text.split_once(' ').map_or((text, ""), |(word, name)| (word, name.trim()));
        let alone = match word {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "load" => Self::Load,
            "in-flight" => Self::InFlight,
            "latency" => Self::Latency,
            "rate" => Self::Rate,
            "signal" if name.is_empty() => return Err(SourceError::NoName { word: "signal" }),
            "policy" if name.is_empty() => return Err(SourceError::NoName { word: "policy" }),
            "switch" if name.is_empty() => return Err(SourceError::NoName { word: "switch" }),
            "signal" if !is_name(name) => {
                return Err(SourceError::Name { word: "signal", name: name.to_owned() });
            }
            "switch" if !is_name(name) => {
                return Err(SourceError::Name { word: "switch", name: name.to_owned() });
            }
            "signal" => return Ok(Self::Signal(name.into())),
            "switch" => return Ok(Self::Switch(name.into())),
            "policy" => return Ok(Self::Policy(name.into())),
            _ => return Err(SourceError::Unknown { word: word.to_owned() }),
        };
        if name.is_empty() { Ok(alone) } else { Err(SourceError::Unknown { word: text.to_owned() }) }
    }
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=Source::LONGEST_NAME).contains(&name.len()) && name.bytes().all(letter)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Memory => f.write_str("memory"),
            Self::Load => f.write_str("load"),
            Self::InFlight => f.write_str("in-flight"),
            Self::Latency => f.write_str("latency"),
            Self::Rate => f.write_str("rate"),
            Self::Signal(name) => write!(f, "signal {name}"),
            Self::Policy(name) => write!(f, "policy {name}"),
            Self::Switch(name) => write!(f, "switch {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for word in Source::WORDS {
            let named = matches!(word, "signal" | "policy" | "switch");
            let text = if named { format!("{word} a-name") } else { word.to_owned() };
            let source: Source = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            if word == "switch" {
                continue; // On or off, and no number.
            }
            let value = source.measure(source.example()).unwrap();
            assert_eq!(source.written(value), source.example());
        }
        for wrong in
            ["", "cpus", "cpu usage", "signal", "policy ", "signal a/b", "signal é", "switch", "switch a b"]
        {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
        assert!(format!("signal {}", "x".repeat(65)).parse::<Source>().is_err());
    }

    #[test]
    fn a_value_has_the_unit_of_its_source() {
        for (source, wrong) in [
            ("cpu", "80"),
            ("cpu", "101%"),
            ("cpu", "-1%"),
            ("load", "-1"),
            ("load", "inf"),
            ("load", "NaN"),
            ("load", "1e3"),
            ("latency", "200"),
            ("rate", "unlimited"),
            ("signal x", "1%"),
            ("signal x", ""),
        ] {
            let source: Source = source.parse().unwrap();
            assert!(source.measure(wrong).is_err(), "{source} {wrong}");
        }
        let rate: Source = "rate".parse().unwrap();
        assert_eq!(rate.measure("60/min"), Ok(1.0));
        assert_eq!(
            [4.5, 0.001, 0.5 / 86_400.0, 0.0, 1.0 / 3.0].map(|value| rate.written(value)),
            ["270/min", "2592/month", "15/month", "0/s", "20/min"]
        );
        assert_eq!("signal x".parse::<Source>().unwrap().measure("-1_000.5"), Ok(-1000.5));
    }
}
