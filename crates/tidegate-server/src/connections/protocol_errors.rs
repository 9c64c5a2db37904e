//! Answers errors of connections that have no readable request or no place, through hyper.

use std::cell::Cell;
use std::convert::Infallible;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::http_answer::server_parts::in_words;

use super::wire::Wire;
use crate::problem::Problem;

/// hyper answers requests only, so a peer that sent no readable request is answered as if it had sent this one.
const NO_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// 503: only places of the reserve are left.
pub(super) fn full() -> Response {
    let detail = "all places for connections are taken; come again in a second";
    closing(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// 408: the head of the request took too long.
pub(super) fn late(most: std::time::Duration) -> Response {
    let detail = format!("the head of the request did not arrive within {}", in_words(most));
    closing(StatusCode::REQUEST_TIMEOUT, detail)
}

/// 400: the connection ended inside a head.
pub(super) fn cut_short() -> Response {
    let detail = "the request ends inside its head; a head ends with an empty line";
    closing(StatusCode::BAD_REQUEST, detail)
}

/// 505: the peer speaks HTTP/2.
pub(super) fn other_version() -> Response {
    closing(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not supported here; use HTTP/1.1")
}

/// 400: the peer speaks plain text to a TLS address.
pub(super) fn plain_text() -> Response {
    closing(StatusCode::BAD_REQUEST, "this address is served over TLS; write https:// in place of http://")
}

fn closing(status: StatusCode, detail: impl Into<String>) -> Response {
    let mut response = Problem::new(status, detail).into_response();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Answers a peer that sent no readable request, after the answers to its earlier requests.
pub(super) async fn answer(wire: &mut Wire, response: Response) {
    let response = Cell::new(Some(response));
    let service = service_fn(move |_| {
        let response = response.take().unwrap_or_default();
        async move { Ok::<_, Infallible>(response) }
    });
    let io = TokioIo::new(tokio::io::join(NO_REQUEST, wire));
    // The made-up request is followed by an end of input, which hyper would take for a peer that closed; `half_close`
    // makes it answer all the same. An error means that the peer is gone.
    let _ =
        http1::Builder::new().half_close(true).header_read_timeout(None).serve_connection(io, service).await;
}
