//! Results of work that runs through a breaker.

use std::fmt;

use tidegate_core::{Outcome, Retry};

use super::shared::{Refused, refused};
use crate::answer::Denied;
use crate::duration_text::in_words;
use crate::refusal_reason::RefusalReason;

/// A refusal by a breaker: the call was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The refusal in the form that all limits share.
    pub denied: Denied,
    /// Why the breaker refused.
    pub reason: RefusalReason,
}

impl Refusal {
    pub(super) fn of(Refused { retry, reason }: Refused) -> Self {
        Self { denied: refused(retry), reason }
    }

    /// Returns when repeating the call is worthwhile.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.denied.retry()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            RefusalReason::Open => f.write_str("the breaker is open")?,
            RefusalReason::HalfOpen => {
                f.write_str(
                    "the breaker lets no more calls through while it tries the service, until one of them ends or has \
                     lasted for its `ttl`",
                )?;
            }
            RefusalReason::Shedding => {
                f.write_str("the breaker refuses a share of the calls, because the service fails")?;
            }
            RefusalReason::Forced(forced) if forced.reason().is_empty() => {
                f.write_str("the breaker was forced open")?;
            }
            RefusalReason::Forced(forced) => write!(f, "the breaker was forced open: {}", forced.reason())?,
        }
        match self.retry().after() {
            Some(wait) => write!(f, "; retry after {}", in_words(wait)),
            None => Ok(()),
        }
    }
}

/// Why a call through a breaker has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// The breaker refused it: the call was not made.
    Refused(Refusal),
    /// The call was made and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}

pub(super) const fn by_result<T, E>(result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(_) => Outcome::Failure,
    }
}
