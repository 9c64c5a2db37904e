//! The buckets of one proxy: its reports, their answers, and the booking of what it allowed.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tidegate::Tick;
use tidegate::gate::Check;
use tidegate::priority::Priority;
use tidegate::store::DecidedBy;
use tidegate::visible::excerpt;
use tokio::task::consume_budget;
use tokio::time::timeout;

use super::super::envoy::Entry;
use super::super::framing::{self, Code, Status};
use super::super::rate_limit::descriptors::{self, CallDescriptor};
use super::super::service::Service;
use super::bucket::{Assignment, Bucket};
use super::reports::Report;
use crate::active_config::ActiveConfig;
use crate::decider::{Conclusion, Want};
use crate::metrics::{Assigned, Transport};
use crate::requests::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};

/// The most buckets of a proxy, since a client that makes up keys makes buckets; more are denied.
const MOST: usize = 4096;

/// The most bytes of the pairs of a proxy's buckets, with their containers: a kilobyte each.
const MOST_BYTES: usize = 4 << 20;

/// The most buckets of all proxies.
const MOST_TOGETHER: i64 = 1 << 18;

/// How long the store may take to book the requests of a report: the time until the next one.
const BOOKING: Duration = Duration::from_secs(5);

/// How long a bucket has no requests until it is forgotten, here and by the proxy.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Buckets {
    ttl: Duration,
    /// The domain of the first report, for all.
    domain: Option<String>,
    buckets: HashMap<Vec<Entry>, Bucket>,
    /// The bytes of all pairs.
    bytes: usize,
}

impl Buckets {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, domain: None, buckets: HashMap::new(), bytes: 0 }
    }

    /// Answers a report. `hold` is called with the bytes that the report and the answer take, and may refuse them.
    /// What was allowed is [booked](Buckets::book) afterwards, so that the answer does not wait.
    ///
    /// Yields to other tasks: a report of a megabyte takes a tenth of a second.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for mistakes of the proxy's configuration: no domain or a changed one, a bucket
    /// without a name; [`Code::Internal`] for bytes that are no report, after the buckets before them were taken;
    /// that of `hold`.
    ///
    /// # Cancel safety
    /// The requests read before can still be booked.
    pub(super) async fn answer(
        &mut self,
        service: &Service,
        message: Bytes,
        mut hold: impl FnMut(usize) -> Result<(), Status>,
    ) -> Result<Bytes, Status> {
        let mut report = Report::read(&message)?;
        self.check_domain(std::mem::take(&mut report.domain))?;
        let (live, now) = (service.app.decider.live(), service.app.decider.now());
        let mut answer = framing::open();
        while let Some(usage) = report.next()? {
            let (allowed, denied) = (usage.allowed, usage.denied);
            if usage.pairs.is_empty() {
                let message = "a report has a bucket without bucket_id; name it by one pair at least";
                return Err(Status::new(Code::InvalidArgument, message));
            }
            let (assignment, assigned) = self.one(service, &live, now, usage.pairs, allowed, denied).await;
            service.app.decider.metrics.quotas.reported(allowed, denied, assigned);
            assignment.write(&usage.id, self.ttl, &mut answer);
            hold(message.len() + answer.len())?;
            consume_budget().await;
        }
        Ok(framing::close(answer))
    }

    /// Books what answered reports allowed, even beyond the limit. What the store does not book in time comes after
    /// the next report; what it refuses is lost, and logged once per call.
    pub(super) async fn book(&mut self, service: &Service) {
        let decider = &service.app.decider;
        let live = decider.live();
        let (mut refused, mut why) = (0_usize, None);
        let booking = async {
            for bucket in self.buckets.values_mut().filter(|bucket| bucket.unbooked > 0) {
                let requests = std::mem::take(&mut bucket.unbooked);
                if let Ok(descriptors) = descriptors::read(&bucket.call, &service.quotas, &live)
                    && let [descriptor] = &*descriptors
                    && descriptor.refused.is_none()
                    && let Err(error) = decider.tickets.book(check(descriptor), requests).await
                {
                    (refused, why) = (refused + 1, Some(error));
                }
                consume_budget().await;
            }
        };
        let in_time = timeout(BOOKING, booking).await;
        if let Some(error) = why {
            tracing::warn!(buckets = refused, %error, "what proxies allowed was not booked");
        }
        if in_time.is_err() {
            tracing::warn!(
                seconds = BOOKING.as_secs(),
                "the store did not book in time what proxies allowed"
            );
        }
    }

    /// Checks the domain against that of the first report. Later reports may leave it out.
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

    /// Takes the report of one bucket.
    async fn one(
        &mut self,
        service: &Service,
        live: &ActiveConfig,
        now: Tick,
        entries: Vec<Entry>,
        allowed: u64,
        denied: u64,
    ) -> (Assignment, Assigned) {
        let decider = &service.app.decider;
        if !self.buckets.contains_key(&entries) && !self.insert(service, &entries) {
            return (Assignment::Deny, Assigned::deny);
        }
        let Some(bucket) = self.buckets.get_mut(&entries) else { return (Assignment::Deny, Assigned::deny) };
        if is_forgotten(bucket, allowed, denied, now) {
            self.bytes -= bucket.reserved.bytes;
            self.buckets.remove(&entries);
            return (Assignment::Abandon, Assigned::abandoned);
        }
        bucket.unbooked = bucket.unbooked.saturating_add(allowed);
        let number = decider.keys.number_in_force(live);
        if !bucket.knows_its_limits(number, now) {
            find_limits(service, live, bucket, number, now).await;
        }
        bucket.report(allowed, denied, self.ttl, now)
    }

    /// Makes a bucket. Returns `false` if there is no room for it, or if the pairs are too many or too long to be
    /// judged.
    fn insert(&mut self, service: &Service, entries: &[Entry]) -> bool {
        let quotas = &service.app.decider.metrics.quotas;
        let can_be_judged = entries.len() <= MAX_ATTRIBUTES - 2
            && entries
                .iter()
                .all(|Entry { key, value }| (1..=MAX_NAME).contains(&key.len()) && value.len() <= MAX_VALUE);
        if !can_be_judged || self.buckets.len() >= MOST || quotas.buckets() >= MOST_TOGETHER {
            return false;
        }
        let bytes =
            entries.iter().map(|entry| size_of::<Entry>() + entry.key.len() + entry.value.len()).sum();
        let reserved = if bytes <= MOST_BYTES - self.bytes { service.pairs.reserve(bytes) } else { None };
        let (Some(domain), Some(reserved)) = (self.domain.as_deref(), reserved) else { return false };
        self.bytes += bytes;
        let bucket = Bucket::new(domain, entries.to_vec(), quotas.bucket(), reserved);
        self.buckets.insert(entries.to_vec(), bucket);
        true
    }
}

/// Whether there were no requests for [`QUIET`]. Updates since when.
fn is_forgotten(bucket: &mut Bucket, allowed: u64, denied: u64, now: Tick) -> bool {
    if allowed > 0 || denied > 0 || bucket.unbooked > 0 {
        bucket.quiet = None;
        return false;
    }
    now.since(*bucket.quiet.get_or_insert(now)) >= QUIET
}

/// Returns the check of a bucket. All have the default priority: buckets of several would share a limit that is
/// divided as if the same part of it were kept back from each.
fn check<'a, 'r>(descriptor: &'a CallDescriptor<'r>) -> Check<'a, 'r> {
    descriptor.check().priority(Priority::default())
}

async fn find_limits(service: &Service, live: &ActiveConfig, bucket: &mut Bucket, number: u64, now: Tick) {
    let call = bucket.call.clone();
    let descriptors = descriptors::read(&call, &service.quotas, live);
    // A name or a value that cannot be judged is refused, as by the rate limit service.
    let Some(descriptor) = descriptors.ok().and_then(|descriptors| descriptors.into_iter().next()) else {
        return bucket.blanket(false, number, now);
    };
    if descriptor.refused.is_some() {
        return bucket.blanket(false, number, now);
    }
    let decider = &service.app.decider;
    match decider
        .deciding
        .decide(live, check(&descriptor).peek(), None, Want::Peek, None, Transport::grpc)
        .await
    {
        // While an engine is away, a proxy keeps its part; a bucket without one is looked up with the next report.
        Conclusion::Unsettled { .. } if bucket.keep_limits(number, now) => {}
        Conclusion::Unsettled { allowed, .. } => bucket.blanket(allowed, 0, now),
        Conclusion::Decided(decision) => {
            // Noted, since a proxy that has no limit for a bucket asks no more.
            if !decider.telemetry.is_unmet(live, Transport::grpc, &descriptor.request, None, &decision) {
                decider.telemetry.note_looked_at(live, &decision);
            }
            // A fallback does not know all limits, so they are looked up with the next report.
            let number = if decision.by == DecidedBy::Fallback { 0 } else { number };
            bucket.limit_by(&decision, &descriptor.request, &service.pools, number, now);
        }
    }
}
