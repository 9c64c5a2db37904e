//! Envoy's messages, as far as they are read and written here. Unknown fields are skipped.
//!
//! A report of a proxy's buckets has no type: `quota/reports.rs` decodes it bucket by bucket.
//!
//! # Source
//! The files in `reflection/envoy`: packages `envoy.service.ratelimit.v3`, `envoy.extensions.common.ratelimit.v3`,
//! `envoy.config.core.v3`, `envoy.service.rate_limit_quota.v3` and `envoy.type.v3`.

use prost::{Message, Oneof};
use prost_types::{Duration, Struct};

/// What `ShouldRateLimit` is asked.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    /// 0: not given.
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<RateLimitOverride>,
    /// Wins over that of the request.
    #[prost(message, optional, tag = "3")]
    pub(super) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(super) is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `RateLimitDescriptor.RateLimitOverride`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    /// The numbers of a [`Unit`], and any other that a caller sends.
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
}

/// What `ShouldRateLimit` answers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    /// A [`RateLimitCode`].
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    /// As many as the request has descriptors.
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(super) request_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) raw_body: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub(super) dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.Code`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum RateLimitCode {
    Ok = 1,
    OverLimit = 2,
}

/// `RateLimitResponse.DescriptorStatus`
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct DescriptorStatus {
    /// A [`RateLimitCode`].
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    /// A [`Unit`].
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

/// `RateLimitResponse.RateLimit.Unit`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `RateLimitQuotaResponse.BucketAction.bucket_action`
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(super) enum BucketAction {
    #[prost(message, tag = "2")]
    QuotaAssignmentAction(QuotaAssignmentAction),
    #[prost(message, tag = "3")]
    AbandonAction(AbandonAction),
}

/// `RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct QuotaAssignmentAction {
    #[prost(message, optional, tag = "2")]
    pub(super) assignment_time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit_strategy: Option<RateLimitStrategy>,
}

/// `RateLimitQuotaResponse.BucketAction.AbandonAction`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct AbandonAction {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct RateLimitStrategy {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    pub(super) strategy: Option<Strategy>,
}

/// `RateLimitStrategy.strategy`
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(super) enum Strategy {
    /// A [`BlanketRule`].
    #[prost(int32, tag = "1")]
    BlanketRule(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// `RateLimitStrategy.BlanketRule`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum BlanketRule {
    AllowAll = 0,
    DenyAll = 1,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(super) max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(super) fill_interval: Option<Duration>,
}

/// A crate with all of Envoy's messages is the judge.
#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3 as config;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor;
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response as quota;
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action;
    use envoy_types::pb::envoy::service::ratelimit::v3 as service;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit;
    use envoy_types::pb::envoy::r#type::v3 as types;
    use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy;
    use envoy_types::pb::google::protobuf;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use proptest::sample::Index;
    use proptest::{option, strategy};
    use prost_types::Value;
    use prost_types::value::Kind;

    use super::super::framing::are_one;
    use super::*;

    fn entry() -> (Entry, rate_limit_descriptor::Entry) {
        let (key, value) = ("user".to_owned(), "anna".to_owned());
        (Entry { key: key.clone(), value: value.clone() }, rate_limit_descriptor::Entry { key, value })
    }

    /// A unit that no version has.
    fn limit() -> (RateLimitOverride, rate_limit_descriptor::RateLimitOverride) {
        let (requests_per_unit, unit) = (7, -99);
        (
            RateLimitOverride { requests_per_unit, unit },
            rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit },
        )
    }

    fn descriptor() -> (RateLimitDescriptor, common::RateLimitDescriptor) {
        let ours = RateLimitDescriptor {
            entries: vec![entry().0; 2],
            limit: Some(limit().0),
            hits_addend: Some(u64::MAX),
            is_negative_hits: true,
        };
        let theirs = common::RateLimitDescriptor {
            entries: vec![entry().1; 2],
            limit: Some(limit().1),
            hits_addend: Some(protobuf::UInt64Value { value: u64::MAX }),
            is_negative_hits: true,
        };
        (ours, theirs)
    }

    fn header() -> (HeaderValue, config::HeaderValue) {
        let (key, value) = ("retry-after".to_owned(), "3".to_owned());
        (
            HeaderValue { key: key.clone(), value: value.clone() },
            config::HeaderValue { key, value, raw_value: Vec::new() },
        )
    }

    fn current_limit() -> (RateLimit, rate_limit_response::RateLimit) {
        let (requests_per_unit, unit, name) = (100, 7, "per-user".to_owned());
        (
            RateLimit { requests_per_unit, unit, name: name.clone() },
            rate_limit_response::RateLimit { requests_per_unit, unit, name },
        )
    }

    fn status() -> (DescriptorStatus, rate_limit_response::DescriptorStatus) {
        let ours = DescriptorStatus {
            code: 2,
            current_limit: Some(current_limit().0),
            limit_remaining: 5,
            duration_until_reset: Some(Duration { seconds: 60, nanos: 1 }),
        };
        let theirs = rate_limit_response::DescriptorStatus {
            code: 2,
            current_limit: Some(current_limit().1),
            limit_remaining: 5,
            duration_until_reset: Some(protobuf::Duration { seconds: 60, nanos: 1 }),
            quota: None,
        };
        (ours, theirs)
    }

    fn token_bucket() -> (TokenBucket, types::TokenBucket) {
        let ours = TokenBucket {
            max_tokens: 10,
            tokens_per_fill: Some(3),
            fill_interval: Some(Duration { seconds: 2, nanos: 4 }),
        };
        let theirs = types::TokenBucket {
            max_tokens: 10,
            tokens_per_fill: Some(protobuf::UInt32Value { value: 3 }),
            fill_interval: Some(protobuf::Duration { seconds: 2, nanos: 4 }),
        };
        (ours, theirs)
    }

    /// Both strategies that are written.
    fn strategies() -> [(RateLimitStrategy, types::RateLimitStrategy); 2] {
        let (ours, theirs) = token_bucket();
        let blanket = (Strategy::BlanketRule(1), rate_limit_strategy::Strategy::BlanketRule(1));
        let bucket = (Strategy::TokenBucket(ours), rate_limit_strategy::Strategy::TokenBucket(theirs));
        [blanket, bucket].map(|(ours, theirs)| {
            (RateLimitStrategy { strategy: Some(ours) }, types::RateLimitStrategy { strategy: Some(theirs) })
        })
    }

    fn assignments() -> [(QuotaAssignmentAction, bucket_action::QuotaAssignmentAction); 2] {
        strategies().map(|(ours, theirs)| {
            let ours = QuotaAssignmentAction {
                assignment_time_to_live: Some(Duration { seconds: 15, nanos: 0 }),
                rate_limit_strategy: Some(ours),
            };
            let theirs = bucket_action::QuotaAssignmentAction {
                assignment_time_to_live: Some(protobuf::Duration { seconds: 15, nanos: 0 }),
                rate_limit_strategy: Some(theirs),
            };
            (ours, theirs)
        })
    }

    #[test]
    fn an_entry_is_theirs() {
        let (ours, theirs) = entry();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_limit_of_a_descriptor_is_theirs() {
        let (ours, theirs) = limit();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_descriptor_is_theirs() {
        let (ours, theirs) = descriptor();
        are_one(&ours, &theirs);
        // A number that is there and 0 differs from none.
        let ours = RateLimitDescriptor { hits_addend: Some(0), ..ours };
        let theirs =
            common::RateLimitDescriptor { hits_addend: Some(protobuf::UInt64Value { value: 0 }), ..theirs };
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_request_is_theirs() {
        let (ours, theirs) = descriptor();
        let ours =
            RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![ours; 2], hits_addend: u32::MAX };
        let theirs = service::RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![theirs; 2],
            hits_addend: u32::MAX,
        };
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_header_is_theirs() {
        let (ours, theirs) = header();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_current_limit_is_theirs() {
        let (ours, theirs) = current_limit();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_status_is_theirs() {
        let (ours, theirs) = status();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_response_is_theirs() {
        let text = "3".to_owned();
        let value = Value { kind: Some(Kind::StringValue(text.clone())) };
        let their_value = protobuf::Value { kind: Some(protobuf::value::Kind::StringValue(text)) };
        let (ours, theirs) = header();
        let ours = RateLimitResponse {
            overall_code: 2,
            statuses: vec![status().0; 2],
            response_headers_to_add: vec![ours.clone(); 2],
            request_headers_to_add: vec![ours],
            raw_body: b"{}".to_vec(),
            dynamic_metadata: Some(Struct { fields: [("retry_after".to_owned(), value)].into() }),
        };
        let theirs = service::RateLimitResponse {
            overall_code: 2,
            statuses: vec![status().1; 2],
            response_headers_to_add: vec![theirs.clone(); 2],
            request_headers_to_add: vec![theirs],
            raw_body: b"{}".to_vec(),
            dynamic_metadata: Some(protobuf::Struct {
                fields: [("retry_after".to_owned(), their_value)].into(),
            }),
            quota: None,
        };
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_token_bucket_is_theirs() {
        let (ours, theirs) = token_bucket();
        are_one(&ours, &theirs);
    }

    #[test]
    fn a_strategy_is_theirs() {
        for (ours, theirs) in strategies() {
            are_one(&ours, &theirs);
        }
    }

    #[test]
    fn an_assignment_is_theirs() {
        for (ours, theirs) in assignments() {
            are_one(&ours, &theirs);
        }
    }

    /// The message around the action, whose bucket is written apart.
    #[derive(Clone, PartialEq, Eq, Message)]
    struct Action {
        #[prost(oneof = "BucketAction", tags = "2, 3")]
        action: Option<BucketAction>,
    }

    #[test]
    fn an_action_is_theirs() {
        let [(ours, theirs), _] = assignments();
        let assign = (
            BucketAction::QuotaAssignmentAction(ours),
            bucket_action::BucketAction::QuotaAssignmentAction(theirs),
        );
        let abandon = (
            BucketAction::AbandonAction(AbandonAction {}),
            bucket_action::BucketAction::AbandonAction(bucket_action::AbandonAction {}),
        );
        for (ours, theirs) in [assign, abandon] {
            are_one(
                &Action { action: Some(ours) },
                &quota::BucketAction { bucket_id: None, bucket_action: Some(theirs) },
            );
        }
    }

    #[test]
    fn the_numbers_are_theirs() {
        use rate_limit::Unit as TheirUnit;
        use rate_limit_response::Code;
        use rate_limit_strategy::BlanketRule as TheirRule;

        assert_eq!(RateLimitCode::Ok as i32, Code::Ok as i32);
        assert_eq!(RateLimitCode::OverLimit as i32, Code::OverLimit as i32);
        assert_eq!(BlanketRule::AllowAll as i32, TheirRule::AllowAll as i32);
        assert_eq!(BlanketRule::DenyAll as i32, TheirRule::DenyAll as i32);
        for (ours, theirs) in [
            (Unit::Unknown, TheirUnit::Unknown),
            (Unit::Second, TheirUnit::Second),
            (Unit::Minute, TheirUnit::Minute),
            (Unit::Hour, TheirUnit::Hour),
            (Unit::Day, TheirUnit::Day),
            (Unit::Month, TheirUnit::Month),
            (Unit::Year, TheirUnit::Year),
            (Unit::Week, TheirUnit::Week),
        ] {
            assert_eq!(ours as i32, theirs as i32, "{ours:?}");
        }
    }

    fn any_request() -> impl strategy::Strategy<Value = RateLimitRequest> {
        use strategy::Strategy as _;

        let entry = (".{0,9}", ".{0,9}").prop_map(|(key, value)| Entry { key, value });
        let limit = any::<(u32, i32)>()
            .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        let parts = (vec(entry, 0..4), option::of(limit), any::<Option<u64>>(), any::<bool>());
        let descriptor = parts.prop_map(|(entries, limit, hits_addend, is_negative_hits)| {
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        });
        let parts = (".{0,9}", vec(descriptor, 0..4), any::<u32>());
        parts.prop_map(|(domain, descriptors, hits_addend)| RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        })
    }

    proptest! {
        /// All fields of a request are read here, so both read the same of any bytes, or refuse them.
        #[test]
        fn bytes_near_a_request_are_read_as_theirs(
            request in any_request(),
            damage in vec((any::<Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = request.encode_to_vec();
            if !bytes.is_empty() {
                for (at, byte) in damage {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let ours = RateLimitRequest::decode(&*bytes).map(|read| read.encode_to_vec());
            let theirs = service::RateLimitRequest::decode(&*bytes).map(|read| read.encode_to_vec());
            prop_assert_eq!(ours.ok(), theirs.ok());
        }
    }
}
