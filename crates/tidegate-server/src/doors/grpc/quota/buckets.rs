//! The buckets of one proxy: from a report to what the proxy is told.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use tidegate::visible::excerpt;
use tidegate::{Cost, Tick};

use super::super::rate_limit::asked;
use super::super::service::Service;
use super::super::status::{Code, Status};
use super::bucket::Bucket;
use super::told::Told;
use crate::engine::{Conclusion, Want};
use crate::live::Live;
use crate::metrics::{Assigned, Transport};
use crate::requests::MAX_VALUE;

/// The most buckets of one proxy. Those beyond are denied, since a client that makes up keys makes buckets.
const MOST: usize = 4096;
/// The most buckets of all proxies together, each with a kilobyte at most in ordinary use.
const MOST_TOGETHER: i64 = 1 << 18;
/// After how long without a request a bucket is forgotten, here and by the proxy.
const QUIET: Duration = Duration::from_secs(60);

/// The buckets of one proxy.
#[derive(Debug)]
pub(super) struct Buckets {
    ttl: Duration,
    /// That of the first report, which holds for all.
    domain: Option<String>,
    buckets: HashMap<Vec<Entry>, Bucket>,
}

impl Buckets {
    /// Makes those of a proxy whose assignments hold for so long.
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, domain: None, buckets: HashMap::new() }
    }

    /// Answers a report.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what only the configuration of a proxy can be wrong about: no domain or another one, and a bucket without a
    /// name.
    pub(super) async fn answer(
        &mut self,
        service: &Service,
        reports: RateLimitQuotaUsageReports,
    ) -> Result<RateLimitQuotaResponse, Status> {
        self.check_domain(reports.domain)?;
        let live = service.app.engine.live();
        let mut answer = RateLimitQuotaResponse::default();
        answer.bucket_action.reserve(reports.bucket_quota_usages.len());
        for usage in reports.bucket_quota_usages {
            let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
            let entries = entries(&usage)?;
            let (told, assigned) = self.one(service, &live, &entries, (allowed, denied)).await;
            service.app.engine.metrics.quotas.reported(allowed, denied, assigned);
            answer.bucket_action.push(told.action(&entries, self.ttl));
        }
        Ok(answer)
    }

    /// Goes by the domain of the first report; later ones may leave it out.
    fn check_domain(&mut self, domain: String) -> Result<(), Status> {
        let message = match &self.domain {
            None if domain.is_empty() => {
                "the first report has no domain; policies have it as the attribute rls.domain".to_owned()
            }
            None if domain.len() > MAX_VALUE => {
                format!("the domain has {} bytes; use at most {MAX_VALUE}", domain.len())
            }
            None => {
                self.domain = Some(domain);
                return Ok(());
            }
            Some(first) if domain.is_empty() || domain == *first => return Ok(()),
            Some(first) => {
                let (first, other) = (excerpt(first), excerpt(&domain));
                format!(
                    "the domain is \"{first}\", and a report has \"{other}\"; open another call for another domain"
                )
            }
        };
        Err(Status::new(Code::InvalidArgument, message))
    }

    /// Takes the report of one bucket, and returns what holds for it.
    async fn one(
        &mut self,
        service: &Service,
        live: &Live,
        entries: &Vec<Entry>,
        (allowed, denied): (u64, u64),
    ) -> (Told, Assigned) {
        let engine = &service.app.engine;
        if !self.buckets.contains_key(entries) {
            let room = self.buckets.len() < MOST && engine.metrics.quotas.buckets() < MOST_TOGETHER;
            let Some(domain) = self.domain.as_deref().filter(|_| room) else {
                return (Told::Deny, Assigned::deny);
            };
            let bucket = Bucket::new(domain, entries.clone(), engine.metrics.quotas.bucket());
            self.buckets.insert(entries.clone(), bucket);
        }
        let Some(bucket) = self.buckets.get_mut(entries) else { return (Told::Deny, Assigned::deny) };
        let now = engine.now();
        if is_forgotten(bucket, allowed, denied, now) {
            self.buckets.remove(entries);
            return (Told::Abandon, Assigned::abandoned);
        }
        let call = bucket.call.clone();
        if bucket.number != live.number {
            find_limits(service, live, bucket).await;
        }
        if let Some(cost) = Cost::new(allowed)
            && let Ok(asked) = asked::read(&call, &service.quotas, &live.rls_attributes)
            && let [asked] = &*asked
            && asked.refused.is_none()
        {
            // What the store does not book, it has counted as its error.
            let _ = engine.book(asked.check().maybe_cost(Some(cost))).await;
        }
        bucket.report(allowed.saturating_add(denied), self.ttl, now)
    }
}

/// Says whether a bucket was asked for nothing for long; notes since when.
fn is_forgotten(bucket: &mut Bucket, allowed: u64, denied: u64, now: Tick) -> bool {
    if allowed > 0 || denied > 0 {
        bucket.quiet = None;
        return false;
    }
    now.since(*bucket.quiet.get_or_insert(now)) >= QUIET
}

/// Finds the limits that a bucket meets.
async fn find_limits(service: &Service, live: &Live, bucket: &mut Bucket) {
    let call = bucket.call.clone();
    let asked = asked::read(&call, &service.quotas, &live.rls_attributes);
    // A name or a value that cannot be judged: not let through, as by the rate limit service.
    let Some(asked) = asked.ok().and_then(|asked| asked.into_iter().next()) else {
        return bucket.blanket(false, live.number);
    };
    if asked.refused.is_some() {
        return bucket.blanket(false, live.number);
    }
    let engine = &service.app.engine;
    match engine.decide(live, asked.check().peek(), None, Want::Peek, None, Transport::grpc).await {
        // Asked again by the next report.
        Conclusion::Unsettled { allowed, .. } => bucket.blanket(allowed, 0),
        Conclusion::Decided(decision) => {
            // Of several stores, those after one that refuses were not asked: by the next report they may be.
            let number = if decision.allowed { live.number } else { 0 };
            bucket.limit_by(&decision, &asked.request, &service.pools, number);
        }
    }
}

/// Returns the pairs of a bucket by their keys.
///
/// # Errors
/// [`Code::InvalidArgument`] for a bucket without any.
fn entries(usage: &BucketQuotaUsage) -> Result<Vec<Entry>, Status> {
    let pairs =
        usage.bucket_id.as_ref().map(|BucketId { bucket }| bucket).filter(|bucket| !bucket.is_empty());
    let Some(pairs) = pairs else {
        let message = "a report has a bucket without bucket_id; name it by one pair at least";
        return Err(Status::new(Code::InvalidArgument, message));
    };
    let mut entries: Vec<Entry> =
        pairs.iter().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect();
    entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    Ok(entries)
}
