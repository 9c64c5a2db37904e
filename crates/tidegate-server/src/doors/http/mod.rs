//! The HTTP door: JSON checks, forward-auth sub-requests, and what operators ask.
//!
//! | path | what |
//! |---|---|
//! | `POST /v1/check`, `/v1/check/batch` | decide and take |
//! | `POST /v1/peek`, `/v1/explain` | decide, take nothing; explain says why |
//! | `POST /v1/report`, `/v1/refund` | the second half of a decision |
//! | `/v1/forward-auth` | sub-requests of nginx, Caddy, Traefik |
//! | `GET /v1/policies`, `/v1/policies/{name}` | what is in force |
//! | `GET /v1/keys/top`, `DELETE /v1/keys/{policy}` | who is at the limit; let one go |
//! | `POST /v1/reload`, `/metrics`, `/livez`, `/readyz`, `/healthz`, `/version` | operations |
//!
//! Paths are matched here by hand, in one place and in the order of how often they come: a check is answered without a
//! router in between, and a path that does not exist can name the one that was meant.

mod answer;
mod body;
mod check;
mod explain;
mod forward_auth;
mod headers;
mod keys;
mod operations;
mod policies;
mod problem;
mod query;
mod redact;
mod settle;

pub(crate) use self::forward_auth::Door;
#[cfg(feature = "fuzzing")]
pub(crate) use self::forward_auth::fuzzing;

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::sync::watch;

pub(crate) use headers::seconds_up;
pub(crate) use problem::Problem;
use problem::{nearest, quoted};
use redact::Redact;

use crate::auth::{self, Token};
use crate::connections::Phase;
use crate::engine::Engine;
use crate::reload::Reload;

/// What every request is answered from.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) reload: Reload,
    token: Option<Token>,
    phase: watch::Receiver<Phase>,
    redact: Redact,
    /// Requests being answered.
    in_flight: AtomicUsize,
}

/// Counts a request down when its answering ends.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every path, for the one that was probably meant.
const PATHS: [&str; 17] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/peek",
    "/v1/explain",
    "/v1/settle",
    "/v1/report",
    "/v1/refund",
    "/v1/forward-auth",
    "/v1/policies",
    "/v1/keys/top",
    "/v1/reload",
    "/metrics",
    "/livez",
    "/readyz",
    "/healthz",
    "/version",
    "/config.schema.json",
];

/// Says whether a path is for operators, who must get in when nobody else does: health, metrics and reload.
pub(crate) fn is_operational(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/healthz" | "/metrics" | "/v1/reload")
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        reload: Reload,
        token: Option<Token>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        Self { engine, reload, token, phase, redact: Redact::default(), in_flight: AtomicUsize::new(0) }
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        // Relaxed: a number for people. The guard counts down even when the caller goes away in between.
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _done = InFlight(&self.in_flight);
        self.route(request).await.unwrap_or_else(Problem::into_response)
    }

    /// Checks that whoever sent these headers may ask for everything.
    ///
    /// # Errors
    /// 401 without the token, where there is one; 403 for what only a web page would send, where there is none.
    fn authorized(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match &self.token {
            Some(token) => auth::with_token(token, headers),
            None => auth::without_token(headers),
        }
    }

    async fn route(&self, request: Request<Body>) -> Result<Response, Problem> {
        let uri = request.uri().clone();
        let method = request.method().clone();
        let path = match uri.path() {
            "/livez" => return read(&method).map(|()| operations::livez()),
            "/readyz" | "/healthz" => {
                return read(&method).and_then(|()| operations::readyz(self, &uri, request.headers()));
            }
            path => path,
        };
        // A proxy hands its caller's `Host` and `Origin` on.
        if self.token.is_some() || path != "/v1/forward-auth" {
            self.authorized(request.headers())?;
        }
        match path {
            "/v1/check" => {
                post(&method)?;
                check::check(self, request).await
            }
            "/v1/forward-auth" => forward_auth::forward_auth(self, request).await,
            "/v1/check/batch" => {
                post(&method)?;
                check::batch(self, request).await
            }
            "/v1/peek" => {
                post(&method)?;
                check::peek(self, request).await
            }
            "/v1/settle" => {
                post(&method)?;
                settle::settle(self, request).await
            }
            "/v1/report" => {
                post(&method)?;
                settle::report(self, request).await
            }
            "/v1/refund" => {
                post(&method)?;
                settle::refund(self, request).await
            }
            "/v1/explain" if method == Method::GET => explain::explain(self, request).await,
            "/v1/explain" => {
                post(&method)?;
                explain::explain(self, request).await
            }
            "/v1/policies" => read(&method).map(|()| policies::list(self, &request)),
            // A policy may be called so: deleting is always of a policy's key.
            "/v1/keys/top" if method != Method::DELETE => {
                read(&method).and_then(|()| keys::top(self, &request))
            }
            "/v1/reload" => {
                post(&method)?;
                operations::reload(self).await
            }
            "/metrics" => read(&method).map(|()| operations::metrics(self)),
            "/version" => read(&method).map(|()| operations::version()),
            "/config.schema.json" => read(&method).map(|()| operations::schema()),
            _ => self.by_name(&request, &method, path),
        }
    }

    /// Answers paths that end in the name of a policy.
    fn by_name(&self, request: &Request<Body>, method: &Method, path: &str) -> Result<Response, Problem> {
        if let Some(name) = path.strip_prefix("/v1/policies/") {
            return read(method).and_then(|()| policies::one(self, request, name));
        }
        if let Some(name) = path.strip_prefix("/v1/keys/") {
            return delete(method).and_then(|()| keys::reset(self, request, name));
        }
        let meant = nearest(path, PATHS);
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Err(Problem::not_found(format!("there is nothing at {}{advice}", quoted(path))))
    }
}

fn post(method: &Method) -> Result<(), Problem> {
    if *method == Method::POST { Ok(()) } else { Err(wrong_method(method, "POST")) }
}

fn delete(method: &Method) -> Result<(), Problem> {
    if *method == Method::DELETE { Ok(()) } else { Err(wrong_method(method, "DELETE")) }
}

fn read(method: &Method) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(())
    } else {
        Err(wrong_method(method, "GET, HEAD"))
    }
}

fn wrong_method(method: &Method, allowed: &'static str) -> Problem {
    let detail = format!("{} does not work here; use {allowed}", quoted(method.as_str()));
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail).allowing(allowed)
}

/// Answers 200 with JSON.
fn ok(value: &impl Serialize) -> Response {
    let mut response = problem::json(value).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
