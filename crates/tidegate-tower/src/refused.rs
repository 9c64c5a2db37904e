//! The reason why a layer did not pass a request on, or did not wait for its answer.

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use http::{Response, StatusCode};
use tidegate::Retry;
use tidegate::observer::RefusalCause;

/// Why a request was not served: an error for clients, from which [`Answers`](crate::Answers) can make a response.
///
/// Responses of [`Problems`](crate::Problems) and `GrpcStatuses` carry it among their extensions, so that outer layers
/// can tell a refusal by a layer from an answer of the service: see [`ByStatus`](crate::ByStatus).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{by}: {cause}")]
pub struct Refused {
    /// The kind of refusal.
    pub cause: RefusalCause,
    /// The name of the layer or of the policy that refused the request.
    pub by: Arc<str>,
    /// When a retry is worthwhile.
    pub retry: Retry,
}

impl Refused {
    /// Makes a refusal that does not know when a retry is worthwhile.
    #[must_use]
    pub fn new(cause: RefusalCause, by: &str) -> Self {
        Self { cause, by: by.into(), retry: Retry::Unknown }
    }

    /// Returns the HTTP status: 429 if the caller asked too often, 504 if the time was up, else 503. HTTP's 504
    /// corresponds to gRPC's `DEADLINE_EXCEEDED`, which the gRPC answers use. It is not 503, because clients retry a
    /// 503, and a request without time left, or one that was cut off and may have taken effect, should not be retried.
    ///
    /// A policy of a gate chooses its own status, which its response has; for a request that comes too late that is 503
    /// unless chosen. This function returns 429 for a policy, and 504 for a request that comes too late.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.cause {
            RefusalCause::RateLimit | RefusalCause::Policy => StatusCode::TOO_MANY_REQUESTS,
            RefusalCause::NoTimeLeft | RefusalCause::TimedOut | RefusalCause::CutShort => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the refusal that a response was made from, if any.
    #[must_use]
    pub fn of_response<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the refusal if the error is one, or has one boxed in it or in its chain of sources.
    #[must_use]
    pub fn of_error<E: 'static>(error: &E) -> Option<&Self> {
        let error: &dyn Any = error;
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        let mut next: Option<&(dyn Error + 'static)> =
            match error.downcast_ref::<Box<dyn Error + Send + Sync>>() {
                Some(boxed) => Some(&**boxed),
                None => error.downcast_ref::<Box<dyn Error>>().map(|boxed| &**boxed),
            };
        while let Some(error) = next {
            if let Some(refused) = error.downcast_ref() {
                return Some(refused);
            }
            next = error.source();
        }
        None
    }
}
