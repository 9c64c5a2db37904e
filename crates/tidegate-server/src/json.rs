//! Writes answers as JSON.

use std::borrow::Cow;

use http::StatusCode;
use http::header::HeaderValue;
use serde::Serialize;
use tidegate::visible;

use crate::body::{self, Response};

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
    body::answer(StatusCode::OK, JSON, escaped)
}

/// Answers 200 with a value as JSON.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    body::answer(StatusCode::OK, JSON, bytes(value))
}
