//! Repairs invalid UTF-8 in the strings of a call. A proxy puts headers of its client into them, byte by byte.
//!
//! Envoy sends such bytes unchanged, and lets the request pass if it is told that its message cannot be decoded.
//! Without the repair, a single such byte in a header that makes a key would evade the limit. Each invalid byte becomes
//! a question mark.

use std::str::from_utf8;

/// The type of a field's content.
#[derive(Clone, Copy)]
enum Shape {
    Call,
    Descriptor,
    Entry,
    Text,
    Other,
}

impl Shape {
    const fn of(self, field: u64) -> Self {
        match (self, field) {
            (Self::Call, 1) | (Self::Entry, 1 | 2) => Self::Text,
            (Self::Call, 2) => Self::Descriptor,
            (Self::Descriptor, 1) => Self::Entry,
            _ => Self::Other,
        }
    }
}

/// Replaces the invalid bytes in the strings of a call, in place. Stops at bytes that are not a message, which decoding
/// then reports.
pub(super) fn repair_utf8(call: &mut [u8]) {
    walk(call, Shape::Call);
}

fn walk(mut bytes: &mut [u8], shape: Shape) {
    while let Some(key) = varint(&mut bytes) {
        let length = match key & 7 {
            0 => {
                if varint(&mut bytes).is_none() {
                    return;
                }
                continue;
            }
            1 => Some(8),
            2 => varint(&mut bytes),
            5 => Some(4),
            _ => return,
        };
        let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else { return };
        let Some((field, rest)) = bytes.split_at_mut_checked(length) else { return };
        match shape.of(key >> 3) {
            Shape::Text if key & 7 == 2 => text(field),
            inner @ (Shape::Descriptor | Shape::Entry) if key & 7 == 2 => walk(field, inner),
            _ => {}
        }
        bytes = rest;
    }
}

/// Reads a varint of up to ten bytes, and advances past it.
fn varint(bytes: &mut &mut [u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..bytes.len().min(10) {
        let byte = bytes[at];
        number |= u64::from(byte & 0x7f) << (7 * at as u32).min(63);
        if byte < 0x80 {
            *bytes = std::mem::take(bytes).split_at_mut(at + 1).1;
            return Some(number);
        }
    }
    None
}

fn text(bytes: &mut [u8]) {
    let mut from = 0;
    while let Err(error) = from_utf8(&bytes[from..]) {
        let at = from + error.valid_up_to();
        from = error.error_len().map_or(bytes.len(), |length| at + length);
        bytes[at..from].fill(b'?');
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    #[test]
    fn bytes_that_are_no_text_count_as_question_marks() {
        // The domain "d\xff", an entry "k" with the value "a\xc3(\xe2\x82", the number 1, and an unknown field.
        let mut call =
            b"\x0a\x02d\xff\x12\x0c\x0a\x0a\x0a\x01k\x12\x05a\xc3(\xe2\x82\x18\x01\x52\x01\xff".to_vec();
        assert!(RateLimitRequest::decode(&call[..]).is_err());
        repair_utf8(&mut call);
        let read = RateLimitRequest::decode(&call[..]).unwrap();
        assert_eq!((&*read.domain, read.hits_addend), ("d?", 1));
        assert_eq!(read.descriptors[0].entries[0].value, "a?(??");
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_what_can_be_read_stays(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let before = RateLimitRequest::decode(&bytes[..]).ok();
            repair_utf8(&mut bytes);
            if let Some(before) = before {
                prop_assert_eq!(RateLimitRequest::decode(&bytes[..]).ok(), Some(before));
            }
        }
    }
}
