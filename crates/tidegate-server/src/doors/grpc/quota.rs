//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`: proxies limit requests themselves,
//! by buckets, so no request waits for an answer.
//!
//! A proxy sorts its requests into buckets, and reports every few seconds how many it allowed and denied in each. The
//! answer assigns it a part of the limit: a token bucket that is valid for some seconds. A bucket becomes a request to
//! the policies like a descriptor of [`super::rate_limit`]: its pairs are attributes, and the domain is `rls.domain`.
//! Every limit that the bucket meets is divided over the buckets of all proxies that meet the limit
//! ([`tidegate_core::division`]), and the proxy is told the smallest part. The requests that it allowed are booked in
//! the limit, so other doors see them.
//!
//! | | |
//! |---|---|
//! | [`buckets`] | the buckets of one proxy: answers its reports |
//! | [`bucket`] | one bucket: the limits that it meets, and its part of them |
//! | [`pools`] | the limits that are divided, for all proxies, and the memory budget for the pairs of all buckets |
//! | [`reports`] | decodes a report |
//! | [`assignment`] | the answer to a proxy about a bucket |
//! | `fuzzing` | a call of one proxy without its connection, for the fuzz target and benchmarks |
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two reports | [`SILENCE`] | the call ends; assignments hold for their time |
//! | an answer that the proxy does not read | the server's `unread` | the call is reset |
//! | booking the requests that a report allowed | a report's interval | they are booked after the next report |
//! | until the server drains, or needs the place while the proxy is silent | | the call ends; the proxy calls again, here or elsewhere |

mod assignment;
mod bucket;
mod buckets;
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
use super::Service;
use super::counts::Open;
use super::reading::{Answers, Holding, Messages, over};
use super::status::{Code, Status};

/// The path of the method.
pub(super) const PATH: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The call metadata that says for how many seconds an assignment is valid.
const TTL: &str = "x-tidegate-assignment-ttl";

/// How long an assignment is valid unless the call says otherwise: four of Envoy's report intervals of five seconds.
const USUAL_TTL: u64 = 20;

/// The longest validity of an assignment. For that long, a proxy that vanishes keeps its part from others.
const LONGEST_TTL: u64 = 600;

/// The longest time between two reports. A proxy that has buckets reports every few seconds.
const SILENCE: Duration = Duration::from_secs(120);

/// The settings of one call.
pub(super) struct Terms<'c> {
    pub(super) deadline: Option<Instant>,
    /// How long an answer may wait until the proxy reads it.
    pub(super) unread: Duration,
    /// Counts the call; it counts as silent while it waits for the proxy.
    pub(super) open: Open<'c>,
}

/// Answers the reports of one proxy until either side ends the call. Calls `may_go_on` for each report.
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
            // The proxy has its answer and does not wait for the booking.
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
/// As [`Buckets::answer`]; [`Code::ResourceExhausted`] if the connection holds too many bytes; [`Code::Unavailable`] if
/// the proxy does not read its answer, and the call is then reset.
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

/// Reads how long an assignment is valid.
///
/// # Errors
/// [`Code::InvalidArgument`]; the message names valid values.
fn ttl(headers: &HeaderMap) -> Result<Duration, Status> {
    let Some(value) = headers.get(TTL) else { return Ok(Duration::from_secs(USUAL_TTL)) };
    let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
    seconds.filter(|seconds| (1..=LONGEST_TTL).contains(seconds)).map(Duration::from_secs).ok_or_else(|| {
        let shown = String::from_utf8_lossy(value.as_bytes());
        let message = format!("{TTL}: \"{}\" is none; write seconds, 1 to {LONGEST_TTL}", excerpt(&shown));
        Status::new(Code::InvalidArgument, message)
    })
}

#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing {
    //! A call of one proxy without its connection: reports in, answers out.

    use std::fmt;
    use std::time::Duration;

    use bytes::Bytes;

    use super::super::rate_limit::fuzzing::RateLimitDoor;
    use super::USUAL_TTL;
    use super::buckets::Buckets;

    /// The call of one proxy.
    pub struct QuotaCall<'d> {
        door: &'d RateLimitDoor,
        buckets: Buckets,
    }

    impl fmt::Debug for QuotaCall<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("QuotaCall").finish_non_exhaustive()
        }
    }

    impl<'d> QuotaCall<'d> {
        /// Begins a call.
        #[must_use]
        pub fn begin(door: &'d RateLimitDoor) -> Self {
            Self { door, buckets: Buckets::new(Duration::from_secs(USUAL_TTL)) }
        }

        /// Answers a report with the body of the answer. After an error the call is over.
        ///
        /// # Errors
        /// The code and the message of the final status.
        pub fn report(&mut self, message: Bytes) -> Result<Bytes, (u8, String)> {
            let service = &self.door.service;
            let answered = self.door.runtime.block_on(async {
                let answer = self.buckets.answer(service, message, |_| Ok(())).await;
                self.buckets.book(service).await;
                answer
            });
            answered.map_err(|status| (status.code as u8, status.message.into_owned()))
        }
    }
}
