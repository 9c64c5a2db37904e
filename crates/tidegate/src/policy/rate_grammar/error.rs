//! Why a text is no rate and no span, and what to write instead.

use super::unit::{Unit, UnitError};
use super::written::WrittenRate;

/// Why a text is no rate or no span.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A rate as other systems write it.
    #[error("\"{text}\" is not how a rate is written here; write {rate}")]
    OtherForm {
        /// The rate as written.
        text: String,
        /// The same rate, as it is read.
        rate: WrittenRate,
    },
    /// Nothing like a rate.
    #[error("\"{text}\" is not a rate; write 100/s, 60/min or unlimited")]
    Rate {
        /// The text.
        text: String,
    },
    /// A number alone.
    #[error("\"{text}\" does not say per what; write {text}/s, {text}/min or {text}/day")]
    NoPeriod {
        /// The text.
        text: String,
    },
    /// No unit.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Not a whole number, or one that does not fit.
    #[error("\"{text}\" is not a whole number from 1 to 2^60")]
    Number {
        /// The number as written.
        text: String,
    },
    /// A rate of nothing.
    #[error("\"{text}\" lets nothing pass; use 1 or more, or access.deny to refuse everyone")]
    Zero {
        /// The rate as written.
        text: String,
    },
    /// A rate per no time at all.
    #[error("\"{text}\" has a period of 0; write {count}/{unit}, or {count}/10{unit} for ten of those", unit = .unit.name())]
    NoTime {
        /// The rate as written.
        text: String,
        /// How many.
        count: u64,
        /// The unit of the period.
        unit: Unit,
    },
    /// Longer than any clock runs.
    #[error("\"{text}\" is longer than 146 years")]
    TooLong {
        /// The span as written.
        text: String,
    },
    /// Nothing like a span.
    #[error("\"{text}\" is not a span of time; write 200ms, 10s or 1h30min")]
    Span {
        /// The text.
        text: String,
    },
    /// A span that is a number alone.
    #[error("\"{text}\" has no unit; write {text}ms, {text}s or {text}min")]
    NoUnit {
        /// The text.
        text: String,
    },
    /// A number with decimals that are too many or too fine.
    #[error(
        "\"{text}\" has decimals that are not a whole number of nanoseconds, or more than nine; write 1.5s or 1500ms"
    )]
    Decimals {
        /// The number.
        text: String,
    },
}
