//! One bucket of a proxy: the limits that it meets, and the part of them that it has.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tidegate::policy::{Descriptor, Mode};
use tidegate::{GateDecision, Tick};
use tidegate_core::division::{Bucket as Portion, Division, HolderId, Offer};

use super::pools::{Divided, Pace, Pool, Pools};
use super::room::Taken;
use super::told::{Part, Told};
use crate::metrics::{Assigned, Counted};

/// How much longer an assignment counts than it holds: for its way to the proxy.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// One bucket of a proxy. Leaves its limits when it is dropped; what it was assigned counts until that ends.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The bucket as a call of the rate limit service: one descriptor, whose entries are the pairs, by their keys.
    pub(super) call: RateLimitRequest,
    /// The number in force when its limits were found, of configuration and blocks; 0 where they have to be looked for again.
    pub(super) number: u64,
    limits: Limits,
    given: Option<Part>,
    /// Since when nobody asked for anything.
    pub(super) quiet: Option<Tick>,
    _counted: Counted,
    pub(super) room: Taken,
}

/// What a bucket meets.
#[derive(Debug)]
enum Limits {
    /// Nothing that refuses.
    None,
    /// A refusal.
    Closed,
    /// Limits that are divided, in the order of their numbers.
    Divided(SmallVec<[Line; 1]>),
}

/// A limit that a bucket meets.
#[derive(Debug)]
struct Line {
    pool: Arc<Pool>,
    holder: HolderId,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.pool.division.lock().leave(self.holder);
    }
}

impl Bucket {
    pub(super) fn new(domain: &str, entries: Vec<Entry>, counted: Counted, room: Taken) -> Self {
        let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
        let call =
            RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
        Self { call, number: 0, limits: Limits::Closed, given: None, quiet: None, _counted: counted, room }
    }

    /// Goes by a refusal, or by nothing.
    pub(super) fn blanket(&mut self, allowed: bool, number: u64) {
        self.limits = if allowed { Limits::None } else { Limits::Closed };
        (self.given, self.number) = (None, number);
    }

    /// Goes by the limits of a decision; in those that it goes by already, its part stays. Closed where they have no room for it. Shadows limit nobody, and places and breakers go
    /// by calls that enter and leave.
    pub(super) fn limit_by(
        &mut self,
        decision: &GateDecision,
        request: &Descriptor<'_>,
        pools: &Pools,
        number: u64,
    ) {
        if decision.denied_by_list.is_some() {
            return self.blanket(false, number);
        }
        let set = &decision.policies;
        let mut found: SmallVec<[Arc<Pool>; 2]> = SmallVec::new();
        for line in &decision.limits {
            let policy = &set.policies()[line.policy];
            let refuses = policy.mode == Mode::Enforce && policy.over.refuses();
            if !refuses || policy.is_shadow_limit(line.limit) {
                continue;
            }
            let Some((quota, _)) = decision.quota_of(line, request) else { continue };
            let Some(key) = set.key(line.policy, line.limit, request) else { continue };
            if let Some(divided) = Divided::of(key, line.limit, quota, decision.at) {
                match pools.of(divided, line.decision.standing.remaining, decision.at) {
                    Some(pool) => found.push(pool),
                    // Looked for again by the next report.
                    None => return self.blanket(false, 0),
                }
            }
        }
        if found.is_empty() {
            return self.blanket(true, number);
        }
        // In this order all buckets lock them.
        found.sort_unstable_by_key(|pool| pool.number);
        found.dedup_by_key(|pool| pool.number);
        self.number = number;
        if let Limits::Divided(lines) = &self.limits
            && lines.iter().map(|line| line.pool.number).eq(found.iter().map(|pool| pool.number))
        {
            return;
        }
        let join = |pool: Arc<Pool>| {
            let holder = pool.division.lock().join(decision.at);
            Line { pool, holder }
        };
        self.limits = Limits::Divided(found.into_iter().map(join).collect());
        self.given = None;
    }

    /// Notes what was asked for since the last report, and returns what the proxy is told now, to hold for `ttl`.
    pub(super) fn report(&mut self, asked: u64, ttl: Duration, now: Tick) -> (Told, Assigned) {
        let lines = match &self.limits {
            Limits::None => return (Told::Allow, Assigned::allow),
            Limits::Closed => return (Told::Deny, Assigned::deny),
            Limits::Divided(lines) => lines,
        };
        let until = now.after(ttl).after(ON_ITS_WAY);
        let mut held: SmallVec<[(MutexGuard<'_, Division>, HolderId, Pace); 1]> =
            lines.iter().map(|line| (line.pool.division.lock(), line.holder, line.pool.pace)).collect();
        // The interval of the slowest: what is told is no coarser than any of them.
        let power = held.iter().map(|(_, _, pace)| pace.power).max().unwrap_or(0);
        let (mut most, mut wanted, mut may) = (Portion { rate: u64::MAX, burst: u64::MAX }, false, true);
        for (division, holder, pace) in &mut held {
            division.report(*holder, asked, now);
            match division.offer(*holder, now) {
                Offer::Keep => may = false,
                Offer::UpTo { bucket, wanted: replaces } => {
                    most.rate = most.rate.min(bucket.rate.saturating_mul(scale(power, *pace)));
                    most.burst = most.burst.min(bucket.burst);
                    wanted |= replaces;
                }
            }
        }
        // At most the largest number of tokens; what is left over of that is not told.
        let rate = u32::try_from(most.rate).unwrap_or(u32::MAX);
        let burst = u32::try_from(most.burst).unwrap_or(u32::MAX);
        let part = Part { pace: Pace { tokens: rate, power }, burst };
        if may && wanted && self.given != Some(part) {
            let granted = held.iter_mut().all(|(division, holder, pace)| {
                let rate = u64::from(rate).div_ceil(scale(power, *pace));
                division.grant(*holder, Portion { rate, burst: u64::from(burst) }, until, now)
            });
            // All were locked since they offered it, so they grant it.
            self.given = granted.then_some(part);
            if granted {
                return (Told::Part(part), Assigned::changed);
            }
        }
        let renewed = held.iter_mut().all(|(division, holder, _)| division.renew(*holder, until, now));
        match self.given.filter(|_| renewed) {
            Some(part) => (Told::Part(part), Assigned::renewed),
            None => {
                self.given = None;
                (Told::Deny, Assigned::deny)
            }
        }
    }
}

/// Returns how many times the interval of a pace goes into that of a power, which is no shorter.
const fn scale(power: u8, pace: Pace) -> u64 {
    10_u64.pow((power - pace.power) as u32)
}
