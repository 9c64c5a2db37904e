//! Why a cost cannot be found, and how long an expression of one may be.

/// The longest expression, in bytes: a cost, not a program.
#[cfg(any(feature = "cel", feature = "config"))]
pub(crate) const MAX_EXPRESSION: usize = 2000;

/// Why a cost could not be found for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// The request does not have the attribute.
    #[error("the request has no {name}")]
    Missing {
        /// The attribute.
        name: String,
    },
    /// The settlement does not tell these values.
    #[error("{} not told", list(names))]
    Untold {
        /// Their names.
        names: Vec<String>,
    },
    /// Not a whole number of 1 or more; in a settlement, of 0 or more.
    #[error("{found} is not a whole number that a request can cost")]
    NotACost {
        /// What was found instead.
        found: String,
    },
    /// The expression failed.
    #[error("the expression failed: {reason}")]
    Failed {
        /// What the evaluator says.
        reason: String,
    },
}

fn list(names: &[String]) -> String {
    let verb = if names.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", names.join(", "))
}
