//! Refusals as gRPC statuses.

use http::{Response, StatusCode};
use tidegate::http_answer::HttpAnswer;
use tidegate::observer::RefusalCause;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Answers;
use crate::refused::Refused;

/// Refusals as gRPC statuses, for tonic servers: `RESOURCE_EXHAUSTED` if the caller asked too often, `UNAVAILABLE` if
/// the service lacks capacity, `DEADLINE_EXCEEDED` if the time was up. Adds `RetryInfo` if a wait is known, and
/// `QuotaFailure` with the limit's name.
///
/// # Source
/// `google.rpc.Code` and `google/rpc/error_details.proto`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatuses;

impl<B: Default, Err> Answers<Response<B>, Err> for GrpcStatuses {
    fn refuse(&self, refused: Refused, limit_answer: Option<&HttpAnswer<'_>>) -> Result<Response<B>, Err> {
        let mut response = status(&refused, limit_answer.map(HttpAnswer::status)).into_http();
        response.extensions_mut().insert(refused);
        Ok(response)
    }
}

/// Makes the gRPC status of a refusal. If a policy chose an HTTP status (`http`), the gRPC code is derived from it.
fn status(refused: &Refused, http: Option<StatusCode>) -> Status {
    let code = match refused.cause {
        RefusalCause::RateLimit => Code::ResourceExhausted,
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
    Status::with_error_details(code, refused.cause.to_string(), details)
}
