//! Answers connections that have no readable request or no place, through hyper.

use std::cell::Cell;
use std::convert::Infallible;
#[cfg(feature = "grpc")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "grpc")]
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode};
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::http_answer::server_parts::in_words;
#[cfg(feature = "grpc")]
use tokio::io::{AsyncReadExt as _, AsyncWrite};

use super::wire::Wire;
use crate::body::Response;
use crate::problem::Problem;

/// hyper answers requests only, so this is the request of a peer that sent no readable one.
const NO_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// 503: only places of the reserve are left.
pub(super) fn full() -> Response {
    let detail = "all places for connections are taken; come again in a second";
    closing(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// 408: the head took too long.
pub(super) fn late(most: Duration) -> Response {
    let detail = format!("the head of the request did not arrive within {}", in_words(most));
    closing(StatusCode::REQUEST_TIMEOUT, detail)
}

/// 400: the connection ended inside a head.
pub(super) fn cut_short() -> Response {
    let detail = "the request ends inside its head; a head ends with an empty line";
    closing(StatusCode::BAD_REQUEST, detail)
}

/// What a gRPC caller at an HTTP address is told; its proxy logs it.
const GRPC_AT_HTTP: &str =
    "this is an HTTP address and gRPC is served on server.grpc (--grpc); give the cluster that address";

pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The answer to a gRPC call at an HTTP address: UNIMPLEMENTED, in headers alone.
pub(crate) fn grpc_at_http() -> Response {
    let mut response = Response::default();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static("12"));
    headers.insert("grpc-message", HeaderValue::from_static(GRPC_AT_HTTP));
    response
}

/// Answers a peer that speaks HTTP/2, mostly a proxy that asks over gRPC, in its own protocol; else it would only see
/// a broken connection. `begun` was read already. Calls `noted` for each request.
#[cfg(feature = "grpc")]
pub(super) async fn answer_http2(wire: &Wire, begun: Bytes, noted: impl Fn()) {
    let line = &wire.0;
    let read = std::io::Cursor::new(begun).chain(Wire(Arc::clone(line)));
    let io = tokio::io::join(read, Sending(Wire(Arc::clone(line))));
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(HTTP2_STREAMS).max_header_list_size(16 << 10);
    let answering = async {
        let mut http2 = builder.handshake::<_, Bytes>(io).await.ok()?;
        let mut answered = 0;
        while let Some(Ok((request, mut respond))) = http2.accept().await {
            noted();
            answered += 1;
            if answered == HTTP2_STREAMS {
                http2.graceful_shutdown();
            }
            // An error means that the peer is gone.
            let _ = if is_grpc(&request) {
                respond.send_response(grpc_at_http().map(drop), true).map(drop)
            } else {
                let mut response = http::Response::new(());
                *response.status_mut() = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
                let sent = respond.send_response(response, false);
                sent.and_then(|mut body| {
                    body.send_data(Bytes::from_static(b"HTTP/2 is not supported here; use HTTP/1.1\n"), true)
                })
            };
        }
        Some(())
    };
    drop(tokio::time::timeout(HTTP2_LASTS, answering).await);
}

/// There is no HTTP/2 without gRPC, so the peer is told in HTTP/1.1.
#[cfg(not(feature = "grpc"))]
pub(super) async fn answer_http2(wire: &Wire, _: Bytes, noted: impl Fn()) {
    noted();
    let mut wire = Wire(Arc::clone(&wire.0));
    let detail = "HTTP/2 is not supported here; use HTTP/1.1";
    answer(&mut wire, closing(StatusCode::HTTP_VERSION_NOT_SUPPORTED, detail)).await;
}

/// How many calls over HTTP/2 are refused before the connection ends.
#[cfg(feature = "grpc")]
const HTTP2_STREAMS: u32 = 100;
/// How long such a connection lasts.
#[cfg(feature = "grpc")]
const HTTP2_LASTS: Duration = Duration::from_secs(2);

/// The writing half, sent at each flush: nothing else polls the line meanwhile.
#[cfg(feature = "grpc")]
struct Sending(Wire);

#[cfg(feature = "grpc")]
impl AsyncWrite for Sending {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.0.poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.0.0.poll_send(cx)
    }
}

/// 400: plain text at a TLS address.
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
    // After the made-up request the input ends, which hyper would take for a peer that closed; `half_close` makes
    // it answer all the same. An error means that the peer is gone.
    let _ =
        http1::Builder::new().half_close(true).header_read_timeout(None).serve_connection(io, service).await;
}
