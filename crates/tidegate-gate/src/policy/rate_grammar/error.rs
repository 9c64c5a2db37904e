//! Why a text is not a rate or a span, and what to write instead.

use super::unit::{Unit, UnitError};
use super::written_rate::WrittenRate;

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
