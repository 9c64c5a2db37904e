//! The bodies of requests and answers over HTTP, and the plainest answers: text, JSON, and none.

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

pub(crate) mod json {
    //! Writes answers as JSON.

    use std::borrow::Cow;

    use http::StatusCode;
    use http::header::HeaderValue;
    use serde::Serialize;
    use tidegate::visible;

    use super::{Response, answer};

    pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

    /// A capacity larger than the answer to a check with two limits, so that most answers are written without a
    /// reallocation.
    const USUAL: usize = 1024;

    /// Serialises a value as JSON.
    pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(USUAL);
        // All answers are structs with string keys and finite numbers, so serialising them cannot fail.
        match serde_json::to_writer(&mut bytes, value) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// Appends a value as JSON.
    pub(crate) fn write(out: &mut Vec<u8>, value: &impl Serialize) {
        // As in [`bytes`], this cannot fail.
        let _ = serde_json::to_writer(out, value);
    }

    /// Answers 200 with what may hold text of strangers: characters that terminals act on, or that are invisible, are
    /// `\uXXXX`, which means the same to programs.
    pub(crate) fn shown(value: &impl Serialize) -> Response {
        let bytes = bytes(value);
        let escaped = match std::str::from_utf8(&bytes).map(visible::json) {
            Ok(Cow::Owned(escaped)) => escaped.into_bytes(),
            Ok(Cow::Borrowed(_)) | Err(_) => bytes,
        };
        answer(StatusCode::OK, JSON, escaped)
    }

    /// Answers 200 with a value as JSON.
    pub(crate) fn ok(value: &impl Serialize) -> Response {
        answer(StatusCode::OK, JSON, bytes(value))
    }
}
