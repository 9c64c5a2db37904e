//! The answers of the pages, and the headers that all of them carry.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, LOCATION, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};

/// A page that would be larger is not sent. Pages show less of long names and texts, so that all of them are smaller.
const LARGEST_PAGE: usize = 128 << 10;

pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

pub(super) const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The headers of every answer.
fn guarded(mut answer: Response<Bytes>, kind: &'static str, cache: &'static str) -> Response<Bytes> {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not `no-referrer`: with it browsers send `Origin: null` with forms, and over plain HTTP to another machine no
    // `Sec-Fetch-Site`, so nobody could log in there. No other site learns anything by either.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    with_status(guarded(Response::new(body.into()), kind, "no-store"), status)
}

pub(super) fn page(status: StatusCode, page: String) -> Response<Bytes> {
    if page.len() > LARGEST_PAGE {
        let why =
            "this page would be too large: its names are very long; choose one policy, or use the API\n";
        return text(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    answer(status, "text/html; charset=utf-8", page)
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    answer(status, "text/plain; charset=utf-8", body)
}

/// Goes on to another page. What is no header goes to Now.
pub(super) fn to(next: &str) -> Response<Bytes> {
    let next = HeaderValue::try_from(next).unwrap_or_else(|_| HeaderValue::from_static("/ui/"));
    let mut answer = text(StatusCode::SEE_OTHER, "");
    answer.headers_mut().insert(LOCATION, next);
    answer
}

pub(super) fn with_status(mut answer: Response<Bytes>, status: StatusCode) -> Response<Bytes> {
    *answer.status_mut() = status;
    answer
}

pub(super) fn with_cookie(mut answer: Response<Bytes>, cookie: &str) -> Response<Bytes> {
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    answer
}

/// Answers a file, or that the caller has it.
pub(super) fn asset(text: &'static str, kind: &'static str, headers: &HeaderMap) -> Response<Bytes> {
    let tag = tag(text.as_bytes());
    let has_it = headers.get_all(IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let has_it =
        has_it.flat_map(|line| line.split(',')).any(|have| have.trim().trim_start_matches("W/") == tag);
    let body = if has_it { Bytes::new() } else { Bytes::from_static(text.as_bytes()) };
    let mut answer = guarded(Response::new(body), kind, "no-cache");
    if has_it {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    if let Ok(tag) = HeaderValue::try_from(tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

/// A tag by content (FNV-1a): another text has another.
fn tag(text: &[u8]) -> String {
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{hash:016x}\"")
}
