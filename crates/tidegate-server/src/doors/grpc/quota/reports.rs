//! Decodes a report: its domain, then bucket by bucket.
//!
//! A megabyte may have a hundred thousand buckets, which decoded together take fifty times as much. So each is
//! decoded in its turn, into the key by which it is looked up: a map of its pairs would cost as much as all further
//! work on them.
//!
//! # Source
//! "Protocol Buffers: Encoding": records of a field number, a wire type and a value, in any order.

use ::bytes::{Buf as _, Bytes, BytesMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, bytes, decode_key, skip_field, string, uint64};

use super::super::envoy::Entry;
use super::super::framing::{Code, Status};

/// Fields of `RateLimitQuotaUsageReports`.
const DOMAIN: u32 = 1;
const USAGES: u32 = 2;
/// Fields of `BucketQuotaUsage`.
const BUCKET_ID: u32 = 1;
const ALLOWED: u32 = 3;
const DENIED: u32 = 4;
/// The field of `BucketId` with its pairs.
const PAIRS: u32 = 1;
/// Fields of a pair.
const KEY: u32 = 1;
const VALUE: u32 = 2;

#[derive(Debug)]
pub(super) struct Report {
    /// The domain; empty if there is none.
    pub(super) domain: String,
    rest: Bytes,
}

/// The report about one bucket.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// The encoded `BucketId`, repeated by the answer.
    pub(super) id: Bytes,
    /// The pairs, sorted by key, with each key once.
    pub(super) pairs: Vec<Entry>,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl Report {
    /// Reads the domain, and skips the buckets.
    ///
    /// # Errors
    /// [`Code::Internal`] for bytes that are no message.
    pub(super) fn read(message: &Bytes) -> Result<Self, Status> {
        let (mut domain, mut left) = (String::new(), message.clone());
        while left.has_remaining() {
            let context = DecodeContext::default();
            decode_key(&mut left)
                .and_then(|(field, wire)| match field {
                    DOMAIN => string::merge(wire, &mut domain, &mut left, context),
                    _ => skip_field(wire, field, &mut left, context),
                })
                .map_err(|error| no_report(&error))?;
        }
        Ok(Self { domain, rest: message.clone() })
    }

    /// Decodes the next bucket.
    ///
    /// # Errors
    /// [`Code::Internal`] for bytes that are no message.
    pub(super) fn next(&mut self) -> Result<Option<Usage>, Status> {
        let left = &mut self.rest;
        while left.has_remaining() {
            let (field, wire) = decode_key(left).map_err(|error| no_report(&error))?;
            if (field, wire) == (USAGES, WireType::LengthDelimited) {
                let usage = piece(wire, left).and_then(Usage::read);
                return usage.map(Some).map_err(|error| no_report(&error));
            }
            skip_field(wire, field, left, DecodeContext::default()).map_err(|error| no_report(&error))?;
        }
        Ok(None)
    }
}

impl Usage {
    fn read(mut left: Bytes) -> Result<Self, DecodeError> {
        let (mut usage, mut parts) = (Self::default(), BytesMut::new());
        while left.has_remaining() {
            let context = DecodeContext::default();
            let (field, wire) = decode_key(&mut left)?;
            match field {
                BUCKET_ID => {
                    let id = piece(wire, &mut left)?;
                    // A field that holds a message may come in several parts, which are merged (protobuf, "Last One
                    // Wins").
                    if usage.id.is_empty() {
                        usage.id = id;
                    } else {
                        parts.extend_from_slice(&id);
                    }
                }
                ALLOWED => uint64::merge(wire, &mut usage.allowed, &mut left, context)?,
                DENIED => uint64::merge(wire, &mut usage.denied, &mut left, context)?,
                _ => skip_field(wire, field, &mut left, context)?,
            }
        }
        if !parts.is_empty() {
            usage.id = [&usage.id[..], &parts].concat().into();
        }
        usage.pairs = pairs(usage.id.clone())?;
        Ok(usage)
    }
}

fn pairs(mut left: Bytes) -> Result<Vec<Entry>, DecodeError> {
    let mut pairs = Vec::new();
    while left.has_remaining() {
        let (field, wire) = decode_key(&mut left)?;
        if field == PAIRS {
            pairs.push(pair(piece(wire, &mut left)?)?);
        } else {
            skip_field(wire, field, &mut left, DecodeContext::default())?;
        }
    }
    pairs.sort_by(|one: &Entry, other| one.key.cmp(&other.key));
    // The last pair of a key wins.
    pairs.dedup_by(|later, earlier| {
        let is_again = later.key == earlier.key;
        if is_again {
            std::mem::swap(&mut later.value, &mut earlier.value);
        }
        is_again
    });
    Ok(pairs)
}

fn pair(mut left: Bytes) -> Result<Entry, DecodeError> {
    let mut entry = Entry::default();
    while left.has_remaining() {
        let context = DecodeContext::default();
        let (field, wire) = decode_key(&mut left)?;
        match field {
            KEY => string::merge(wire, &mut entry.key, &mut left, context)?,
            VALUE => string::merge(wire, &mut entry.value, &mut left, context)?,
            _ => skip_field(wire, field, &mut left, context)?,
        }
    }
    Ok(entry)
}

fn piece(wire: WireType, left: &mut Bytes) -> Result<Bytes, DecodeError> {
    let mut piece = Bytes::new();
    bytes::merge(wire, &mut piece, left, DecodeContext::default())?;
    Ok(piece)
}

fn no_report(error: &DecodeError) -> Status {
    Status::new(Code::Internal, format!("the message is not a RateLimitQuotaUsageReports: {error}"))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
    use prost::Message as _;

    use super::*;

    fn pairs_of(usage: &Usage) -> Vec<(&str, &str)> {
        usage.pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect()
    }

    #[test]
    fn fields_come_in_any_order_and_unknown_ones_are_left_out() {
        let usage = |name: &str| BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket: [(name.to_owned(), "v".to_owned())].into() }),
            num_requests_allowed: u64::MAX,
            ..BucketQuotaUsage::default()
        };
        let part = |domain: &str, usages: Vec<BucketQuotaUsage>| {
            let domain = domain.to_owned();
            RateLimitQuotaUsageReports { domain, bucket_quota_usages: usages }.encode_to_vec()
        };
        // The last of several domains wins; field 99 is an unknown number.
        let message = [
            part("", vec![usage("a")]),
            part("first", vec![]),
            vec![0x98, 6, 1],
            part("d", vec![usage("b")]),
        ];
        let mut report = Report::read(&Bytes::from(message.concat())).unwrap();
        assert_eq!(report.domain, "d");
        for name in ["a", "b"] {
            let (read, written) = (report.next().unwrap().unwrap(), usage(name));
            assert_eq!(pairs_of(&read), [(name, "v")]);
            assert_eq!(read.id, written.bucket_id.unwrap().encode_to_vec());
            assert_eq!((read.allowed, read.denied), (u64::MAX, 0));
        }
        assert_eq!(report.next().unwrap(), None);
        // A bucket whose length exceeds the message, and bytes that are not a bucket.
        assert!(Report::read(&Bytes::from_static(b"\x12\x7fa")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x0a\x01\xff")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x12\x01\xff")).unwrap().next().is_err());
    }

    /// A bucket that comes in two parts and has one key twice, both decoded as the protocol demands.
    #[test]
    fn a_bucket_is_what_its_parts_say_together() {
        let pair = |key: u8, value: u8| [0x0a, 6, 0x0a, 1, key, 0x12, 1, value];
        let first = [&[0x0a, 16][..], &pair(b'b', b'1'), &pair(b'a', b'2')].concat();
        let second = [&[0x0a, 8][..], &pair(b'b', b'3'), &[0x20, 7]].concat();
        let message = [first, second].concat();
        let usage = Usage::read(message.clone().into()).unwrap();
        assert_eq!(pairs_of(&usage), [("a", "2"), ("b", "3")]);
        assert_eq!((usage.allowed, usage.denied), (0, 7));
        let theirs = BucketQuotaUsage::decode(&message[..]).unwrap().bucket_id.unwrap();
        assert_eq!(theirs.bucket.len(), 2);
        assert_eq!(BucketId::decode(usage.id).unwrap(), theirs);
    }
}
