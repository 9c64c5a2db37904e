//! Refusals as gRPC statuses.

use http::Response;
use tidegate::http_answer::HttpAnswer;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Answers;
use crate::refused::{Cause, Refused};

/// Refusals as gRPC statuses, for tonic servers: `RESOURCE_EXHAUSTED` where the caller asked too often, `UNAVAILABLE` where the service is short,
/// `DEADLINE_EXCEEDED` where time was up. With `RetryInfo` where a wait is known, and `QuotaFailure` with the limit's name.
///
/// # Source
/// `google.rpc.Code` and `google/rpc/error_details.proto`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatuses;

impl<B: Default, Err> Answers<Response<B>, Err> for GrpcStatuses {
    fn refuse(&self, refused: Refused, _: Option<&HttpAnswer<'_>>) -> Result<Response<B>, Err> {
        Ok(status(&refused).into_http())
    }
}

/// Makes the status of a refusal, for servers that return it themselves.
fn status(refused: &Refused) -> Status {
    let code = match refused.cause {
        Cause::RateLimit => Code::ResourceExhausted,
        Cause::Concurrency | Cause::Busy | Cause::Open => Code::Unavailable,
        Cause::NoTimeLeft | Cause::TimedOut => Code::DeadlineExceeded,
    };
    let mut details = ErrorDetails::new();
    if let Some(wait) = refused.retry.after() {
        details.set_retry_info(Some(wait));
    }
    if let (Cause::RateLimit, Some(by)) = (refused.cause, &refused.by) {
        details.add_quota_failure_violation(&**by, refused.cause.to_string());
    }
    Status::with_error_details(code, refused.cause.to_string(), details)
}
