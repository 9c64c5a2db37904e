//! `/v1/forward-auth`: a proxy asks about each request it gets before it passes it on.
//!
//! nginx (`auth_request`), Caddy (`forward_auth`) and Traefik (ForwardAuth) send a sub-request that carries the original one
//! in headers. The path, method and host come from them, every other header becomes `request.header.<name>`, and the
//! client's address is found behind the trusted proxies. A 2xx lets the request pass; Caddy and Traefik hand any other
//! answer to the client as it is, headers and all. nginx knows only 401 and 403 as refusals: ask with `?deny_status=403`.
//!
//! A browser's preflight (`OPTIONS`) passes uncharged, or a page would be refused before it asked for anything;
//! `?options=charge` limits it like the rest. A delayed request is answered when its time has come, since no proxy can wait.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use tidegate::policy::Descriptor;

use super::App;
use super::body::{Asked, MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
use super::check::decide;
use super::problem::Problem;
use super::query::Query;
use crate::connections::Peer;
use crate::engine::Want;
use crate::live::Live;

/// The id of the decision, for logs and reports.
const DECISION_ID: HeaderName = HeaderName::from_static("x-tidegate-decision-id");

/// How proxies name the original request, the first that is there counts: nginx by the convention of its manual,
/// ingress-nginx, then Traefik and Caddy.
const METHOD: [&str; 2] = ["x-original-method", "x-forwarded-method"];
const URI: [&str; 3] = ["x-original-uri", "x-original-url", "x-forwarded-uri"];
const HOSTS: [&str; 2] = ["x-original-host", "x-forwarded-host"];

/// Headers that are the proxy's or ours and say nothing of the original request.
const NOT_THE_CALLERS: [&str; 8] = [
    "connection",
    "content-length",
    "host",
    "x-tidegate-token",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-port",
    "x-forwarded-uri",
];

/// Decides the original request.
pub(crate) async fn forward_auth(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let query = if is_the_callers(request.uri().query(), request.headers()) {
        Query::default()
    } else {
        Query::of(request.uri(), &["deny_status", "options"])?
    };
    let denied = query.get("deny_status").map(deny_status).transpose()?;
    let charge_options = match query.get("options") {
        None | Some("pass") => false,
        Some("charge") => true,
        Some(other) => return Err(query.wrong("options", other, "`pass` or `charge`")),
    };
    let live = app.engine.live();
    let original = Original::of(&request, &live)?;
    if original.method.eq_ignore_ascii_case("OPTIONS") && !charge_options {
        let unlimited = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        return Ok((StatusCode::OK, unlimited).into_response());
    }
    let asked = Asked { request: original.descriptor, cost: None, policies: None };
    let (mut response, wait) = decide(app, &live, &asked, None, Want::Take, |told| {
        let mut response = told.response(live.headers, denied);
        if let Some(id) = told.id.and_then(|id| HeaderValue::from_str(&id.to_string()).ok()) {
            response.headers_mut().insert(DECISION_ID, id);
        }
        (response, told.wait())
    });
    if response.status().is_success() {
        // The proxy reads nothing but status and headers.
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(http::header::CONTENT_TYPE);
        response.headers_mut().remove(http::header::CONTENT_LENGTH);
    }
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(response)
}

/// Says whether a query is the original request's own.
///
/// Caddy's `uri /v1/forward-auth` changes the path and leaves the query, so the caller's parameters arrive here; they are not
/// the operator's.
fn is_the_callers(query: Option<&str>, headers: &HeaderMap) -> bool {
    let original = first(headers, &URI).and_then(|uri| uri.split_once('?'));
    query.is_some() && query == original.map(|(_, query)| query)
}

fn deny_status(text: &str) -> Result<StatusCode, Problem> {
    let status = text.parse::<u16>().ok().filter(|status| (400..=599).contains(status));
    status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or_else(|| {
        Problem::bad_request(format!(
            "deny_status {text:?} is no status of a refusal; use 400 to 599, 403 for nginx"
        ))
        .with("field", "deny_status")
    })
}

/// The request that a proxy got.
struct Original<'r> {
    method: Cow<'r, str>,
    descriptor: Descriptor<'r>,
}

impl<'r> Original<'r> {
    fn of(request: &'r Request<Body>, live: &Live) -> Result<Self, Problem> {
        let headers = request.headers();
        let method = first(headers, &METHOD).unwrap_or_else(|| request.method().as_str());
        let uri = first(headers, &URI).ok_or_else(|| {
            let names = "x-original-uri (nginx) or x-forwarded-uri (Caddy, Traefik)";
            let detail = format!("the original path is missing: the proxy must send {names}");
            Problem::bad_request(detail).with("field", "x-original-uri")
        })?;
        let host = first(headers, &HOSTS).or_else(|| text(headers.get(HOST)?));
        let mut descriptor = Descriptor::new();
        descriptor.push("request.method", method);
        descriptor.push("request.path", path(uri));
        if let Some(host) = host {
            descriptor.push("request.host", host_name(host));
        }
        if let Some(Peer(peer)) = request.extensions().get::<Peer>() {
            let lines: Vec<&str> =
                headers.get_all(live.client_ip.header.name()).iter().filter_map(text).collect();
            let found = live.client_ip.find(peer.ip(), lines);
            descriptor.push("client.ip", found.address.to_string());
        }
        let mut room = MAX_ATTRIBUTES - descriptor.pairs().count();
        for name in headers.keys() {
            if NOT_THE_CALLERS.contains(&name.as_str()) || name.as_str().starts_with("x-original-") {
                continue;
            }
            let value = joined(headers, name);
            // What does not fit is left out: a caller may send any header, and none of them may break the check.
            if room == 0 || name.as_str().len() > MAX_NAME || value.len() > MAX_VALUE {
                continue;
            }
            room -= 1;
            descriptor.push(format!("request.header.{name}"), value);
        }
        Ok(Self { method: Cow::Borrowed(method), descriptor })
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

fn first<'r>(headers: &'r HeaderMap, names: &[&str]) -> Option<&'r str> {
    names.iter().find_map(|name| text(headers.get(*name)?)).filter(|value| !value.is_empty())
}

/// Joins the lines of one header as RFC 9110 has it.
fn joined<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Cow<'r, str> {
    let mut lines = headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let Some(mut all) = lines.next() else { return Cow::Borrowed("") };
    for line in lines {
        let all = all.to_mut();
        all.push_str(", ");
        all.push_str(&line);
    }
    all
}

/// Cuts a URL down to path and query; policies cut off the query.
fn path(uri: &str) -> &str {
    match uri.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |start| &rest[start..]),
        _ => uri,
    }
}

/// Cuts the port off an authority.
fn host_name(authority: &str) -> Cow<'_, str> {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_hosts_are_cut_out() {
        assert_eq!(path("/a?b"), "/a?b");
        assert_eq!(path("https://example.org/a?b=c://d"), "/a?b=c://d");
        assert_eq!(path("https://example.org"), "/");
        assert_eq!(path("/redirect?to=https://example.org/x"), "/redirect?to=https://example.org/x");
        assert_eq!(host_name("Example.org:8080"), "example.org");
        assert_eq!(host_name("[::1]:80"), "[::1]");
        assert_eq!(host_name("example.org"), "example.org");
    }

    #[test]
    fn a_header_given_twice_is_one_list() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        assert_eq!(joined(&headers, &HeaderName::from_static("x-a")), "1, 2");
    }
}
