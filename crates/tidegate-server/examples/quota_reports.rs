//! Measures how many bucket reports one core handles in a second on the whole path of the quota service: decode,
//! divide, encode, book. Uses no connection.
//!
//! ```text
//! taskset -c 0 cargo run --release -p tidegate-server --features grpc,fuzzing --example quota_reports
//! ```
//!
//! Ten proxies report 100 buckets each every five seconds. Each bucket has its own limit, or all share one. The example
//! advances the clock, so limits are looked up again, parts move and assignments are renewed as between real reports.
//! The time is CPU time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
use prost::Message as _;
use tidegate::Tick;
use tidegate::clock::ManualClock;
use tidegate_server::fuzzing::{QuotaCall, RateLimitDoor};

const POLICIES: &str = "version: 1
policies:
  - name: all
    match: { attributes: { plan: true } }
    limit: { rate: 1000000/s }
  - name: each
    match: { attributes: { user: true } }
    by: [user]
    limit: { rate: 100000/s }
";
const PROXIES: usize = 10;
const BUCKETS: usize = 100;
const ROUNDS: usize = 500;
const EVERY: Duration = Duration::from_secs(5);

fn main() {
    for (what, of) in [("buckets of a limit each", "user"), ("buckets of one limit", "plan")] {
        let clock = ManualClock::at(Tick::from_secs(1_800_000_000));
        let door = RateLimitDoor::new(POLICIES, Arc::new(clock.clone()));
        let mut calls: Vec<QuotaCall<'_>> = (0..PROXIES).map(|_| QuotaCall::begin(&door)).collect();
        let report = report(of);
        let mut best = f64::MAX;
        for _ in 0..5 {
            let before = spent();
            for _ in 0..ROUNDS {
                for call in &mut calls {
                    let answer = call.report(report.clone());
                    assert!(answer.is_ok_and(|answer| answer.len() > BUCKETS), "each bucket is answered");
                }
                clock.advance(EVERY);
            }
            best = best.min((spent() - before) / (ROUNDS * PROXIES * BUCKETS) as f64);
        }
        println!("{what}: {:.0} bucket reports a second and core, {:.2} us each", 1e9 / best, best / 1e3);
    }
}

/// A report of a hundred buckets, each with ten allowed requests.
fn report(of: &str) -> Bytes {
    let usage = |bucket: usize| BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: HashMap::from([
                (of.to_owned(), format!("name-{bucket}")),
                ("route".to_owned(), "checkout".to_owned()),
            ]),
        }),
        num_requests_allowed: 10,
        ..BucketQuotaUsage::default()
    };
    let bucket_quota_usages = (0..BUCKETS).map(usage).collect();
    RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages }.encode_to_vec().into()
}

/// The CPU time of this thread in nanoseconds, from Linux.
fn spent() -> f64 {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this runs on Linux");
    let first = counted.split_whitespace().next().and_then(|time| time.parse().ok());
    first.expect("the first number is the time")
}
