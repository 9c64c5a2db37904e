//! Puts a text into a header.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Sets a header; a text that no header can carry, such as one with a line break, leaves it out.
pub fn insert(out: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        out.insert(name, value);
    }
}
