//! `grpc.health.v1`: whether to send calls here, as `/readyz`.
//!
//! `Check` answers once. `Watch` answers at once and when that changes: when an operator drains the server, undoes that,
//! or it stops. Then the call ends.
//!
//! # Source
//! "gRPC Health Checking Protocol"; `reflection/health.proto`.

use bytes::Bytes;
use h2::server::SendResponse;
use prost::Message;
use tokio::time::Instant;

use super::counts::OpenCall;
use super::framing::{self, Code, Status};
use super::reading::{Answers, over};
use crate::app::App;
use crate::options::Timeouts;

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The services that can be asked for; the empty name is the server.
const SERVICES: [&str; 7] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "kuadrant.service.ratelimit.v1.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct HealthCheckResponse {
    /// A [`ServingStatus`].
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `HealthCheckResponse.ServingStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum ServingStatus {
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// Answers whether a service takes calls.
///
/// # Errors
/// [`Code::NotFound`] for an unknown one, [`Code::Internal`] for bytes that are no such message.
pub(super) fn check(app: &App, message: Bytes) -> Result<Bytes, Status> {
    match status(app, &service(message)?) {
        ServingStatus::ServiceUnknown => Err(Status::new(
            Code::NotFound,
            "there is no such service here; leave the name empty for the server",
        )),
        known => Ok(body(known)),
    }
}

/// Reads the service of a request.
///
/// # Errors
/// [`Code::Internal`] for bytes that are no such message.
pub(super) fn service(message: Bytes) -> Result<String, Status> {
    let asked = HealthCheckRequest::decode(message).map_err(|error| {
        Status::new(Code::Internal, format!("the message is not a HealthCheckRequest: {error}"))
    })?;
    Ok(asked.service)
}

/// Answers whether a service takes calls, now and when that changes, until the server drains, the caller gives up or
/// the deadline comes. An unknown service stays so: the protocol has no error for it.
pub(super) async fn watch(
    app: &App,
    service: &str,
    respond: SendResponse<Bytes>,
    open: OpenCall<'_>,
    deadline: Option<Instant>,
    timeouts: Timeouts,
) {
    let Some(mut answers) = Answers::begin(respond, timeouts.unread) else { return };
    let mut readiness = app.drain.readiness();
    let mut said = None;
    loop {
        let now = status(app, service);
        if said != Some(now) && answers.send(body(now)).await.is_err() {
            return;
        }
        said = Some(now);
        let changed = open.wait_for(async {
            tokio::select! {
                biased;
                () = answers.caller_gone() => None,
                ended = over(app, deadline) => Some(Some(ended)),
                // An error means that the server is gone.
                _ = readiness.changed() => Some(None),
            }
        });
        match changed.await {
            None => return,
            Some(None) => {}
            Some(Some(ended)) => {
                let last = status(app, service);
                if said != Some(last) && answers.send(body(last)).await.is_err() {
                    return;
                }
                return answers.end(ended);
            }
        }
    }
}

fn status(app: &App, service: &str) -> ServingStatus {
    if !SERVICES.contains(&service) {
        return ServingStatus::ServiceUnknown;
    }
    if app.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn body(status: ServingStatus) -> Bytes {
    framing::body(&HealthCheckResponse { status: status as i32 })
}

/// A crate with the protocol's messages is the judge.
#[cfg(test)]
mod tests {
    use tonic_health::pb;

    use super::*;

    #[test]
    fn a_request_is_theirs() {
        for service in SERVICES.map(str::to_owned) {
            let ours = HealthCheckRequest { service: service.clone() };
            framing::are_one(&ours, &pb::HealthCheckRequest { service });
        }
    }

    #[test]
    fn an_answer_is_theirs() {
        use pb::health_check_response::ServingStatus as Theirs;

        for (ours, theirs) in [
            (ServingStatus::Serving, Theirs::Serving),
            (ServingStatus::NotServing, Theirs::NotServing),
            (ServingStatus::ServiceUnknown, Theirs::ServiceUnknown),
        ] {
            let theirs = pb::HealthCheckResponse { status: theirs as i32 };
            framing::are_one(&HealthCheckResponse { status: ours as i32 }, &theirs);
        }
    }
}
