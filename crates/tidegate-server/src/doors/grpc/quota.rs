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
//! | [`buckets`] | the buckets of one proxy: from a report to its answer |
//! | [`bucket`] | one bucket: its limits, its part |
//! | [`line`] | a limit that a bucket meets |
//! | [`limit`] | a limit in the form in which it is divided |
//! | [`pools`] | the limits that are divided, for all proxies |
//! | [`reports`] | a report as it came |
//! | [`budget`] | the memory of the pairs of all buckets |
//! | [`assignment`] | what a proxy is told about a bucket |
//! | `fuzzing` | a call of one proxy without its connection, for the fuzz target and the measurement |
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two reports | [`SILENCE`] | the call ends; what was assigned holds for its time |
//! | an answer that the proxy does not read | the server's `unread` | the call is reset |
//! | booking what a report allowed | a report's interval | it is booked after the next report |
//! | until the server drains, or needs the connection's place while the proxy is silent | | the call ends, and proxies come back to another one, or later |

mod assignment;
mod bucket;
mod buckets;
pub(super) mod budget;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod limit;
mod line;
pub(super) mod pools;
mod reports;

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::HeaderMap;
use tidegate::visible::excerpt;
use tokio::time::{Instant, timeout};

use self::buckets::Buckets;
use super::answers::{Answers, over};
use super::counts::Open;
use super::reading::{Holding, Messages};
use super::service::Service;
use super::status::{Code, Status};

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

/// What a call goes by, beside its messages.
pub(super) struct Terms<'c> {
    pub(super) deadline: Option<Instant>,
    /// How long an answer may wait for its reader.
    pub(super) unread: Duration,
    /// Counts the call, which is silent where it waits for the proxy.
    pub(super) open: Open<'c>,
}

/// Answers the reports of one proxy until either side ends the call; `may_go_on` is asked with each of them.
pub(super) async fn serve(
    service: &Service,
    headers: &HeaderMap,
    mut messages: Messages<'_>,
    mut respond: SendResponse<Bytes>,
    terms: Terms<'_>,
    may_go_on: impl Fn() -> Result<(), Status>,
) {
    let ttl = match ttl(headers) {
        Ok(ttl) => ttl,
        Err(status) => return drop(respond.send_response(status.response(), true)),
    };
    let Some(mut answers) = Answers::begin(respond, terms.unread) else { return };
    let _counted = service.app.engine.metrics.quotas.stream();
    let mut buckets = Buckets::new(ttl);
    let mut over = pin!(over(&service.app, terms.deadline));
    let ended = loop {
        let next = {
            let _silent = terms.open.silent();
            tokio::select! {
                biased;
                ended = &mut over => break ended,
                () = terms.open.over() => break Ok(()),
                next = timeout(SILENCE, messages.next()) => next,
            }
        };
        let message = match next {
            Err(_) | Ok(Ok(None)) => break Ok(()),
            Ok(Err(status)) => break Err(status),
            Ok(Ok(Some(message))) => message,
        };
        if let Err(status) = may_go_on() {
            break Err(status);
        }
        let holding = messages.holding();
        let (answered, goes_on) = tokio::select! {
            biased;
            answered = answer(service, &mut buckets, message, holding, &mut answers) => {
                let goes_on = answered.is_ok();
                (answered, goes_on)
            }
            ended = &mut over => (ended, false),
        };
        {
            // The proxy has its answer; it does not wait for this.
            let _silent = terms.open.silent();
            buckets.book(service).await;
        }
        if !goes_on {
            break answered;
        }
    };
    answers.end(ended);
}

/// Answers a report.
///
/// # Errors
/// As [`Buckets::answer`]; [`Code::ResourceExhausted`] where the connection holds too much; [`Code::Unavailable`] where the proxy does not read
/// its answer, and the call is reset.
async fn answer(
    service: &Service,
    buckets: &mut Buckets,
    message: Bytes,
    mut holding: Holding<'_>,
    answers: &mut Answers,
) -> Result<(), Status> {
    let answer = buckets.answer(service, message, |bytes| holding.set(bytes)).await?;
    holding.set(answer.len())?;
    answers.send(answer).await.map_err(|_| Status::new(Code::Unavailable, "the answer is not read"))
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
