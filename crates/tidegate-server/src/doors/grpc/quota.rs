//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`: proxies limit requests
//! themselves, by buckets, so no request waits for an answer.
//!
//! Every few seconds a proxy reports how many requests it allowed and denied in each bucket, and is assigned a part
//! of the limit: a token bucket for some seconds. A bucket is a request to the policies as a descriptor of
//! [`super::rate_limit`] is. Each limit that it meets is divided over the buckets of all proxies that meet it
//! ([`tidegate_core::division`]), and the proxy is told the smallest part. What it allowed is booked in the limit, so
//! other doors see it.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two reports | [`SILENCE`] | the call ends; assignments hold for their time |
//! | an answer that the proxy does not read | the server's `unread` | the call is reset |
//! | booking the requests that a report allowed | a report's interval | they are booked after the next report |
//! | until the server drains, or needs the place while the proxy is silent | | the call ends; the proxy calls again, here or elsewhere |

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
use super::counts::OpenCall;
use super::framing::{Code, Status};
use super::reading::{Answers, Holding, Messages, over};
use super::service::Service;

pub(super) const PATH: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The metadata that says for how many seconds an assignment is valid.
const TTL: &str = "x-tidegate-assignment-ttl";

/// How many seconds an assignment is valid unless the call says otherwise: four of Envoy's report intervals.
const USUAL_TTL: u64 = 20;

/// The longest validity of an assignment, in seconds. For that long, a proxy that vanishes keeps its part from
/// others.
const LONGEST_TTL: u64 = 600;

/// The longest time between two reports; a proxy with buckets reports every few seconds.
const SILENCE: Duration = Duration::from_secs(120);

/// The settings of one call.
pub(super) struct Terms<'c> {
    pub(super) deadline: Option<Instant>,
    /// How long an answer may wait to be read.
    pub(super) unread: Duration,
    /// Counts the call, as silent while it waits for the proxy.
    pub(super) open: OpenCall<'c>,
}

/// Answers one proxy's reports until either side ends the call; `may_go_on` is asked for each.
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
    let _counted = service.app.decider.metrics.quotas.stream();
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
/// As [`Buckets::answer`]; [`Code::ResourceExhausted`] if the connection holds too much; [`Code::Unavailable`], and
/// the call is reset, if the proxy does not read its answer.
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
/// [`Code::InvalidArgument`], with valid values.
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

        /// Answers a report. After an error the call is over.
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
