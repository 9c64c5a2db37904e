//! Why a layer did not hand a request on, or did not wait for its answer.

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use http::{Response, StatusCode};
use tidegate::Retry;
use tidegate::observer::RefusalCause;

/// Why a request was not served: an error for clients, and what [`Answers`](crate::Answers) makes a response of.
///
/// The responses that [`Problems`](crate::Problems) and `GrpcStatuses` make carry it among their extensions, so that the layers outside know
/// a refusal of ours from an answer of the service: see [`ByStatus`](crate::ByStatus).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{by}: {cause}")]
pub struct Refused {
    /// What stood in its way.
    pub cause: RefusalCause,
    /// The name of the layer that refused it, or of the policy.
    pub by: Arc<str>,
    /// When asking again is worthwhile.
    pub retry: Retry,
}

impl Refused {
    /// Makes a refusal that cannot say when to ask again.
    #[must_use]
    pub fn new(cause: RefusalCause, by: &str) -> Self {
        Self { cause, by: by.into(), retry: Retry::Unknown }
    }

    /// Returns the status that HTTP has for it: 429 where the caller asked too often, 504 where time was up, else 503. 504 is what gRPC's
    /// `DEADLINE_EXCEEDED` is in HTTP, and the layers tell both: nobody tries again what has no time left, or what was cut off and may have
    /// happened, as he would after a 503.
    ///
    /// A policy of a gate chooses its own status, which the response that was made of it has: for a request that comes too late 503 unless said.
    /// Here it is 429, and 504 of what comes too late.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.cause {
            RefusalCause::RateLimit | RefusalCause::Policy => StatusCode::TOO_MANY_REQUESTS,
            RefusalCause::NoTimeLeft | RefusalCause::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Finds the refusal that a response was made of.
    #[must_use]
    pub fn of_response<B>(response: &Response<B>) -> Option<&Self> {
        response.extensions().get()
    }

    /// Finds the refusal that an error is, or that lies boxed in it or behind it.
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
