//! Writes answers as JSON.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// The media type of every JSON answer that is not an error.
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

/// Answers 200 with a value as JSON.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    let mut response = bytes(value).into_response();
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
