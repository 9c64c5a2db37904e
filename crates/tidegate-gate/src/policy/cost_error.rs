//! Why a cost cannot be determined, and the longest expression for one.

/// The longest expression, in bytes: it describes a cost and is not a program.
#[cfg(any(feature = "cel", feature = "config"))]
pub const MAX_EXPRESSION: usize = 2000;

/// Why the cost of a request could not be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// The request does not have the attribute.
    #[error("the request has no {name}")]
    Missing {
        /// The attribute.
        name: String,
    },
    /// The text of an attribute, or of a value of the settlement, is not the number that the expression needs.
    #[error("{name} is not a number")]
    NotANumber {
        /// The attribute. Its text is left out, since logs need not contain it.
        name: String,
    },
    /// The settlement does not report these values.
    #[error("{} not sent", list(names))]
    Untold {
        /// Their names.
        names: Vec<String>,
    },
    /// The result is not a number of 0 or more.
    #[error("{found} is not a number that a request can cost")]
    NotACost {
        /// What was found instead.
        found: String,
    },
    /// The evaluation of the expression failed.
    #[error("the expression failed: {reason}")]
    Failed {
        /// The evaluator's message.
        reason: String,
    },
}

impl CostError {
    /// Returns the sentence without values that callers sent, for logs.
    #[must_use]
    pub fn without_values(&self) -> String {
        match self {
            Self::NotACost { .. } => "the result is not a number of 0 or more".to_owned(),
            Self::Failed { .. } => "the expression failed".to_owned(),
            Self::Missing { .. } | Self::NotANumber { .. } | Self::Untold { .. } => self.to_string(),
        }
    }
}

fn list(names: &[String]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", names.join(", "))
}
