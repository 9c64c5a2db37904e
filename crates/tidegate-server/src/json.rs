//! Writes answers as JSON.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// The media type of every answer that is no error.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Writes a value as JSON.
pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Our answers are structs with string keys and finite numbers, so serializing them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Answers 200 with a value as JSON.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    let mut response = bytes(value).into_response();
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
