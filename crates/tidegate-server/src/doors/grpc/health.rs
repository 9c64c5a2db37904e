//! `grpc.health.v1`: whether to send calls here, as `/readyz` says it.
//!
//! Two messages of one field each, so they are written down here rather than taken from a crate that brings a server of its own. `Watch`
//! is not answered: those who watch go on asking `Check`, or take the server for healthy, as the protocol has it.
//!
//! # Source
//! "gRPC Health Checking Protocol".

use bytes::Bytes;
use prost::Message;

use super::framing;
use super::status::{Code, Status};
use crate::app::App;
use crate::phase::Phase;

/// The path of the method.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The services that may be asked about; the empty name is the whole server.
const SERVICES: [&str; 5] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "kuadrant.service.ratelimit.v1.RateLimitService",
    "grpc.health.v1.Health",
];

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, Eq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, Eq, Message)]
struct Answer {
    /// 1 is serving, 2 is not.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Answers whether the server, or one of its services, takes calls.
///
/// # Errors
/// [`Code::NotFound`] for a service that there is not, [`Code::Internal`] for bytes that are no such message.
pub(super) fn check(app: &App, message: Bytes) -> Result<Bytes, Status> {
    let asked = Question::decode(message).map_err(|error| {
        Status::new(Code::Internal, format!("the message is no HealthCheckRequest: {error}"))
    })?;
    if !SERVICES.contains(&&*asked.service) {
        return Err(Status::new(
            Code::NotFound,
            "there is no such service here; leave the name empty for the server",
        ));
    }
    let status = if app.phase() == Phase::Serving { 1 } else { 2 };
    Ok(framing::body(&Answer { status }))
}
