//! Frames messages in the body of a call: a byte for compression, four bytes for the length, then the message.
//!
//! # Source
//! "gRPC over HTTP2", Length-Prefixed-Message.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

use super::status::{Code, Status};

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
}
