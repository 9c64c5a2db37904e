//! Why a text or a number does not make a condition.

use super::rate_grammar::GrammarError;
use super::source::{MeasureError, SourceError};

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
