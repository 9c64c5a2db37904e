//! Results of work that runs through a breaker.

use std::fmt;

use tidegate_core::Outcome;

use crate::answer::Denied;

/// Why a call through a breaker has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError<E> {
    /// The breaker refused it: the call was not made.
    Refused(Denied),
    /// The call was made and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(denied) => match denied.retry().after() {
                Some(wait) => {
                    write!(f, "the breaker is open; retry after {} ms", wait.as_nanos().div_ceil(1_000_000))
                }
                None => f.write_str("the breaker lets no more calls through while it tries the service"),
            },
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

pub(super) fn flat<T, E>(ran: Result<Result<T, E>, Denied>) -> Result<T, CallError<E>> {
    match ran {
        Ok(result) => result.map_err(CallError::Failed),
        Err(denied) => Err(CallError::Refused(denied)),
    }
}
