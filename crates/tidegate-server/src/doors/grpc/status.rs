//! The status with which a call ends.
//!
//! # Source
//! "gRPC over HTTP2", the section on responses: `grpc-status` in decimal, `grpc-message` percent-encoded.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    /// Returns the name in the gRPC specification.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    /// A message for people.
    pub(super) message: Cow<'static, str>,
}

/// The content type of calls and answers.
pub(super) const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The bytes of a message that are escaped: all but printable ASCII, and the escape character.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

impl Status {
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns whether the call itself is wrong, so that the same call fails again.
    pub(super) const fn is_the_callers(&self) -> bool {
        matches!(
            self.code,
            Code::InvalidArgument
                | Code::Unauthenticated
                | Code::PermissionDenied
                | Code::NotFound
                | Code::ResourceExhausted
                | Code::Unimplemented
                | Code::Internal
        )
    }

    /// The answer in headers alone.
    pub(super) fn response(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, CONTENT);
        self.write(headers);
        response
    }

    /// Returns the trailers of a call that was answered in part.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        self.write(&mut trailers);
        trailers
    }

    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(STATUS, HeaderValue::from(self.code as u16));
        let message = percent_encode(self.message.as_bytes(), ESCAPED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(MESSAGE, message);
        }
    }
}

/// Returns the trailers of a call that succeeded.
pub(super) fn ok() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_ascii() {
        let response = Status::new(Code::InvalidArgument, "50 % of\n\"ä\"").response();
        assert_eq!(response.headers()["grpc-status"], "3");
        assert_eq!(response.headers()["grpc-message"], "50 %25 of%0A\"%C3%A4\"");
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }
}
