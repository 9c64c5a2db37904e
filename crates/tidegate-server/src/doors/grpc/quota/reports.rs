//! A report as it came: its domain, and its buckets one after the other.
//!
//! A message of a megabyte may have a hundred thousand buckets, and read at once they would take fifty times as much. So each is read when its turn
//! comes.
//!
//! # Source
//! "Protocol Buffers: Encoding": records of a field number, a wire type and a value, in any order.

use bytes::{Buf as _, Bytes};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field, string};
use prost::{DecodeError, Message as _};

use super::super::status::{Code, Status};

/// The fields of `RateLimitQuotaUsageReports`.
const DOMAIN: u32 = 1;
const USAGES: u32 = 2;

/// A report.
#[derive(Debug)]
pub(super) struct Report {
    /// Empty where it has none.
    pub(super) domain: String,
    rest: Bytes,
}

impl Report {
    /// Reads the domain, and goes over the buckets without reading them.
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

    /// Returns the next bucket; `None` after the last.
    ///
    /// # Errors
    /// [`Code::Internal`] for bytes that are no message.
    pub(super) fn next(&mut self) -> Result<Option<BucketQuotaUsage>, Status> {
        let left = &mut self.rest;
        while left.has_remaining() {
            let (field, wire) = decode_key(left).map_err(|error| no_report(&error))?;
            if (field, wire) == (USAGES, WireType::LengthDelimited) {
                let length = decode_varint(left).map_err(|error| no_report(&error))?;
                // Not more than there is: that was seen before.
                let length = usize::try_from(length).unwrap_or(usize::MAX).min(left.len());
                let usage = BucketQuotaUsage::decode(left.split_to(length));
                return usage.map(Some).map_err(|error| no_report(&error));
            }
            skip_field(wire, field, left, DecodeContext::default()).map_err(|error| no_report(&error))?;
        }
        Ok(None)
    }
}

fn no_report(error: &DecodeError) -> Status {
    Status::new(Code::Internal, format!("the message is no RateLimitQuotaUsageReports: {error}"))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};

    use super::*;

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
        // Of several domains the last one holds; field 99 is a number.
        let message = [
            part("", vec![usage("a")]),
            part("first", vec![]),
            vec![0x98, 6, 1],
            part("d", vec![usage("b")]),
        ];
        let mut report = Report::read(&Bytes::from(message.concat())).unwrap();
        assert_eq!(report.domain, "d");
        for name in ["a", "b"] {
            assert_eq!(report.next().unwrap(), Some(usage(name)));
        }
        assert_eq!(report.next().unwrap(), None);
        // A bucket that says that it is longer than the message, and one that is none.
        assert!(Report::read(&Bytes::from_static(b"\x12\x7fa")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x0a\x01\xff")).is_err());
        assert!(Report::read(&Bytes::from_static(b"\x12\x01\xff")).unwrap().next().is_err());
    }
}
