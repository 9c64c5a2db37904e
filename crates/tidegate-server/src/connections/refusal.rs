//! Answers to what is no request, and the end of a connection.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, ReadBuf};

use super::wire::Wire;
use crate::doors::http::Problem;

/// hyper answers requests only, so whoever did not get as far as sending one is answered as if he had sent this one.
const NO_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// What is read at once of what is not wanted any more.
const PIECE: usize = 16 * 1024;

/// 503: no place is left but those of the reserve.
pub(super) fn full() -> Response {
    let detail = "all places for connections are taken; come again in a second";
    closing(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// 408: the head took too long.
pub(super) fn late(most: std::time::Duration) -> Response {
    let detail = format!("the head of the request did not arrive within {} ms", most.as_millis());
    closing(StatusCode::REQUEST_TIMEOUT, detail)
}

/// 400: the connection ended inside a head.
pub(super) fn cut_short() -> Response {
    let detail = "the request ends inside its head; a head ends with an empty line";
    closing(StatusCode::BAD_REQUEST, detail)
}

/// 505: HTTP/2 was spoken.
pub(super) fn other_version() -> Response {
    closing(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not spoken here; use HTTP/1.1")
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

/// Answers whoever sent no request that could be read, after all answers that he has coming.
pub(super) async fn answer(wire: &mut Wire, response: Response) {
    let response = Cell::new(Some(response));
    let service = service_fn(move |_| {
        let response = response.take().unwrap_or_default();
        async move { Ok::<_, Infallible>(response) }
    });
    let io = TokioIo::new(tokio::io::join(NO_REQUEST, wire));
    // The request of ours ends where our bytes end; that is no reason not to answer it. An error is the peer's, who is gone.
    let _ =
        http1::Builder::new().half_close(true).header_read_timeout(None).serve_connection(io, service).await;
}

/// Closes in such a way that the last answer, which is sent, arrives: says that no more comes, and reads what the peer still sends until it
/// closes too, or until this many bytes came.
///
/// Closing a socket with unread bytes resets the connection, and a reset takes back what the peer has not read yet. A proxy
/// then reports a broken server instead of the answer, and stops asking it.
///
/// # Errors
/// What the socket said: the peer is gone.
pub(super) async fn linger(wire: &mut Wire, most: usize) -> io::Result<()> {
    poll_fn(|cx| wire.line.poll_close(cx)).await?;
    let mut piece = vec![0; PIECE];
    let mut left = most;
    poll_fn(|cx| {
        loop {
            let mut buffer = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut wire.read).poll_read(cx, &mut buffer))?;
            let read = buffer.filled().len();
            left = left.saturating_sub(read);
            if read == 0 || left == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}
