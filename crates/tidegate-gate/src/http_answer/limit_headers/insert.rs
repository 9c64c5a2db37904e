//! Sets a header to a text.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Sets a header. If the text is not a valid header value, for example because of a line break, the header is omitted.
pub fn insert(out: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        out.insert(name, value);
    }
}
