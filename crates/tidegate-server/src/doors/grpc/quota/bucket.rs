//! One bucket of a proxy: the limits that it meets, and the part of them that it has.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use smallvec::SmallVec;
use tidegate::policy::{Descriptor, Mode};
use tidegate::{GateDecision, Tick};

use super::assignment::{Assignment, Part};
use super::budget::Reserved;
use super::limit::Divided;
use super::line::{Line, Locked};
use super::pools::{Pool, Pools};
use crate::metrics::{Assigned, Counted};

/// How long a bucket goes by the limits that were found: conditions of policies change with time.
const KNOWN: Duration = Duration::from_secs(10);
/// How much longer an assignment counts than it holds: for its way to the proxy.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// One bucket of a proxy. Leaves its limits when it is dropped; what it was assigned counts until that ends.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The bucket as a call of the rate limit service: one descriptor, whose entries are the pairs, by their keys.
    pub(super) call: RateLimitRequest,
    /// The number in force when its limits were found, of configuration and blocks; 0 where they have to be looked for again.
    number: u64,
    /// When they were found.
    found: Tick,
    limits: Limits,
    /// What the proxy was assigned, of which requests are the unit.
    given: Option<Part>,
    /// The place of the limit that made it as small as it is.
    binding: usize,
    /// Whether requests cost more now than when that was assigned.
    dearer: bool,
    /// Requests that were allowed and are not booked yet.
    pub(super) unbooked: u64,
    /// Since when nobody asked for anything.
    pub(super) quiet: Option<Tick>,
    _counted: Counted,
    pub(super) reserved: Reserved,
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

impl Bucket {
    pub(super) fn new(domain: &str, entries: Vec<Entry>, counted: Counted, reserved: Reserved) -> Self {
        let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
        let call =
            RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
        Self {
            call,
            number: 0,
            found: Tick::EPOCH,
            limits: Limits::Closed,
            given: None,
            binding: 0,
            dearer: false,
            unbooked: 0,
            quiet: None,
            _counted: counted,
            reserved,
        }
    }

    /// Says whether the limits that were found under this number still hold.
    pub(super) fn knows_its_limits(&self, number: u64, now: Tick) -> bool {
        self.number == number && now.since(self.found) < KNOWN
    }

    /// Goes on by the divided limits that were found under this number; says whether it has some.
    pub(super) fn keep_limits(&mut self, number: u64, now: Tick) -> bool {
        let has_some = self.number == number && matches!(self.limits, Limits::Divided(_));
        if has_some {
            self.found = now;
        }
        has_some
    }

    /// Says whether it goes by the limit of this number.
    fn has_joined(&self, number: u64) -> bool {
        matches!(&self.limits, Limits::Divided(lines) if lines.iter().any(|line| line.number() == number))
    }

    /// Goes by a refusal, or by nothing.
    pub(super) fn blanket(&mut self, allowed: bool, number: u64, now: Tick) {
        self.limits = if allowed { Limits::None } else { Limits::Closed };
        (self.given, self.number, self.found) = (None, number, now);
    }

    /// Goes by the limits of a decision; in those that it goes by already, its part stays. Closed where they have no room for it, and where a
    /// request costs more than one of them ever grants. Shadows limit nobody, and places and breakers go by calls that enter and leave.
    pub(super) fn limit_by(
        &mut self,
        decision: &GateDecision,
        request: &Descriptor<'_>,
        pools: &Pools,
        (number, now): (u64, Tick),
    ) {
        if decision.denied_by_list.is_some() {
            return self.blanket(false, number, now);
        }
        let set = &decision.policies;
        let mut found: SmallVec<[(Arc<Pool>, u64); 2]> = SmallVec::new();
        for line in &decision.limits {
            let policy = &set.policies()[line.policy];
            let refuses = policy.mode == Mode::Enforce && policy.over.refuses();
            if !refuses || policy.is_shadow_limit(line.limit) {
                continue;
            }
            let Some((quota, _)) = decision.quota_of(line, request) else { continue };
            let Some(key) = set.key(line.policy, line.limit, request) else { continue };
            let Some(divided) = Divided::of(key, line.limit, quota, now) else { continue };
            let cost = line.cost.units();
            if cost.saturating_add(line.kept_back) > u64::from(divided.burst) {
                return self.blanket(false, number, now);
            }
            let left = line.decision.standing.remaining;
            match pools.of(divided, (line.kept_back, left), |number| self.has_joined(number), now) {
                Some(pool) => found.push((pool, cost)),
                // Looked for again by the next report.
                None => return self.blanket(false, 0, now),
            }
        }
        if found.is_empty() {
            return self.blanket(true, number, now);
        }
        // In this order all buckets lock them.
        found.sort_unstable_by_key(|(pool, _)| pool.number);
        found.dedup_by_key(|(pool, _)| pool.number);
        (self.number, self.found) = (number, now);
        if let Limits::Divided(lines) = &mut self.limits
            && lines.iter().map(Line::number).eq(found.iter().map(|(pool, _)| pool.number))
        {
            for (line, (_, cost)) in lines.iter_mut().zip(found) {
                self.dearer |= line.set_cost(cost, now);
            }
            return;
        }
        let joined = found.into_iter().map(|(pool, cost)| Line::join(pool, cost, now));
        self.limits = Limits::Divided(joined.collect());
        (self.given, self.dearer) = (None, false);
    }

    /// Notes how many requests were allowed and denied since the last report, and returns what the proxy is told now, to hold for `ttl`.
    pub(super) fn report(
        &mut self,
        (allowed, denied): (u64, u64),
        ttl: Duration,
        now: Tick,
    ) -> (Assignment, Assigned) {
        let lines = match &self.limits {
            Limits::None => return (Assignment::Allow, Assigned::allow),
            Limits::Closed => return (Assignment::Deny, Assigned::deny),
            Limits::Divided(lines) => lines,
        };
        let until = now.after(ttl).after(ON_ITS_WAY);
        let mut held: SmallVec<[Locked<'_>; 1]> = lines.iter().map(Line::lock).collect();
        for (at, line) in held.iter_mut().enumerate() {
            // Requests that the tightest limit denied are no demand on the others.
            let is_asked_for_all = self.given.is_none() || at == self.binding;
            let asked = if is_asked_for_all { allowed.saturating_add(denied) } else { allowed };
            line.report(asked, now);
        }
        // Renewed first: an assignment that has ended cannot be told again.
        let mut renewed = true;
        for line in &mut held {
            renewed &= line.renew(until, now);
        }
        self.given = self.given.filter(|_| renewed);
        if let Some((part, binding)) = Locked::offered_by_all(&mut held, now)
            && self.given.is_none_or(|given| self.dearer || given.is_worth_replacing(part))
        {
            // The limits have been locked since they made their offers, so none of them refuses now.
            let granted = held.iter_mut().all(|line| line.grant(part, until, now));
            (self.given, self.binding, self.dearer) = (granted.then_some(part), binding, false);
            let (assignment, assigned) = if granted {
                (Assignment::Part(part), Assigned::changed)
            } else {
                (Assignment::Deny, Assigned::deny)
            };
            return (assignment, assigned);
        }
        match self.given {
            Some(part) => (Assignment::Part(part), Assigned::renewed),
            None => (Assignment::Deny, Assigned::deny),
        }
    }
}
