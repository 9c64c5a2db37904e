//! The HTTP door: JSON checks, forward-auth sub-requests, and what operators ask.
//!
//! | path | what |
//! |---|---|
//! | `POST /v1/check`, `/v1/check/batch` | decide and take |
//! | `POST /v1/peek`, `/v1/explain`, `/v1/dry-run` | decide, take nothing; explain says why, a dry run tries other policies |
//! | `POST /v1/report`, `/v1/refund` | the second half of a decision |
//! | `/v1/forward-auth` | sub-requests of nginx, Caddy, Traefik |
//! | `GET /v1/policies`, `/v1/policies/{name}` | what is in force |
//! | `PUT`, `DELETE /v1/policies/{name}` | change what the API owns |
//! | `GET /v1/keys/top`, `/v1/keys/{policy}` | the keys refused most; those of one policy |
//! | `PUT`, `DELETE /v1/keys/{policy}` | block one for a while; let it go, and forget what it has spent |
//! | `GET /v1/signals`, `POST /v1/signals/{name}` | the numbers that policies go by; report one |
//! | `GET /v1/breakers`, `GET`, `PUT /v1/breakers/{policy}` | how breakers stand; what a person makes them do |
//! | `GET /v1/events` | what happens, while it happens |
//! | `POST /v1/reload`, `/metrics`, `/livez`, `/readyz`, `/healthz`, `/version` | operations |
//!
//! Paths are matched here by hand, in one place and in the order of how often they come: a check is answered without a
//! router in between, and a path that does not exist can name the one that was meant.

mod answer;
mod breakers;
mod check;
mod dry_run;
mod entity_tags;
mod events;
mod explain;
mod forward_auth;
mod keys;
mod operations;
mod policies;
mod policy_keys;
mod put_policy;
mod query;
mod refused_policies;
mod request_body;
mod response_headers;
mod settle;
mod signals;

#[cfg(feature = "fuzzing")]
pub(crate) use self::forward_auth::fuzzing;

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Method, Request, StatusCode};

use crate::app::App;
use crate::connections::Handler;
use crate::metrics::{CutReason, Transport};
use crate::problem::Problem;
use crate::spelling::{nearest, quoted};

/// The HTTP door of one server.
#[derive(Debug)]
pub(crate) struct HttpDoor(Arc<App>);

/// Every path, to find the one that was probably meant by a misspelt one.
const PATHS: [&str; 21] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/peek",
    "/v1/explain",
    "/v1/dry-run",
    "/v1/settle",
    "/v1/report",
    "/v1/refund",
    "/v1/forward-auth",
    "/v1/policies",
    "/v1/breakers",
    "/v1/keys/top",
    "/v1/signals",
    "/v1/events",
    "/v1/reload",
    "/metrics",
    "/livez",
    "/readyz",
    "/healthz",
    "/version",
    "/config.schema.json",
];

impl HttpDoor {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self(app)
    }
}

impl Handler for HttpDoor {
    async fn answer(&self, request: Request<Body>) -> Response {
        let _in_flight = self.0.begin_request(Transport::http);
        route(&self.0, request).await.unwrap_or_else(Problem::into_response)
    }

    /// Health, metrics and reload.
    fn is_operational(path: &str) -> bool {
        matches!(path, "/livez" | "/readyz" | "/healthz" | "/metrics" | "/v1/reload")
    }

    fn connection_cut(&self, reason: CutReason) {
        self.0.engine.metrics.connection_cut(reason);
    }
}

async fn route(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let method = request.method().clone();
    let path = match uri.path() {
        "/livez" => return read(&method).map(|()| operations::livez()),
        "/readyz" | "/healthz" => {
            return read(&method).and_then(|()| operations::readyz(app, &uri, request.headers()));
        }
        path => path,
    };
    // A proxy hands its caller's `Host` and `Origin` on.
    if app.needs_token() || path != "/v1/forward-auth" {
        let authorized = app.authorized(request.headers());
        if authorized.is_err() && app.needs_token() {
            app.engine.metrics.auth_failed(Transport::http);
        }
        authorized?;
    }
    match path {
        "/v1/check" => {
            post(&method)?;
            check::check(app, request).await
        }
        "/v1/forward-auth" => forward_auth::forward_auth(app, request).await,
        "/v1/check/batch" => {
            post(&method)?;
            check::batch(app, request).await
        }
        "/v1/peek" => {
            post(&method)?;
            check::peek(app, request).await
        }
        "/v1/settle" => {
            post(&method)?;
            settle::settle(app, request).await
        }
        "/v1/report" => {
            post(&method)?;
            settle::report(app, request).await
        }
        "/v1/refund" => {
            post(&method)?;
            settle::refund(app, request).await
        }
        "/v1/explain" if method == Method::GET => explain::explain(app, request).await,
        "/v1/explain" => {
            post(&method)?;
            explain::explain(app, request).await
        }
        "/v1/dry-run" => {
            post(&method)?;
            dry_run::dry_run(app, request).await
        }
        "/v1/policies" => read(&method).map(|()| policies::list(app, &request)),
        "/v1/breakers" => {
            read(&method)?;
            breakers::list(app, &uri).await
        }
        // A policy may be named `top`: a DELETE or PUT is always of a policy's key.
        "/v1/keys/top" if !matches!(method, Method::DELETE | Method::PUT) => {
            read(&method).and_then(|()| keys::top(app, &request))
        }
        "/v1/signals" => read(&method).map(|()| signals::list(app)),
        "/v1/events" => read(&method).and_then(|()| events::listen(app, &method, &uri)),
        "/v1/reload" => {
            post(&method)?;
            operations::reload(app).await
        }
        "/metrics" => read(&method).map(|()| operations::metrics(app)),
        "/version" => read(&method).map(|()| operations::version()),
        "/config.schema.json" => read(&method).map(|()| operations::schema()),
        path if path.starts_with("/v1/signals/") => {
            post(&method)?;
            signals::report(app, request).await
        }
        path if let Some(name) = path.strip_prefix("/v1/policies/") => {
            if matches!(method, Method::PUT | Method::DELETE) {
                return put_policy::change(app, request, name).await;
            }
            read(&method).map_err(|_| wrong_method(&method, "GET, HEAD, PUT, DELETE"))?;
            policies::one(app, &request, name)
        }
        _ => match (path.strip_prefix("/v1/keys/"), path.strip_prefix("/v1/breakers/")) {
            (Some(name), _) if method == Method::DELETE => keys::reset(app, &uri, name).await,
            (Some(name), _) if method == Method::PUT => policy_keys::block(app, request, name).await,
            (Some(name), _) => {
                read(&method).map_err(|_| wrong_method(&method, "GET, HEAD, PUT, DELETE"))?;
                policy_keys::list(app, &uri, name).await
            }
            (None, Some(name)) if method == Method::PUT => breakers::put(app, request, name).await,
            (None, Some(name)) => {
                read(&method).map_err(|_| wrong_method(&method, "GET, HEAD, PUT"))?;
                breakers::one(app, &uri, name).await
            }
            (None, None) => Err(nothing_at(path)),
        },
    }
}

/// Says that there is nothing at a path, and which was probably meant.
fn nothing_at(path: &str) -> Problem {
    let meant = nearest(path, PATHS);
    let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    Problem::not_found(format!("there is nothing at {}{advice}", quoted(path)))
}

fn post(method: &Method) -> Result<(), Problem> {
    if *method == Method::POST { Ok(()) } else { Err(wrong_method(method, "POST")) }
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
