//! Why a layer did not hand a request on, or did not wait for its answer.

use std::sync::Arc;

use http::StatusCode;
use tidegate::Retry;

/// Why a request was not served: an error for clients, and what [`Answers`](crate::Answers) makes a response of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Refused {
    /// What stood in its way.
    pub cause: Cause,
    /// The name that the layer was given, if it was.
    pub by: Option<Arc<str>>,
    /// When asking again is worthwhile.
    pub retry: Retry,
}

/// What stood in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Its caller asked too often.
    #[error("over the rate limit")]
    RateLimit,
    /// As many as there may be are being served already.
    #[error("too many requests at once")]
    Concurrency,
    /// The service was not ready for it.
    #[error("the service is busy")]
    Busy,
    /// The service is left alone, because it failed too often.
    #[error("the circuit is open")]
    Open,
    /// Its time was up before it was begun, or would have been before it could end.
    #[error("no time is left for the request")]
    NoTimeLeft,
    /// Its time was up before the answer came.
    #[error("no answer came in time")]
    TimedOut,
}

impl Refused {
    /// Makes a refusal that cannot say when to ask again, by a layer without a name.
    #[must_use]
    pub const fn new(cause: Cause) -> Self {
        Self { cause, by: None, retry: Retry::Unknown }
    }

    /// Returns the status that HTTP has for it: 429 where the caller asked too often, 504 where time was up, else 503.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.cause {
            Cause::RateLimit => StatusCode::TOO_MANY_REQUESTS,
            Cause::Concurrency | Cause::Busy | Cause::Open => StatusCode::SERVICE_UNAVAILABLE,
            Cause::NoTimeLeft | Cause::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}
