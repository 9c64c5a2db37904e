//! Why a cost cannot be determined, and the longest expression for one.

/// The longest expression, in bytes: it describes a cost and is not a program.
#[cfg(any(feature = "cel", feature = "config"))]
pub(crate) const MAX_EXPRESSION: usize = 2000;

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
    /// The settlement does not report these values.
    #[error("{} not sent", list(names))]
    Untold {
        /// Their names.
        names: Vec<String>,
    },
    /// The result is not a whole number of 1 or more; in a settlement, of 0 or more.
    #[error("{found} is not a whole number that a request can cost")]
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

fn list(names: &[String]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", names.join(", "))
}
