//! Judges how work ended from the result that a service returned.

use std::time::Duration;

use http::header::{CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use http::{HeaderValue, Response};
use tidegate::Outcome;
use tidegate::observer::RefusalCause;
use tidegate::retries::Verdict;
use tidegate::retries::header::{ENVOY_OVERLOADED, GRPC_PUSHBACK};
use tidegate_core::retry::Pushback;
#[cfg(feature = "grpc")]
use tonic::{Code, Status};

use crate::refused::Refused;

/// The header (or trailer) in which gRPC says how a call ended.
pub(crate) const GRPC_STATUS: &str = "grpc-status";

/// Says whether a request is a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Judges how work ended, and reads what the service said about trying again. Implemented for every `Fn(&Result<Res,
/// Err>) -> Verdict`.
pub trait Classify<Res, Err> {
    /// Returns the outcome of a call by its result, and when the service asks to retry, if it says so.
    fn classify(&self, result: &Result<Res, Err>) -> Verdict;
}

impl<Res, Err, F: Fn(&Result<Res, Err>) -> Verdict> Classify<Res, Err> for F {
    fn classify(&self, result: &Result<Res, Err>) -> Verdict {
        self(result)
    }
}

/// Judges by the gRPC status if it comes with the headers, else by the HTTP status; an error is a failure. A status in the
/// trailers counts for layers that go on [until the body ends](crate::body::AtBodyEnd).
///
/// HTTP: below 400 is a success, 429 and 503 are overload, other 4xx are the caller's fault, other 5xx a failure. gRPC:
/// `OK` is a success, `UNAVAILABLE` and `RESOURCE_EXHAUSTED` are overload, `CANCELLED` is ignored, codes that blame the
/// request (such as `INVALID_ARGUMENT`) are the caller's fault, all others are a failure.
///
/// A [`Refused`] of an inner layer is [`Outcome::Ignored`]: it opens no breaker, lowers no limit and is not tried
/// again. Either the service was not called, or a caller's short time ended the call. The exception is
/// [`RefusalCause::TimedOut`], which is a failure: the service had the time that calls have.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByStatus;

impl<B, Err: 'static> Classify<Response<B>, Err> for ByStatus {
    fn classify(&self, result: &Result<Response<B>, Err>) -> Verdict {
        let response = match result {
            Ok(response) => response,
            Err(error) => return Refused::of_error(error).map_or(Outcome::Failure, of_refusal).into(),
        };
        let headers = response.headers();
        let outcome = match headers.get(GRPC_STATUS) {
            Some(status) => of_grpc(status),
            None => Outcome::from_status(response.status().as_u16()),
        };
        if outcome == Outcome::Success {
            return outcome.into();
        }
        match Refused::of_response(response) {
            Some(refused) => of_refusal(refused).into(),
            None => Verdict { outcome, pushback: retry_after(headers) },
        }
    }
}

fn of_refusal(refused: &Refused) -> Outcome {
    match refused.cause {
        RefusalCause::TimedOut => Outcome::Failure,
        _ => Outcome::Ignored,
    }
}

/// An extension of an answer: its call had little time, so that a `DEADLINE_EXCEEDED` in the trailers says nothing of the
/// service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LittleTime;

/// Judges by the trailers of an answer whose head was a success.
pub(crate) fn of_trailers(trailers: &HeaderMap, had_little_time: bool) -> Outcome {
    match trailers.get(GRPC_STATUS) {
        Some(status) if had_little_time && status == "4" => Outcome::Ignored,
        status => status.map_or(Outcome::Success, of_grpc),
    }
}

/// Judges an answer whose body failed: a refusal of an inner layer as [`ByStatus`] does, any other error as a failure.
pub(crate) fn of_body_error<E: 'static>(error: &E) -> Outcome {
    Refused::of_error(error).map_or(Outcome::Failure, of_refusal)
}

/// Reads a gRPC status; a value that is not a number is a failure.
fn of_grpc(status: &HeaderValue) -> Outcome {
    number(status).map_or(Outcome::Failure, of_code)
}

/// Judges by a gRPC status code; an unknown code is a failure.
fn of_code(code: u64) -> Outcome {
    match code {
        0 => Outcome::Success,
        // CANCELLED.
        1 => Outcome::Ignored,
        // RESOURCE_EXHAUSTED, UNAVAILABLE.
        8 | 14 => Outcome::Overloaded,
        // INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAUTHENTICATED.
        3 | 5 | 6 | 7 | 9 | 11 | 12 | 16 => Outcome::CallersFault,
        // UNKNOWN, DEADLINE_EXCEEDED, ABORTED, INTERNAL, DATA_LOSS.
        _ => Outcome::Failure,
    }
}

/// Reads what a service says about trying again. The first of these headers decides: `x-envoy-overloaded` (any value: do
/// not retry), `grpc-retry-pushback-ms`, `Retry-After` in seconds or as a date, which is compared with the answer's own
/// `Date`. A value that cannot be read means: do not retry. `None` if none of them is present.
///
/// # Source
/// gRPC proposal A6; RFC 9110, section 10.2.3; the HTTP headers of Envoy's router.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Pushback> {
    if headers.contains_key(ENVOY_OVERLOADED) {
        return Some(Pushback::Never);
    }
    if let Some(pushback) = headers.get(GRPC_PUSHBACK) {
        let millis = number(pushback);
        return Some(millis.map_or(Pushback::Never, |millis| Pushback::After(Duration::from_millis(millis))));
    }
    let after = headers.get(RETRY_AFTER)?;
    let wait = number(after).map(Duration::from_secs).or_else(|| until(after, headers.get(DATE)?));
    Some(wait.map_or(Pushback::Never, Pushback::After))
}

/// Judges the result of a call of a tonic client, for a [`Retrier`](tidegate::retries::Retrier) or a breaker around it: by
/// the status code as [`ByStatus`] does, and by the wait in the status's metadata ([`retry_after`]).
///
/// A status that tonic makes itself because the call could not be sent is `UNAVAILABLE`, which is overload, or `UNKNOWN`, which
/// is a failure.
///
/// # Examples
/// ```
/// use tidegate::Outcome;
/// use tidegate_tower::classify::judge_status;
/// use tonic::Status;
///
/// assert_eq!(judge_status(&Ok(())).outcome, Outcome::Success);
/// assert_eq!(judge_status(&Err::<(), _>(Status::not_found("no such order"))).outcome, Outcome::CallersFault);
/// assert_eq!(judge_status(&Err::<(), _>(Status::unavailable("later"))).outcome, Outcome::Overloaded);
/// ```
#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
#[must_use]
pub fn judge_status<T>(result: &Result<T, Status>) -> Verdict {
    let Err(status) = result else { return Outcome::Success.into() };
    let code = match status.code() {
        // A failed call that says OK is not one that went well.
        Code::Ok => Code::Unknown,
        code => code,
    };
    // Codes are 0 to 16.
    let outcome = of_code(code as u64);
    Verdict { outcome, pushback: retry_after(status.metadata().as_ref()) }
}

fn number(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    // `parse` would accept a sign.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the time from `date` to `after`; zero if `after` is the earlier one.
fn until(after: &HeaderValue, date: &HeaderValue) -> Option<Duration> {
    let [after, date] = [after, date].map(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
    Some(after?.duration_since(date?).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tidegate::bulkhead::NoPlace;

    use super::*;
    use crate::answers::{Answers, Problems};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn what_a_service_says_about_trying_again_is_read() {
        let after = |secs| Some(Pushback::After(Duration::from_secs(secs)));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (pairs, expected) in [
            (&[("retry-after", "17")][..], after(17)),
            (&[("retry-after", "17"), ("grpc-retry-pushback-ms", "2000")], after(2)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT"), date], after(3)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), date], after(0)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")], Some(Pushback::Never)),
            (&[("retry-after", "soon"), date], Some(Pushback::Never)),
            (&[("retry-after", "+5")], Some(Pushback::Never)),
            (&[("x-envoy-overloaded", "true"), ("retry-after", "17")], Some(Pushback::Never)),
            (&[("x-envoy-overloaded", "")], Some(Pushback::Never)),
            (&[("grpc-retry-pushback-ms", "-1")], Some(Pushback::Never)),
            (&[("grpc-retry-pushback-ms", "99999999999999999999")], Some(Pushback::Never)),
            (&[], None),
        ] {
            assert_eq!(retry_after(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn grpc_answers_with_200_and_says_in_a_header_how_it_went() {
        for (status, expected) in [
            ("0", Outcome::Success),
            ("1", Outcome::Ignored),
            ("3", Outcome::CallersFault),
            ("4", Outcome::Failure),
            ("8", Outcome::Overloaded),
            ("13", Outcome::Failure),
            ("14", Outcome::Overloaded),
            ("ok", Outcome::Failure),
        ] {
            let mut response = Response::new(());
            response.headers_mut().insert(GRPC_STATUS, HeaderValue::from_static(status));
            assert_eq!(ByStatus.classify(&Ok::<_, ()>(response)).outcome, expected, "{status}");
        }
        let unavailable = Response::builder().status(503).header("retry-after", "1").body(()).unwrap();
        let verdict = ByStatus.classify(&Ok::<_, ()>(unavailable));
        assert_eq!(verdict.outcome, Outcome::Overloaded);
        assert_eq!(ByStatus.classify(&Err::<Response<()>, _>(())).outcome, Outcome::Failure);
    }

    #[test]
    fn what_a_layer_refused_says_nothing_of_the_service() {
        type Boxed = Box<dyn std::error::Error + Send + Sync>;
        #[derive(Debug, thiserror::Error)]
        #[error("the call failed")]
        struct Wrapped(#[source] Refused);
        for (cause, expected) in [
            (RefusalCause::Concurrency(NoPlace::QueueFull), Outcome::Ignored),
            (RefusalCause::RateLimit, Outcome::Ignored),
            (RefusalCause::NoTimeLeft, Outcome::Ignored),
            (RefusalCause::CutShort, Outcome::Ignored),
            (RefusalCause::TimedOut, Outcome::Failure),
        ] {
            let refused = Refused::new(cause, "here");
            let boxed: Result<Response<()>, Boxed> = Err(Box::new(refused.clone()));
            let deeper: Result<Response<()>, Boxed> = Err(Box::new(Wrapped(refused.clone())));
            let plain: Result<Response<()>, Refused> = Err(refused.clone());
            let refusal: Result<Response<String>, Boxed> = Problems.refuse(refused.clone(), None);
            assert_eq!(refusal.as_ref().unwrap().status(), refused.status());
            let found = [
                ByStatus.classify(&boxed),
                ByStatus.classify(&deeper),
                ByStatus.classify(&plain),
                ByStatus.classify(&refusal),
            ];
            assert_eq!(found.map(|verdict| verdict.outcome), [expected; 4], "{cause}");
        }
    }
}
