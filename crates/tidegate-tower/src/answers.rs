//! How layers tell callers of refusals: as responses or as errors.

#[cfg(feature = "grpc")]
mod grpc {
    //! Refusals as gRPC statuses.

    use std::time::Duration;

    use http::header::{HeaderName, HeaderValue};
    use http::{Response, StatusCode};
    use tidegate::http_answer::HttpAnswer;
    use tidegate::limiter::Retry;
    use tidegate::observer::RefusalCause;
    use tidegate::retries::header;
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    use super::Answers;
    use crate::refused::Refused;

    /// Refusals as gRPC statuses, for tonic servers: `RESOURCE_EXHAUSTED` if the caller asked too often, `UNAVAILABLE` if
    /// the service lacks capacity, `DEADLINE_EXCEEDED` if the time was up. If a wait is known, it adds `RetryInfo` for
    /// people, and `grpc-retry-pushback-ms`, the only one that gRPC's own clients read; if no retry can succeed, that is -1,
    /// which tells clients not to retry. Adds `QuotaFailure` with the limit's name.
    ///
    /// # Source
    /// `google.rpc.Code` and `google/rpc/error_details.proto`; gRPC proposal A6.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct GrpcStatuses;

    impl<B: Default, Err: 'static> Answers<Response<B>, Err> for GrpcStatuses {
        fn refuse(
            &self,
            refused: Refused,
            limit_answer: Option<&HttpAnswer<'_>>,
        ) -> Result<Response<B>, Err> {
            let mut response = status(&refused, limit_answer.map(HttpAnswer::status)).into_http();
            let pushback = match refused.retry {
                Retry::After(wait) => Some(HeaderValue::from(pushback_millis(wait))),
                Retry::Never => Some(HeaderValue::from_static(header::NOT_AGAIN)),
                Retry::Unknown => None,
            };
            if let Some(pushback) = pushback {
                response.headers_mut().insert(HeaderName::from_static(header::GRPC_PUSHBACK), pushback);
            }
            response.extensions_mut().insert(refused);
            Ok(response)
        }

        fn refusal_in<'r>(&self, result: &'r Result<Response<B>, Err>) -> Option<&'r Refused> {
            super::refusal_in(result)
        }
    }

    /// Returns a wait in milliseconds, rounded up so that no caller comes back too early. At most 24 days: clients read a 32-bit number.
    fn pushback_millis(wait: Duration) -> i32 {
        i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    }

    /// Makes the gRPC status of a refusal. If a policy chose an HTTP status (`http`), the gRPC code is derived from it.
    fn status(refused: &Refused, http: Option<StatusCode>) -> Status {
        let code = match refused.cause {
            RefusalCause::RateLimit => Code::ResourceExhausted,
            RefusalCause::NoKey => Code::InvalidArgument,
            RefusalCause::Policy => match http {
                Some(StatusCode::UNAUTHORIZED) => Code::Unauthenticated,
                Some(StatusCode::FORBIDDEN) => Code::PermissionDenied,
                Some(StatusCode::GATEWAY_TIMEOUT) => Code::DeadlineExceeded,
                Some(status) if status.is_server_error() => Code::Unavailable,
                _ => Code::ResourceExhausted,
            },
            RefusalCause::NoTimeLeft | RefusalCause::TimedOut | RefusalCause::CutShort => {
                Code::DeadlineExceeded
            }
            _ => Code::Unavailable,
        };
        let mut details = ErrorDetails::new();
        if let Some(wait) = refused.retry.after() {
            details.set_retry_info(Some(wait));
        }
        if code == Code::ResourceExhausted {
            details.add_quota_failure_violation(&*refused.by, refused.cause.to_string());
        }
        Status::with_error_details(code, format!("{}: {}", refused.by, refused.why()), details)
    }
}

use std::error::Error;

use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tidegate::http_answer::{HttpAnswer, PROBLEM_JSON};

#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub use self::grpc::GrpcStatuses;
use crate::refused::Refused;

/// Makes the answers of a layer: to refused callers, and the headers of a limit for callers that pass.
pub trait Answers<Res, Err> {
    /// Makes the result of a refused call. `limit_answer` is that of the limit that refused, if one did.
    ///
    /// # Errors
    /// The refusal, for implementations that report refusals as errors.
    fn refuse(&self, refused: Refused, limit_answer: Option<&HttpAnswer<'_>>) -> Result<Res, Err>;

    /// Adds the state of the limit to the response of a caller that passed. Does nothing unless overridden.
    fn add_limit_state(&self, response: &mut Res, limit_answer: &HttpAnswer<'_>) {
        let _ = (response, limit_answer);
    }

    /// Finds the refusal of a layer inside in the result of a call, for limits that give back the charge of a call refused
    /// [before any work had begun](Refused::is_before_work). Finds none unless overridden.
    fn refusal_in<'r>(&self, result: &'r Result<Res, Err>) -> Option<&'r Refused> {
        let _ = result;
        None
    }
}

/// Finds a refusal in a response or in an error.
fn refusal_in<B, Err: 'static>(result: &Result<Response<B>, Err>) -> Option<&Refused> {
    match result {
        Ok(response) => Refused::of_response(response),
        Err(error) => Refused::of_error(error),
    }
}

/// Refusals as HTTP responses: 400, 429, 503 or 504 with a problem as the body, `Retry-After` and rate-limit headers.
/// Callers that pass get the rate-limit headers too, beside those of limits further inside and of the service
/// ([`HttpAnswer::add_headers`]). The response carries the [`Refused`] among its extensions.
///
/// # Source
/// RFC 9457 (problems), RFC 6585 (429), draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Clone, Copy, Debug, Default)]
pub struct Problems;

impl<B: From<String>, Err: 'static> Answers<Response<B>, Err> for Problems {
    fn refuse(&self, refused: Refused, limit_answer: Option<&HttpAnswer<'_>>) -> Result<Response<B>, Err> {
        let mut response = limit_answer.and_then(HttpAnswer::refusal).unwrap_or_else(|| problem(&refused));
        response.extensions_mut().insert(refused);
        Ok(response)
    }

    fn add_limit_state(&self, response: &mut Response<B>, limit_answer: &HttpAnswer<'_>) {
        limit_answer.add_headers(response.headers_mut());
    }

    fn refusal_in<'r>(&self, result: &'r Result<Response<B>, Err>) -> Option<&'r Refused> {
        refusal_in(result)
    }
}

/// Refusals as errors, for clients whose errors are boxed or are [`Refused`]. For an error type of your own use
/// [`OwnErrors`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors;

impl<Res, Err: BoxedRefused + 'static> Answers<Res, Err> for Errors {
    fn refuse(&self, refused: Refused, _: Option<&HttpAnswer<'_>>) -> Result<Res, Err> {
        Err(refused.into())
    }

    fn refusal_in<'r>(&self, result: &'r Result<Res, Err>) -> Option<&'r Refused> {
        result.as_ref().err().and_then(Refused::of_error)
    }
}

/// Refusals as errors of the program's own type, for clients. The type implements `From<Refused>`, and returns the
/// refusal as its [source](Error::source), itself or further down, where outer layers find it.
///
/// # Examples
/// ```
/// use tidegate::breaker::CircuitBreaker;
/// use tidegate::{Breaker, Bulkhead};
/// use tidegate_tower::parameter::OwnErrors;
/// use tidegate_tower::{BreakerLayer, ClientStack, ConcurrencyLayer, Refused};
///
/// #[derive(Debug, thiserror::Error)]
/// enum StockError {
///     #[error("the stock was not asked")]
///     NotAsked(#[from] Refused),
///     #[error("the stock is gone")]
///     Gone,
/// }
///
/// let stack = ClientStack::new()
///     .breaker(BreakerLayer::new("stock", Breaker::new(CircuitBreaker::builder())?).answering(OwnErrors))
///     .concurrency(ConcurrencyLayer::new("stock", Bulkhead::new(16)?).answering(OwnErrors));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnErrors;

impl<Res, Err: From<Refused> + Error + 'static> Answers<Res, Err> for OwnErrors {
    fn refuse(&self, refused: Refused, _: Option<&HttpAnswer<'_>>) -> Result<Res, Err> {
        Refused::look_into::<Err>();
        Err(refused.into())
    }

    fn refusal_in<'r>(&self, result: &'r Result<Res, Err>) -> Option<&'r Refused> {
        result.as_ref().err().and_then(Refused::of_error)
    }
}

/// Error types in which outer layers find a refusal without being told of the type.
#[diagnostic::on_unimplemented(
    message = "outer layers would take a refusal in `{Self}` for a failure of the service",
    note = "on a server, leave `Problems`, the default; on a client with an error type of your own, use `OwnErrors`"
)]
pub trait BoxedRefused: From<Refused> {}

impl BoxedRefused for Refused {}
// For any lifetime, although errors are `'static`: in a spawned task the compiler proves these bounds without lifetimes.
impl BoxedRefused for Box<dyn Error + Send + Sync + '_> {}
impl BoxedRefused for Box<dyn Error + '_> {}

/// Makes the response to a refusal that has no limit's answer: the body is made from the refusal alone.
fn problem<B: From<String>>(refused: &Refused) -> Response<B> {
    let status = refused.status();
    // The title belongs to the type, not to the status (RFC 9457, section 3.1.3).
    let (type_, title) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Temporary reduced capacity",
        ),
        _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    // The debug form of the name has no control characters, so JSON has to escape two characters only. The other texts
    // that are inserted have none of these.
    let detail =
        format!("layer {:?}: {}", refused.by, refused.why()).replace('\\', r"\\").replace('"', r#"\""#);
    let millis = refused.retry_after_ms().map(|wait| wait.to_string());
    let body = format!(
        r#"{{"type":"{type_}","title":"{title}","status":{},"detail":"{detail}","retry":"{}","retry_after_ms":{}}}"#,
        status.as_u16(),
        refused.retry.as_str(),
        millis.as_deref().unwrap_or("null"),
    );
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM_JSON);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = refused.retry.after() {
        // Rounded up, so that no caller comes back too early.
        let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        // Scripts of a browser may not read it otherwise, as for the refusals of limits.
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After"));
    }
    response
}
