//! The bodies of requests and answers over HTTP, and the plainest answers.

use std::error::Error;

use futures_util::stream::{Stream, TryStreamExt as _};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};

/// Why a body ended early.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

/// A body of any kind. By default it is empty.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// An answer with a body of any kind.
pub(crate) type Response = http::Response<Body>;

/// Returns a body that is there as a whole.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that is made while it is sent. An error ends the connection.
pub(crate) fn streamed<P, E>(pieces: impl Stream<Item = Result<P, E>> + Send + 'static) -> Body
where
    P: Into<Bytes> + 'static,
    E: Into<BodyError> + 'static,
{
    StreamBody::new(pieces.map_ok(|piece| Frame::data(piece.into())).map_err(Into::into)).boxed_unsync()
}

/// Answers with a body of the given content type.
pub(crate) fn answer(status: StatusCode, kind: HeaderValue, bytes: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Answers with a text for people.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response {
    answer(status, HeaderValue::from_static("text/plain; charset=utf-8"), text)
}

/// Answers without a body.
pub(crate) fn bare(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}
