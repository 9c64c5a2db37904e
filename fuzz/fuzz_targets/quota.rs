//! For any reports in a proxy's call: each is answered per bucket with a valid assignment, or ends the call with a code
//! and a sentence.
#![no_main]

use std::sync::{Arc, LazyLock};

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::Strategy;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tidegate::clock::SystemClock;
use tidegate_server::fuzzing::{QuotaCall, RateLimitDoor};

const POLICIES: &str = "version: 1
access: { deny: [plan=banned] }
policies:
  - name: all
    match: { attributes: { rls.domain: [a, shop] } }
    limit: { rate: 100/min }
  - name: each
    by: [user]
    absent: skip
    limit: { algorithm: sliding-window, rate: 1000/h }
  - name: marked
    by: [generic_key]
    absent: skip
    limit: { rate: 1/s, burst: 5 }
    over: mark
";

/// The length of a gRPC message's head in the body of a call: the compression flag and the message's length.
const PREFIX: usize = 5;

static DOOR: LazyLock<RateLimitDoor> =
    LazyLock::new(|| RateLimitDoor::new(POLICIES, Arc::new(SystemClock::new())));

fuzz_target!(|body: &[u8]| {
    let mut call = QuotaCall::begin(&DOOR);
    let mut rest = body;
    while let Some((prefix, after)) = rest.split_first_chunk::<PREFIX>() {
        let [_, length @ ..] = *prefix;
        // A length beyond the end means the rest, so that most inputs contain messages.
        let (message, after) = after.split_at(after.len().min(u32::from_be_bytes(length) as usize));
        rest = after;
        match call.report(message.to_vec().into()) {
            Ok(answer) => is_answer(message, &answer),
            Err((code, said)) => {
                assert!(matches!(code, 3 | 13), "{code}");
                assert!(!said.is_empty() && said.len() < 1000, "{said}");
                return;
            }
        }
    }
});

/// Asserts that an answer has an action for each reported bucket, in order.
fn is_answer(message: &[u8], answer: &[u8]) {
    assert_eq!(answer[0], 0, "not compressed");
    let answer = &answer[PREFIX..];
    let answer = RateLimitQuotaResponse::decode(answer).expect("the answer is one");
    // The server skips a field with another wire type, like an unknown one; this decoder fails on it.
    let Ok(reports) = RateLimitQuotaUsageReports::decode(message) else { return };
    let (reported, told) = (&reports.bucket_quota_usages, &answer.bucket_action);
    assert_eq!(reported.len(), told.len());
    for (reported, told) in reported.iter().zip(told) {
        assert_eq!(reported.bucket_id, told.bucket_id);
        let Some(BucketAction::QuotaAssignmentAction(assigned)) = &told.bucket_action else {
            // No input takes as long as the minute after which a bucket is abandoned.
            panic!("{told:?}");
        };
        assert!(assigned.assignment_time_to_live.as_ref().is_some_and(|ttl| ttl.seconds > 0));
        match assigned.rate_limit_strategy.as_ref().and_then(|strategy| strategy.strategy.as_ref()) {
            Some(Strategy::BlanketRule(rule)) => assert!(matches!(rule, 0 | 1), "{rule}"),
            Some(Strategy::TokenBucket(bucket)) => {
                let tokens = bucket.tokens_per_fill.as_ref().expect("how many come back");
                let interval = bucket.fill_interval.as_ref().expect("in which time");
                assert!(bucket.max_tokens > 0 && tokens.value > 0 && interval.seconds > 0, "{bucket:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
