//! The answers to a proxy about one of its buckets.

use std::time::Duration;

use ::bytes::{Bytes, BytesMut};
use prost::encoding::{WireType, bytes, encode_key, encode_varint};
use tidegate_core::division::Bucket as Portion;

use super::super::envoy::{
    AbandonAction, BlanketRule, BucketAction, QuotaAssignmentAction, RateLimitStrategy, Strategy, TokenBucket,
};
use super::pools::TokenPace;

/// The field of an answer with the action for a bucket.
const ACTIONS: u32 = 1;

/// The field of such an action with the bucket.
const BUCKET_ID: u32 = 1;

/// The part of a limit that a bucket of a proxy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AssignedPart {
    pub(super) pace: TokenPace,
    pub(super) burst: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    Allow,
    Deny,
    /// As many requests may pass.
    Part(AssignedPart),
    /// The proxy must forget the bucket.
    Abandon,
}

impl Assignment {
    /// Appends the assignment, valid for `ttl`. `id`: the report's encoded `BucketId`.
    pub(super) fn write(self, id: &Bytes, ttl: Duration, answer: &mut BytesMut) {
        let strategy = match self {
            Self::Allow => Some(Strategy::BlanketRule(BlanketRule::AllowAll as i32)),
            Self::Deny => Some(Strategy::BlanketRule(BlanketRule::DenyAll as i32)),
            Self::Part(part) => Some(Strategy::TokenBucket(part.token_bucket())),
            Self::Abandon => None,
        };
        let action = match strategy {
            None => BucketAction::AbandonAction(AbandonAction {}),
            Some(strategy) => BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
                assignment_time_to_live: Some(duration(ttl.as_secs(), 0)),
                rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
            }),
        };
        let length = bytes::encoded_len(BUCKET_ID, id) + action.encoded_len();
        encode_key(ACTIONS, WireType::LengthDelimited, answer);
        encode_varint(length as u64, answer);
        bytes::encode(BUCKET_ID, id, answer);
        action.encode(answer);
    }
}

impl AssignedPart {
    /// The fewest tokens of a part: rounding costs at most a hundredth.
    const FINE: u128 = 100;

    /// Returns the part that grants `requests` in the [longest](TokenPace::LONGEST) interval, in an interval of at least
    /// 10 to the `power` seconds; `None` below one token. Tokens beyond `u32::MAX` are dropped.
    pub(super) fn of(requests: u128, burst: u64, power: u8) -> Option<Self> {
        let tokens = |power: u8| requests / 10_u128.pow(u32::from(TokenPace::LONGEST.saturating_sub(power)));
        let power = (power..TokenPace::LONGEST)
            .find(|power| tokens(*power) >= Self::FINE)
            .unwrap_or(TokenPace::LONGEST);
        let pace = TokenPace { tokens: u32::try_from(tokens(power)).unwrap_or(u32::MAX), power };
        let burst = u32::try_from(burst).unwrap_or(u32::MAX);
        (pace.tokens > 0 && burst > 0).then_some(Self { pace, burst })
    }

    /// Returns whether `by` differs by enough to be sent in place of this part.
    pub(super) fn is_worth_replacing(self, by: Self) -> bool {
        let power = self.pace.power.max(by.pace.power);
        let portion = |part: Self| Portion {
            rate: u64::from(part.pace.tokens).saturating_mul(10_u64.pow(u32::from(power - part.pace.power))),
            burst: u64::from(part.burst),
        };
        self != by && portion(self).is_worth_replacing(portion(by))
    }

    fn token_bucket(self) -> TokenBucket {
        TokenBucket {
            max_tokens: self.burst,
            tokens_per_fill: Some(self.pace.tokens),
            // The nanoseconds hold the interval's exponent. Envoy keeps the old of two token buckets that differ in
            // the seconds alone, and does not count by nanoseconds.
            fill_interval: Some(duration(self.pace.seconds(), i32::from(self.pace.power))),
        }
    }
}

fn duration(seconds: u64, nanos: i32) -> prost_types::Duration {
    // At most 10¹⁰ seconds.
    prost_types::Duration { seconds: seconds as i64, nanos }
}
