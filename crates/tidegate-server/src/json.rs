//! Writes answers as JSON.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

/// The media type of every answer that is no error.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// More bytes than the answer to a check with two limits has, so that most answers never move while they are written.
const USUAL: usize = 1024;

/// Writes a value as JSON.
pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL);
    // Our answers are structs with string keys and finite numbers, so serializing them cannot fail.
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
