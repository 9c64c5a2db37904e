//! A call above HTTP/2: messages in its body, and the status with which it ends, in its trailers.
//!
//! A message has a byte for compression, four bytes for the length, then the message itself.
//!
//! # Source
//! "gRPC over HTTP2": Length-Prefixed-Message, and the section on responses: `grpc-status` in decimal, `grpc-message`
//! percent-encoded.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use prost::Message;

const PREFIX: usize = 5;
/// The bytes of usual answers: about ten statuses.
const USUAL: usize = 512;

/// The longest message, in bytes. Far above what a client can make a proxy put into one: a proxy that fails open
/// lets a request pass on status 8, so no client may provoke it by long headers.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Whether a content type is gRPC with protocol buffers.
pub(super) fn is_grpc(kind: &[u8]) -> bool {
    match kind.strip_prefix(b"application/grpc") {
        Some([]) => true,
        Some([b';', ..]) => true,
        Some(rest) => rest == b"+proto" || rest.starts_with(b"+proto;"),
        None => false,
    }
}

/// Returns the message in a complete body that holds exactly one.
///
/// # Errors
/// [`Code::Unimplemented`] if it is compressed, [`Code::Internal`] if it is not exactly one.
pub(super) fn message(mut body: Bytes) -> Result<Bytes, Status> {
    let Some(prefix) = body.first_chunk::<PREFIX>() else {
        let message =
            format!("the body has {} bytes and no message; a message begins with five bytes", body.len());
        return Err(Status::new(Code::Internal, message));
    };
    let [compressed, length @ ..] = *prefix;
    match compressed {
        0 => {}
        1 => {
            let message = "compressed messages are not read here; send them with grpc-encoding identity";
            return Err(Status::new(Code::Unimplemented, message));
        }
        other => {
            let message = format!("the first byte of a message is 0 or 1, and this one is {other}");
            return Err(Status::new(Code::Internal, message));
        }
    }
    let (length, there) = (u32::from_be_bytes(length) as usize, body.len() - PREFIX);
    if length != there {
        let message = format!("the message says that it has {length} bytes, and {there} came");
        return Err(Status::new(Code::Internal, message));
    }
    Ok(body.split_off(PREFIX))
}

/// Returns the length of the first message with its prefix, if it is complete.
///
/// # Errors
/// [`Code::ResourceExhausted`] beyond [`MAX_MESSAGE`].
pub(super) fn first(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some([_, length @ ..]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = PREFIX + u32::from_be_bytes(*length) as usize;
    bounded(length)?;
    Ok((bytes.len() >= length).then_some(length))
}

/// Checks a body, or what came of it, against [`MAX_MESSAGE`].
///
/// # Errors
/// [`Code::ResourceExhausted`] if it is longer.
pub(super) fn bounded(length: usize) -> Result<(), Status> {
    if length <= PREFIX + MAX_MESSAGE {
        return Ok(());
    }
    let message = format!("the message is too long; at most {MAX_MESSAGE} bytes are read");
    Err(Status::new(Code::ResourceExhausted, message))
}

/// Writes the body of an answer, in one allocation.
pub(super) fn body(message: &impl Message) -> Bytes {
    // Ordinary answers go to the stack, without a capacity check for each byte, and are not measured before.
    let mut bytes = [0; USUAL];
    let mut room = &mut bytes[PREFIX..];
    if message.encode(&mut room).is_ok() {
        let left = room.len();
        let length = USUAL - PREFIX - left;
        bytes[1..PREFIX].copy_from_slice(&(length as u32).to_be_bytes());
        return Bytes::copy_from_slice(&bytes[..PREFIX + length]);
    }
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    // An answer is bounded far below 4 GiB.
    out.put_u32(length as u32);
    // Cannot fail: there is enough room.
    let _ = message.encode(&mut out);
    out.freeze()
}

/// Begins a body that is written piece by piece, until [`close`].
pub(super) fn open() -> BytesMut {
    BytesMut::zeroed(PREFIX)
}

/// Ends what [`open`] began.
pub(super) fn close(mut out: BytesMut) -> Bytes {
    // An answer is bounded far below 4 GiB.
    let length = out.len().saturating_sub(PREFIX) as u32;
    if let Some(prefix) = out.get_mut(1..PREFIX) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
    out.freeze()
}

/// Asserts that a message of ours and one of another crate are one: the same bytes, and those of each are read as the
/// other.
#[cfg(test)]
pub(super) fn are_one<O, T>(ours: &O, theirs: &T)
where
    O: Message + Default + PartialEq + std::fmt::Debug,
    T: Message + Default + PartialEq + std::fmt::Debug,
{
    let (bytes, their_bytes) = (ours.encode_to_vec(), theirs.encode_to_vec());
    assert_eq!(bytes, their_bytes);
    assert_eq!(O::decode(&*their_bytes).as_ref(), Ok(ours));
    assert_eq!(T::decode(&*bytes).as_ref(), Ok(theirs));
}

// The status.

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
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: &'static [u8]) -> Option<Code> {
        message(Bytes::from_static(bytes)).err().map(|status| status.code)
    }

    #[test]
    fn a_body_is_one_message() {
        assert_eq!(message(Bytes::from_static(b"\0\0\0\0\x02hi")), Ok(Bytes::from_static(b"hi")));
        assert_eq!(message(Bytes::from_static(b"\0\0\0\0\0")), Ok(Bytes::new()));
        assert_eq!(code(b""), Some(Code::Internal));
        assert_eq!(code(b"\0\0\0\0"), Some(Code::Internal));
        assert_eq!(code(b"\0\0\0\0\x02h"), Some(Code::Internal));
        assert_eq!(code(b"\0\0\0\0\x01hi"), Some(Code::Internal), "a second one behind it");
        assert_eq!(code(b"\0\xff\xff\xff\xffhi"), Some(Code::Internal));
        assert_eq!(code(b"\x01\0\0\0\x02hi"), Some(Code::Unimplemented));
        assert_eq!(code(b"\x02\0\0\0\x02hi"), Some(Code::Internal));
        assert!(bounded(MAX_MESSAGE + PREFIX).is_ok() && bounded(MAX_MESSAGE + PREFIX + 1).is_err());
    }

    #[test]
    fn content_types() {
        for (kind, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(kind.as_bytes()), is, "{kind}");
        }
    }

    #[test]
    fn a_message_is_one_line_of_ascii() {
        let response = Status::new(Code::InvalidArgument, "50 % of\n\"ä\"").response();
        assert_eq!(response.headers()["grpc-status"], "3");
        assert_eq!(response.headers()["grpc-message"], "50 %25 of%0A\"%C3%A4\"");
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }
}
