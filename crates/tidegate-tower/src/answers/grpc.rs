//! Refusals as gRPC statuses.

use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tidegate::Retry;
use tidegate::http_answer::HttpAnswer;
use tidegate::observer::RefusalCause;
use tidegate::retries::header;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Answers;
use crate::refused::Refused;

/// Refusals as gRPC statuses, for tonic servers: `RESOURCE_EXHAUSTED` if the caller asked too often, `UNAVAILABLE` if
/// the service lacks capacity, `DEADLINE_EXCEEDED` if the time was up. If a wait is known, it adds `RetryInfo` for
/// people, and `grpc-retry-pushback-ms` for clients that retry; gRPC's own clients read only `grpc-retry-pushback-ms`. If
/// no retry can succeed, `grpc-retry-pushback-ms` is -1, which tells clients not to retry.
/// Adds `QuotaFailure` with the limit's name.
///
/// # Source
/// `google.rpc.Code` and `google/rpc/error_details.proto`; gRPC proposal A6.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatuses;

impl<B: Default, Err: 'static> Answers<Response<B>, Err> for GrpcStatuses {
    fn refuse(&self, refused: Refused, limit_answer: Option<&HttpAnswer<'_>>) -> Result<Response<B>, Err> {
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
        RefusalCause::NoTimeLeft | RefusalCause::TimedOut | RefusalCause::CutShort => Code::DeadlineExceeded,
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
