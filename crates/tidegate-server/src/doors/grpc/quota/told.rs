//! Messages to a proxy: what holds for one of its buckets.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::BucketId;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as Action, QuotaAssignmentAction,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use envoy_types::pb::envoy::r#type::v3::{RateLimitStrategy, TokenBucket};
use envoy_types::pb::google::protobuf::{self, UInt32Value};

use super::pools::Pace;

/// The part that a bucket of a proxy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) pace: Pace,
    pub(super) burst: u32,
}

/// What holds for a bucket of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Everything may pass.
    Allow,
    /// Nothing may pass.
    Deny,
    /// This may.
    Part(Part),
    /// The proxy is to forget the bucket.
    Abandon,
}

impl Told {
    /// Writes what holds for a bucket, for so long.
    pub(super) fn action(self, bucket: &[Entry], ttl: Duration) -> BucketAction {
        let pairs = bucket.iter().map(|entry| (entry.key.clone(), entry.value.clone()));
        let strategy = match self {
            Self::Allow => Some(Strategy::BlanketRule(BlanketRule::AllowAll as i32)),
            Self::Deny => Some(Strategy::BlanketRule(BlanketRule::DenyAll as i32)),
            Self::Part(part) => Some(Strategy::TokenBucket(part.token_bucket())),
            Self::Abandon => None,
        };
        let action = match strategy {
            None => Action::AbandonAction(AbandonAction {}),
            Some(strategy) => Action::QuotaAssignmentAction(QuotaAssignmentAction {
                assignment_time_to_live: Some(duration(ttl.as_secs(), 0)),
                rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
            }),
        };
        BucketAction { bucket_id: Some(BucketId { bucket: pairs.collect() }), bucket_action: Some(action) }
    }
}

impl Part {
    fn token_bucket(self) -> TokenBucket {
        TokenBucket {
            max_tokens: self.burst,
            tokens_per_fill: Some(UInt32Value { value: self.pace.tokens }),
            // Envoy takes two buckets for the same if they differ in the seconds alone, and keeps the old one; and it leaves the nanoseconds out
            // of what it counts by. So they say which interval it is.
            fill_interval: Some(duration(self.pace.seconds(), i32::from(self.pace.power))),
        }
    }
}

fn duration(seconds: u64, nanos: i32) -> protobuf::Duration {
    // At most ten thousand million seconds.
    protobuf::Duration { seconds: seconds as i64, nanos }
}
