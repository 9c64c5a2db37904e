//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`: proxies limit by buckets of their own, and no request waits
//! for an answer.
//!
//! A proxy sorts its requests into buckets, and reports each few seconds how many it allowed and denied in each. It is told which part of
//! the limit it has: a token bucket, good for some seconds. A bucket is a request to the policies like a descriptor of
//! [`super::rate_limit`]: its pairs are attributes, and the domain is `rls.domain`. Every limit that it meets is divided over the buckets of all
//! proxies that meet it ([`tidegate_core::division`]), and the tightest part is what the proxy is told. What it allowed is booked in
//! the limit, so other doors see it.
//!
//! | | |
//! |---|---|
//! | [`buckets`] | the buckets of one proxy: from a report to what is told |
//! | [`bucket`] | one bucket: its limits, its part |
//! | [`line`] | a limit that a bucket meets |
//! | [`pools`] | the limits that are divided, for all proxies |
//! | [`reports`] | a report as it came |
//! | [`room`] | room for the pairs of all buckets |
//! | [`told`] | messages to a proxy |
//! | `fuzzing` | a call of one proxy without its connection, for the fuzz target and the measurement |
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two reports | [`SILENCE`] | the call ends; what was assigned holds for its time |
//! | an answer that the proxy does not read | the server's `unread` | the call is reset |
//! | until the server drains | | the call ends, and proxies come back to another one, or later |

mod bucket;
mod buckets;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod line;
pub(super) mod pools;
mod reports;
pub(super) mod room;
mod told;

use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap};
use tidegate::visible::excerpt;
use tokio::time::{Instant, sleep_until, timeout};

use self::buckets::Buckets;
use super::reading::Messages;
use super::service::Service;
use super::status::{self, CONTENT, Code, Status};
use crate::options::Timeouts;

/// The path of the method.
pub(super) const PATH: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// The metadata of a call that says for how many seconds an assignment holds.
const TTL: &str = "x-tidegate-assignment-ttl";
/// How long an assignment holds unless the call says otherwise: four of Envoy's reports, which come each five seconds.
const USUAL_TTL: u64 = 20;
/// The longest time of an assignment: what a proxy that vanishes keeps from others.
const LONGEST_TTL: u64 = 600;
/// The longest time between two reports. A proxy that has buckets reports each few seconds.
const SILENCE: Duration = Duration::from_secs(120);

/// Answers the reports of one proxy until either side ends the call.
pub(super) async fn serve(
    service: &Service,
    headers: &HeaderMap,
    messages: Messages<'_>,
    mut respond: SendResponse<Bytes>,
    deadline: Option<Instant>,
    timeouts: Timeouts,
) {
    let ttl = match ttl(headers) {
        Ok(ttl) => ttl,
        Err(status) => return drop(respond.send_response(status.response(), true)),
    };
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    let Ok(mut answers) = respond.send_response(response, false) else { return };
    let _counted = service.app.engine.metrics.quotas.stream();
    let until = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        biased;
        ended = answer_all(service, messages, &mut answers, ttl, timeouts) => ended,
        () = service.app.drains() => Ok(()),
        () = until => Err(Status::new(Code::DeadlineExceeded, "the caller's deadline has come")),
    };
    let trailers = match ended {
        Ok(()) => status::ok(),
        Err(status) => status.trailers(),
    };
    // An error means that the caller is gone.
    let _ = answers.send_trailers(trailers);
}

/// Answers reports, until the proxy has said all or is silent for too long.
///
/// # Errors
/// As [`Buckets::answer`] and [`Messages::next`]; [`Code::ResourceExhausted`] where the connection holds too much.
async fn answer_all(
    service: &Service,
    mut messages: Messages<'_>,
    answers: &mut SendStream<Bytes>,
    ttl: Duration,
    timeouts: Timeouts,
) -> Result<(), Status> {
    let mut buckets = Buckets::new(ttl);
    loop {
        let Ok(next) = timeout(SILENCE, messages.next()).await else { return Ok(()) };
        let Some(message) = next? else { return Ok(()) };
        let mut holding = messages.holding();
        let answer = buckets.answer(service, message, |bytes| holding.set(bytes)).await?;
        holding.set(answer.len())?;
        match timeout(timeouts.unread, send(answers, answer)).await {
            Ok(Ok(())) => {}
            // The caller is gone, or reads nothing.
            Ok(Err(_)) | Err(_) => return answers_unread(answers),
        }
    }
}

fn answers_unread(answers: &mut SendStream<Bytes>) -> Result<(), Status> {
    answers.send_reset(h2::Reason::CANCEL);
    Ok(())
}

/// Sends an answer piece by piece, as its reader makes room.
async fn send(answers: &mut SendStream<Bytes>, mut answer: Bytes) -> Result<(), h2::Error> {
    while !answer.is_empty() {
        answers.reserve_capacity(answer.len());
        let room = std::future::poll_fn(|cx| answers.poll_capacity(cx)).await;
        let room = room.unwrap_or_else(|| Err(h2::Reason::CANCEL.into()))?.min(answer.len());
        answers.send_data(answer.split_to(room), false)?;
    }
    Ok(())
}

/// Reads for how long an assignment holds.
///
/// # Errors
/// [`Code::InvalidArgument`] names what would work.
fn ttl(headers: &HeaderMap) -> Result<Duration, Status> {
    let Some(value) = headers.get(TTL) else { return Ok(Duration::from_secs(USUAL_TTL)) };
    let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
    seconds.filter(|seconds| (1..=LONGEST_TTL).contains(seconds)).map(Duration::from_secs).ok_or_else(|| {
        let shown = String::from_utf8_lossy(value.as_bytes());
        let message = format!("{TTL}: \"{}\" is none; write seconds, 1 to {LONGEST_TTL}", excerpt(&shown));
        Status::new(Code::InvalidArgument, message)
    })
}
