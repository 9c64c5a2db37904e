//! A buffer for the value of a header.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

/// Enough for a list of two limits, unless their names are long.
const USUAL: usize = 128;

/// A header value that is written piece by piece and consists of printable ASCII.
#[derive(Debug, Default)]
pub(super) struct Field(SmallVec<[u8; USUAL]>);

impl Field {
    #[inline]
    pub(super) fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) {
        self.text(itoa::Buffer::new().format(number));
    }

    /// Begins another item of a list.
    #[inline]
    pub(super) fn next_item(&mut self) {
        if !self.0.is_empty() {
            self.text(", ");
        }
    }

    /// Appends a string of a structured field, in quotes.
    #[inline]
    pub(super) fn string(&mut self, text: &str) {
        self.0.push(b'"');
        let is_plain = |byte: u8| !matches!(byte, b'"' | b'\\');
        if text.bytes().all(is_plain) {
            self.text(text);
        } else {
            for byte in text.bytes() {
                if !is_plain(byte) {
                    self.0.push(b'\\');
                }
                self.0.push(byte);
            }
        }
        self.0.push(b'"');
    }

    /// Appends a parameter to an item: the key and its number.
    #[inline]
    pub(super) fn parameter(&mut self, key: &str, number: u64) {
        self.text(key);
        self.number(number);
    }

    /// Sets a header to the value.
    pub(super) fn insert(&self, name: HeaderName, out: &mut HeaderMap) {
        // Only bytes that a header can carry are ever written.
        if let Ok(value) = HeaderValue::from_bytes(&self.0) {
            out.insert(name, value);
        }
    }
}
