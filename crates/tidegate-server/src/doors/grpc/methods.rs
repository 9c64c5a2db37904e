//! Which bytes answer which bytes: the methods of the door, by path.

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::service::Service;
use super::status::{Code, Status};
use super::{health, rate_limit};
use crate::auth::Scope;
use crate::metrics::Transport;

/// A method that takes one message and answers one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`
    ShouldRateLimit,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
}

impl Method {
    /// Finds the method of a path.
    ///
    /// # Errors
    /// [`Code::Unimplemented`] names what there is.
    pub(super) fn of(path: &str) -> Result<Self, Status> {
        match path {
            rate_limit::PATH => Ok(Self::ShouldRateLimit),
            health::CHECK => Ok(Self::HealthCheck),
            _ => {
                let message = format!(
                    "there is no such method here; there are {} and {}",
                    rate_limit::PATH,
                    health::CHECK
                );
                Err(Status::new(Code::Unimplemented, message))
            }
        }
    }

    /// Returns what a token must be for; with `None` everybody may call it.
    const fn asks(self) -> Option<Scope> {
        match self {
            Self::ShouldRateLimit => Some(Scope::Check),
            Self::HealthCheck => None,
        }
    }

    /// Says whether whoever sent these headers may call it; `full` where only the reserve has places.
    ///
    /// # Errors
    /// [`Code::Unavailable`] where there is no place for it, [`Code::Unauthenticated`] without a token, [`Code::PermissionDenied`] with one
    /// that is for other things.
    pub(super) fn may_be_called(
        self,
        service: &Service,
        full: bool,
        headers: &HeaderMap,
    ) -> Result<(), Status> {
        // Health is for who watches, token or not: also when nobody else gets in.
        let Some(scope) = self.asks() else { return Ok(()) };
        if full {
            return Err(Status::new(
                Code::Unavailable,
                "all places for connections are taken; come again in a second",
            ));
        }
        service.app.access.authorize(headers, Some(scope)).map_err(|problem| {
            service.app.engine.metrics.auth_failed(Transport::grpc);
            let unknown = problem.status() == StatusCode::UNAUTHORIZED;
            let code = if unknown { Code::Unauthenticated } else { Code::PermissionDenied };
            Status::new(code, problem.detail().to_owned())
        })
    }

    /// Answers a message with the body of the answer.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it has spent nothing.
    pub(super) async fn answer(
        self,
        service: &Service,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        match self {
            Self::ShouldRateLimit => rate_limit::answer(service, headers, message).await,
            Self::HealthCheck => health::check(&service.app, message),
        }
    }
}
