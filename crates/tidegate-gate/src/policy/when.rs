//! Conditions: a policy may apply only while a number is above or below a value.
//!
//! `cpu above 80%, until 70%`: the condition begins to hold when a reading is above 80 %, and ends when one is at 70 %
//! or below. In between it keeps its state (hysteresis), so that a number that wavers around a value does not switch a
//! policy on and off with each reading. A condition whose last reading is too old does not hold.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rate_grammar::{GrammarError, span};
use super::source::{MeasureError, Source, SourceError, millis};

/// The side of its value on which a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// While the number is higher.
    Above,
    /// While the number is lower.
    Below,
}

/// A condition on a number; see [`Source`] for the numbers.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Condition, Source};
///
/// let condition: Condition = "cpu above 80%, until 70%".parse()?;
/// assert_eq!(*condition.source(), Source::Cpu);
/// let condition: Condition = "signal queue-length above 1000, stale after 30s".parse()?;
/// assert_eq!(condition.stale_after(), Duration::from_secs(30));
/// assert_eq!(condition.to_string(), "signal queue-length above 1000, until 900, stale after 30s");
/// # Ok::<(), tidegate::policy::ConditionError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    source: Source,
    side: Side,
    value: f64,
    until: f64,
    stale_after: Duration,
}

impl Condition {
    /// The age from which a reading counts as absent, unless the condition sets another.
    pub const STALE_AFTER: Duration = Duration::from_secs(10);

    /// The words that may follow the value.
    pub const PARTS: [&str; 2] = ["until", "stale after"];

    /// Creates a condition that holds while a [switch](crate::switches) is off, for the requests that it is off for.
    ///
    /// # Errors
    /// [`ConditionError::Source`] if the name is not valid for a switch: 1 to 64 letters, digits, `-`, `_` or `.`.
    pub fn switched_off(name: &str) -> Result<Self, ConditionError> {
        let source = format!("switch {name}").parse()?;
        Ok(Self { source, side: Side::Above, value: 0.0, until: 0.0, stale_after: Self::STALE_AFTER })
    }

    /// Creates a condition that ends a tenth before its value.
    fn of(source: Source, side: Side, value: f64) -> Result<Self, ConditionError> {
        let tenth = value.abs() / 10.0;
        let until = match side {
            Side::Above => decimal(value - tenth).min(value),
            // An end that the number cannot reach would never come.
            Side::Below => decimal(value + tenth).min(source.most()).max(value),
        };
        if !until.is_finite() {
            return Err(ConditionError::NotFinite { value: value.to_string() });
        }
        Ok(Self { source, side, value, until, stale_after: Self::STALE_AFTER })
    }

    /// Sets where the condition ends once it holds: at the value (no hysteresis), or on the other side of it.
    fn until(self, until: f64) -> Result<Self, ConditionError> {
        let fits = match self.side {
            Side::Above => until <= self.value,
            Side::Below => until >= self.value,
        };
        if !fits || !until.is_finite() {
            return Err(ConditionError::Until {
                source_word: self.source.to_string(),
                side: self.side.word(),
                value: self.source.written(self.value),
                until: self.source.written(until),
            });
        }
        Ok(Self { until, ..self })
    }

    /// Sets the age from which a reading counts as absent: one second to one day.
    ///
    /// # Errors
    /// [`ConditionError::Stale`] if the age is out of that range.
    pub fn stale(self, after: Duration) -> Result<Self, ConditionError> {
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&after) {
            return Err(ConditionError::Stale { written: format!("{after:?}") });
        }
        Ok(Self { stale_after: after, ..self })
    }

    /// Returns the source of the number.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the age from which a reading counts as absent.
    #[must_use]
    pub const fn stale_after(&self) -> Duration {
        self.stale_after
    }

    /// Reports whether the condition holds after a reading; `held` says whether it held before.
    pub(super) fn holds(&self, held: bool, reading: f64) -> bool {
        // NaN compares with nothing, so the condition does not hold.
        match (self.side, held) {
            (Side::Above, false) => reading > self.value,
            (Side::Above, true) => reading > self.until,
            (Side::Below, false) => reading < self.value,
            (Side::Below, true) => reading < self.until,
        }
    }

    /// Reports whether this condition and another one can never hold at once: both are on one number, whose ranges, to
    /// their ends, have nothing in common.
    #[cfg(feature = "config")]
    pub fn excludes(&self, other: &Self) -> bool {
        let (above, below) = match (self.side, other.side) {
            (Side::Above, Side::Below) => (self, other),
            (Side::Below, Side::Above) => (other, self),
            _ => return false,
        };
        above.source == below.source && above.until >= below.until
    }
}

/// Checks that no further part of a condition follows a value without a comma.
fn alone(value: &str) -> Result<&str, ConditionError> {
    let next = Condition::PARTS.into_iter().find_map(|part| value.find(&format!(" {part} ")));
    let Some(at) = next else { return Ok(value) };
    Err(ConditionError::Comma { value: value[..at].trim().to_owned(), part: value[at..].trim().to_owned() })
}

/// Reports whether a text has the word of a comparison.
fn compares(text: &str) -> bool {
    text.split(' ').any(|word| word == Side::Above.word() || word == Side::Below.word())
}

/// Rounds to fifteen significant digits, which every `f64` can represent: a tenth less than 0.7 is 0.63, and not
/// 0.6299999999999999.
fn decimal(number: f64) -> f64 {
    format!("{number:.14e}").parse().unwrap_or(number)
}

impl Side {
    const fn word(self) -> &'static str {
        match self {
            Self::Above => "above",
            Self::Below => "below",
        }
    }
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, ConditionError> {
        let text = text.trim();
        if let Some(switch) = text.strip_prefix("switch ") {
            let name = switch.strip_suffix(" off").map(str::trim);
            let name = name.ok_or_else(|| ConditionError::Switch { text: text.to_owned() })?;
            return Self::switched_off(name);
        }
        // The last occurrence counts, because the name of a policy may contain the word too.
        let side = [Side::Above, Side::Below]
            .into_iter()
            .filter_map(|side| Some((text.rfind(&format!(" {} ", side.word()))?, side)))
            .max_by_key(|(at, _)| *at);
        let Some((at, side)) = side else { return Err(ConditionError::NoSide { text: text.to_owned() }) };
        let twice = || ConditionError::TwoComparisons { text: text.to_owned() };
        // What is compared is not a name of a number where a comparison stands before the last one.
        let (compared, is_second) = (&text[..at], compares(&text[..at]));
        if is_second && compared.trim_end().ends_with(',') {
            return Err(twice());
        }
        let source = compared.parse::<Source>();
        let source = source.map_err(|error| if is_second { twice() } else { error.into() })?;
        let mut parts = text[at + side.word().len() + 2..].split(',').map(str::trim);
        let value = source.measure(alone(parts.next().unwrap_or_default())?)?;
        let mut condition = Self::of(source, side, value)?;
        let (mut until, mut stale) = (None, None);
        for part in parts {
            let twice = if let Some(value) = part.strip_prefix("until ") {
                until.replace(condition.source.measure(alone(value)?)?).map(|_| "until")
            } else if let Some(age) = part.strip_prefix("stale after ") {
                stale.replace((span(age.trim())?, age.trim())).map(|_| "stale after")
            } else {
                let word = part.split(' ').next().unwrap_or_default();
                if [Side::Above, Side::Below].iter().any(|side| side.word() == word) {
                    return Err(twice());
                }
                return Err(ConditionError::Part { word: word.to_owned() });
            };
            if let Some(part) = twice {
                return Err(ConditionError::Twice { part });
            }
        }
        if let Some(until) = until {
            condition = condition.until(until)?;
        }
        match stale {
            Some((after, written)) => {
                condition.stale(after).map_err(|_| ConditionError::Stale { written: written.to_owned() })
            }
            None => Ok(condition),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.source, Source::Switch(_)) {
            return write!(f, "{} off", self.source);
        }
        let (value, until) = (self.source.written(self.value), self.source.written(self.until));
        write!(f, "{} {} {value}, until {until}", self.source, self.side.word())?;
        if self.stale_after != Self::STALE_AFTER {
            write!(f, ", stale after {}s", millis(self.stale_after) / 1000.0)?;
        }
        Ok(())
    }
}

/// Why a text or a number does not make a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionError {
    /// The text has neither `above` nor `below`.
    #[error("\"{text}\" is not a condition; write cpu above 80%, or signal NAME below 10")]
    NoSide {
        /// The text.
        text: String,
    },
    /// A condition on a switch without `off` or without a name.
    #[error("\"{text}\" is not a condition on a switch; write switch NAME off")]
    Switch {
        /// The text.
        text: String,
    },
    /// The source is invalid.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The value is invalid for the source.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// An unknown part follows the value.
    #[error("unknown word \"{word}\" after the value")]
    Part {
        /// The word.
        word: String,
    },
    /// No comma separates the value from the next part.
    #[error("\"{value} {part}\" lacks a comma; write {value}, {part}")]
    Comma {
        /// The value.
        value: String,
        /// The part.
        part: String,
    },
    /// The text compares twice.
    #[error("\"{text}\" compares twice; write two conditions, one for each value: all of a list must hold")]
    TwoComparisons {
        /// The text.
        text: String,
    },
    /// A part occurs twice.
    #[error("{part} is given twice")]
    Twice {
        /// `until` or `stale after`.
        part: &'static str,
    },
    /// The end lies on the wrong side of the value.
    #[error("{} {side} {value}, until {until} would never end in time; use an end {} {value}", .source_word, if *.side == "above" { "at or below" } else { "at or above" })]
    Until {
        /// The number.
        source_word: String,
        /// `above` or `below`.
        side: &'static str,
        /// The value at which the condition begins.
        value: String,
        /// The end that was given.
        until: String,
    },
    /// The span of time is invalid.
    #[error(transparent)]
    Span(#[from] GrammarError),
    /// The age is out of range.
    #[error("a reading is stale after 1s to 1day; {written} is out of range")]
    Stale {
        /// The age.
        written: String,
    },
    /// The value is infinite or not a number.
    #[error("{value} is not a value to compare with; use a finite number")]
    NotFinite {
        /// The value.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_from_its_value_to_its_end_and_the_edges_do_not_count() {
        let above: Condition = "cpu above 80%, until 70%".parse().unwrap();
        let readings = [80.0, 80.1, 75.0, 70.1, 70.0, 75.0, f64::NAN, 99.0, f64::NAN];
        let mut held = false;
        let holds = readings.map(|reading| {
            held = above.holds(held, reading);
            held
        });
        assert_eq!(holds, [false, true, true, true, false, false, false, true, false]);
        let below: Condition = "signal free-disk below 10".parse().unwrap();
        assert!(!below.holds(false, 10.0) && below.holds(false, 9.9));
        let share: Condition = "cpu below 95%".parse().unwrap();
        assert!(share.holds(true, 99.9) && !share.holds(true, 100.0));
        assert!(below.holds(true, 10.9) && !below.holds(true, 11.0), "until a tenth higher");
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd_to_be_read_or_refused(text in "\\PC{0,40}( above | below )\\PC{0,60}") {
            if let Ok(condition) = text.parse::<Condition>() {
                proptest::prop_assert!(!condition.to_string().is_empty() && !condition.holds(false, f64::NAN));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "cpu above 80%, until 70%",
            "memory below 5.5%, until 6%",
            "latency above 200ms, until 150ms, stale after 60s",
            "rate above 1000/s, until 800/s",
            "policy a above b, c above 80%, until 80%",
            "signal x above -10, until -11",
            "switch previews off",
        ] {
            assert_eq!(text.parse::<Condition>().unwrap().to_string(), text);
        }
    }

    /// With three decimals, an end at 0.0004 would be printed as 0.
    #[test]
    fn values_are_shown_exactly_and_the_end_is_what_is_shown() {
        for (text, shown) in [
            ("signal errors above 0.0005", "signal errors above 0.0005, until 0.00045"),
            ("signal errors above 0.7", "signal errors above 0.7, until 0.63"),
            ("signal errors below 0.3, until 0.3004", "signal errors below 0.3, until 0.3004"),
            ("cpu above 99.9995%, until 99.9991%", "cpu above 99.9995%, until 99.9991%"),
            ("latency above 300ns", "latency above 300ns, until 270ns"),
            ("latency above 1.5ms, until 1us", "latency above 1500us, until 1us"),
            ("rate above 1/week, until 1/month", "rate above 1/week, until 1/month"),
            ("rate above 7/3s", "rate above 140/min, until 126/min"),
        ] {
            let condition = text.parse::<Condition>().unwrap();
            assert_eq!(condition.to_string(), shown);
            assert_eq!(shown.parse::<Condition>().unwrap(), condition, "{shown}");
        }
    }

    #[test]
    fn mistakes_name_what_would_work() {
        for (text, says) in [
            ("cpu", "\"cpu\" is not a condition; write cpu above 80%, or signal NAME below 10"),
            ("cpu above 80", "\"80\" is not a value of cpu; write 80%"),
            (
                "cpu above 80%, until 90%",
                "cpu above 80%, until 90% would never end in time; use an end at or below 80%",
            ),
            (
                "load below 2, until 1",
                "load below 2, until 1 would never end in time; use an end at or above 2",
            ),
            ("cpu above 80%, untill 70%", "unknown word \"untill\" after the value"),
            ("cpu above 80%, until 70%, until 60%", "until is given twice"),
            ("cpu above 80%, stale after 1ms", "a reading is stale after 1s to 1day; 1ms is out of range"),
            ("signal above 3", "signal has no name; write signal NAME"),
            ("switch previews", "\"switch previews\" is not a condition on a switch; write switch NAME off"),
            (
                "switch previews above 0",
                "\"switch previews above 0\" is not a condition on a switch; write switch NAME off",
            ),
            (
                "switch a b off",
                "\"a b\" is not a name of a switch; use 1 to 64 letters, digits, `-`, `_` or `.`",
            ),
        ] {
            assert_eq!(text.parse::<Condition>().unwrap_err().to_string(), says);
        }
    }
}
