//! The methods, by path: each maps the bytes of a message to those of its answer.

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::counts::Turn;
use super::framing::{Code, Status};
use super::rate_limit::{self, limitador};
use super::service::Service;
use super::{health, quota, reflection};
use crate::auth::Scope;
use crate::metrics::Transport;

/// As how many limits a call of another method than Envoy's counts: it has a few descriptors, and writes more for
/// each.
const OTHERS: usize = 16;

/// A method of the door. All but the streaming ones take one message and answer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`
    ShouldRateLimit,
    /// `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`; streaming
    StreamRateLimitQuotas,
    /// `kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit`
    CheckRateLimit,
    /// `kuadrant.service.ratelimit.v1.RateLimitService/Report`
    Report,
    /// `kuadrant.service.ratelimit.v1.RateLimitService/Reserve`
    Reserve,
    /// `kuadrant.service.ratelimit.v1.RateLimitService/Commit`
    Commit,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
    /// `grpc.health.v1.Health/Watch`; streaming
    HealthWatch,
    /// `ServerReflectionInfo` of `grpc.reflection.v1` and `grpc.reflection.v1alpha`; streaming
    ServerReflectionInfo,
}

impl Method {
    /// All methods by their paths.
    const ALL: [(&'static str, Self); 10] = [
        (rate_limit::PATH, Self::ShouldRateLimit),
        (quota::PATH, Self::StreamRateLimitQuotas),
        (limitador::CHECK, Self::CheckRateLimit),
        (limitador::REPORT, Self::Report),
        (limitador::RESERVE, Self::Reserve),
        (limitador::COMMIT, Self::Commit),
        (health::CHECK, Self::HealthCheck),
        (health::WATCH, Self::HealthWatch),
        (reflection::PATH, Self::ServerReflectionInfo),
        (reflection::PATH_ALPHA, Self::ServerReflectionInfo),
    ];

    /// Finds the method of a path.
    ///
    /// # Errors
    /// [`Code::Unimplemented`]; the message names those there are.
    pub(super) fn of(path: &str) -> Result<Self, Status> {
        let found = Self::ALL.iter().find(|(known, _)| *known == path);
        found.map(|(_, method)| *method).ok_or_else(|| {
            let paths = Self::ALL.map(|(path, _)| path).join(", ");
            Status::new(Code::Unimplemented, format!("there is no such method here; there are {paths}"))
        })
    }

    /// Returns whether the method is streaming: messages are exchanged until either side ends the call.
    pub(super) const fn is_streaming(self) -> bool {
        matches!(self, Self::StreamRateLimitQuotas | Self::HealthWatch | Self::ServerReflectionInfo)
    }

    /// Whether it decides or settles, and answers once.
    pub(super) const fn decides(self) -> bool {
        matches!(
            self,
            Self::ShouldRateLimit | Self::CheckRateLimit | Self::Report | Self::Reserve | Self::Commit
        )
    }

    /// Whether the answer can be a refusal.
    pub(super) const fn refuses(self) -> bool {
        matches!(self, Self::ShouldRateLimit | Self::CheckRateLimit)
    }

    /// The scope of a token; `None` if anybody may call.
    const fn required_scope(self) -> Option<Scope> {
        match self {
            Self::ShouldRateLimit
            | Self::StreamRateLimitQuotas
            | Self::CheckRateLimit
            | Self::Report
            | Self::Reserve
            | Self::Commit => Some(Scope::Check),
            Self::ServerReflectionInfo => Some(Scope::Read),
            Self::HealthCheck | Self::HealthWatch => None,
        }
    }

    pub(super) const fn needs_token(self) -> bool {
        self.required_scope().is_some()
    }

    /// Checks whether the caller may call. `full`: the connection is in the reserve, because all ordinary places
    /// are taken.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if the server is full, [`Code::Unauthenticated`] without a token,
    /// [`Code::PermissionDenied`] with one for another scope.
    pub(super) fn may_be_called(
        self,
        service: &Service,
        full: bool,
        headers: &HeaderMap,
    ) -> Result<(), Status> {
        // Health needs no token, and works in a full server.
        let Some(scope) = self.required_scope() else { return Ok(()) };
        if full {
            return Err(Status::new(
                Code::Unavailable,
                "all places for connections are taken; come again in a second",
            ));
        }
        service.app.access.authorize(headers, Some(scope), false).map_err(|problem| {
            service.app.decider.metrics.auth_failed(Transport::grpc);
            let unknown = problem.status() == StatusCode::UNAUTHORIZED;
            let code = if unknown { Code::Unauthenticated } else { Code::PermissionDenied };
            Status::new(code, problem.detail().to_owned())
        })
    }

    /// Answers a message, and counts the limits that it meets.
    ///
    /// # Cancel safety
    /// If dropped, it has spent nothing; but what a [`Method::Report`] or [`Method::Commit`] has booked stays so,
    /// since the usage has happened.
    pub(super) async fn answer(
        self,
        service: &Service,
        turn: &Turn,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        if self != Self::ShouldRateLimit {
            turn.met(OTHERS);
        }
        match self {
            Self::ShouldRateLimit => rate_limit::answer(service, turn, headers, message).await,
            Self::StreamRateLimitQuotas | Self::HealthWatch | Self::ServerReflectionInfo => {
                Err(Status::new(Code::Internal, "this method is a stream and has no single answer"))
            }
            // Boxed: otherwise all other calls would reserve space for them.
            Self::CheckRateLimit => Box::pin(limitador::check(service, message)).await,
            Self::Report => Box::pin(limitador::report(service, message)).await,
            Self::Reserve => Box::pin(limitador::reserve(service, message)).await,
            Self::Commit => Box::pin(limitador::commit(service, message)).await,
            Self::HealthCheck => health::check(&service.app, message),
        }
    }
}

/// All methods, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing {
    use bytes::Bytes;
    use http::header::HeaderMap;

    use super::super::rate_limit::fuzzing::RateLimitDoor;
    use super::{Method, Status, Turn};

    /// Answers a message to the method at a path.
    ///
    /// # Errors
    /// The code and the message of the status.
    pub fn answer(door: &RateLimitDoor, path: &str, message: &[u8]) -> Result<Bytes, (u8, String)> {
        let failed = |status: Status| (status.code as u8, status.message.into_owned());
        let method = Method::of(path).map_err(failed)?;
        let (headers, message) = (HeaderMap::new(), Bytes::copy_from_slice(message));
        door.runtime
            .block_on(method.answer(&door.service, &Turn::default(), &headers, message))
            .map_err(failed)
    }
}
