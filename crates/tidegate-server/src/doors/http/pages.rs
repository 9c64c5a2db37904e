//! What the sight of the server answers: its pages below `/ui/`, and its paths.

use std::sync::Arc;

use http::header::{ACCEPT, CACHE_CONTROL, HeaderValue, LOCATION};
use http::{Method, Request, StatusCode, Uri};
use hyper::body::Bytes;
use tidegate::visible;

use super::request_body;
use super::routes::{Query, Serves, UI};
use crate::app::App;
use crate::body::json::JSON;
use crate::body::{self, Body, Response};
use crate::problem::Problem;
use crate::sight::Sight;

/// The most bytes of a form.
const MAX_FORM: usize = 64 << 10;

/// Returns what sees the decisions of the server.
///
/// # Errors
/// 404 if there is nothing.
pub(super) fn sight_of(app: &App) -> Result<&Arc<dyn Sight>, Problem> {
    app.decider.sight().ok_or_else(|| {
        Problem::not_found(
            "this server does not keep what it sees; set server.sight: on in the policy file of `tidegate serve` and restart it, or \
             ServerOptions::sight in a program",
        )
    })
}

/// `/v1/overview`, `/v1/history`, `/v1/changes`, `/v1/busiest`, `/v1/alerts`.
///
/// # Errors
/// 400 for an unknown parameter, 404 if nothing sees decisions, 503 if others ask for too much, and whatever the sight
/// finds wrong.
pub(super) async fn read(app: &App, uri: &Uri) -> Result<Response, Problem> {
    let sight = Arc::clone(sight_of(app)?);
    let reveal = asks_for_names(uri)?;
    let turn = app.reading().await?;
    let uri = uri.clone();
    let reading = move || {
        // Held by the work, which goes on when the caller hangs up.
        let _turn = turn;
        sight.read(uri.path(), uri.query().unwrap_or_default(), reveal)
    };
    // It may read a file, and a disk may hang, so not on a thread that decides.
    let told = tokio::task::spawn_blocking(reading).await;
    let told =
        told.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "what was seen cannot be read"))?;
    told_as(told)
}

/// `POST /v1/alerts`: silences alerts, ends a silence, or sends a test.
///
/// # Errors
/// As [`read`]; as [`request_body::read`].
pub(super) async fn act(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let sight = Arc::clone(sight_of(app)?);
    let who = app.access.name_of(request.headers()).unwrap_or_default();
    let path = request.uri().path().to_owned();
    let sent = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    hand_over(sight, path, sent, who).await
}

/// Has the sight do what a body says that was sent to a path of its own, and answers what it told.
///
/// # Errors
/// Whatever the sight finds wrong.
pub(super) async fn hand_over(
    sight: Arc<dyn Sight>,
    path: String,
    sent: Bytes,
    who: Box<str>,
) -> Result<Response, Problem> {
    // It may wait for the thread that counts, so not on a thread that decides.
    let told = tokio::task::spawn_blocking(move || sight.act(&path, &sent, &who)).await;
    let told = told.map_err(|_| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "what the server sees cannot be reached")
    })?;
    told_as(told)
}

/// Answers what the sight told. Names of strangers may be in it.
fn told_as(told: Result<String, (u16, String)>) -> Result<Response, Problem> {
    let told = told.map_err(|(status, detail)| {
        Problem::new(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), detail)
    })?;
    Ok(body::answer(StatusCode::OK, JSON, visible::json(&told).into_owned()))
}

/// Returns whether a query asks for names.
///
/// # Errors
/// 400 for an unknown parameter.
fn asks_for_names(uri: &Uri) -> Result<bool, Problem> {
    let names: &[&'static str] = match uri.path() {
        "/v1/overview" => &["w", "reveal"],
        "/v1/history" => &["policy", "series", "from", "to", "step"],
        "/v1/changes" | "/v1/alerts" => &["limit"],
        _ => &["policy", "by", "w", "limit", "reveal"],
    };
    Query::of(uri, names)?.flag("reveal")
}

/// `/ui/` and all below it. Sessions keep strangers out; where no token is needed, other origins are refused as
/// everywhere.
///
/// # Errors
/// 404 if nothing sees decisions; 403 as [`Access::authorize`](crate::auth::Access::authorize); as
/// [`request_body::read`].
pub(super) async fn page(app: &App, request: Request<Body>, encrypted: bool) -> Result<Response, Problem> {
    let sight = sight_of(app)?;
    let tokens = app.access.needs_token();
    if !tokens {
        app.access.authorize(request.headers(), None, encrypted)?;
    }
    let (parts, unread) = request.into_parts();
    let mut form = Request::new(unread);
    form.headers_mut().clone_from(&parts.headers);
    let form = request_body::read(form, MAX_FORM).await?;
    let answered = sight.page(Request::from_parts(parts, form), tokens, encrypted).await;
    Ok(answered.map(body::whole))
}

/// Returns whether a browser asks for the start page of an address that has pages.
pub(super) fn are_meant(app: &App, serves: Serves, request: &Request<Body>) -> bool {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    matches!(*request.method(), Method::GET | Method::HEAD)
        && matches!(request.uri().path(), "/" | "/ui")
        && serves != Serves::Decisions
        && accepts.is_some_and(|accepts| accepts.contains("text/html"))
        && app.decider.sight().is_some()
}

/// Leads a browser to the pages.
pub(super) fn redirect() -> Response {
    let mut response = body::bare(StatusCode::SEE_OTHER);
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(UI));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
