//! One bucket of a proxy: the limits that it meets, its part of them, and the answer that assigns the part.

use std::sync::Arc;
use std::time::Duration;

use ::bytes::{Bytes, BytesMut};
use parking_lot::MutexGuard;
use prost::encoding::{WireType, bytes, encode_key, encode_varint};
use smallvec::SmallVec;
use tidegate::Tick;
use tidegate::gate::GateDecision;
use tidegate::policy::{Descriptor, Mode};
use tidegate_core::division::{Bucket as Portion, Division, HolderId};

use super::super::envoy::{
    AbandonAction, BlanketRule, BucketAction, Entry, QuotaAssignmentAction, RateLimitDescriptor,
    RateLimitRequest, RateLimitStrategy, Strategy, TokenBucket,
};
use super::pools::{Divided, Pool, Pools, Reserved, TokenPace};
use crate::metrics::{Assigned, Counted};

/// How long the limits found for a bucket are valid: conditions change with time.
const KNOWN: Duration = Duration::from_secs(10);

/// How much longer an assignment counts than it is valid, for its way to the proxy.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// One bucket of a proxy. Dropping it leaves its limits, but its assignment counts until its end.
#[derive(Debug)]
pub(super) struct Bucket {
    /// As a call of the rate limit service: one descriptor, whose entries are the pairs, sorted by key.
    pub(super) call: RateLimitRequest,
    /// The number in force (of configuration and blocks) when the limits were found; 0: look them up again.
    number: u64,
    found: Tick,
    limits: Limits,
    /// What the proxy was assigned, in requests.
    given: Option<AssignedPart>,
    /// The index of the limit that made the part as small as it is.
    binding: usize,
    /// Whether a request costs more than when it was assigned.
    dearer: bool,
    /// Requests that the proxy allowed and that are not booked yet.
    pub(super) unbooked: u64,
    /// Since when there were no requests.
    pub(super) quiet: Option<Tick>,
    _counted: Counted,
    pub(super) reserved: Reserved,
}

/// The limits that a bucket meets.
#[derive(Debug)]
enum Limits {
    /// None that refuses.
    None,
    Closed,
    /// Limits that are divided, ordered by number.
    Divided(SmallVec<[BucketLimit; 1]>),
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

    pub(super) fn knows_its_limits(&self, number: u64, now: Tick) -> bool {
        self.number == number && now.since(self.found) < KNOWN
    }

    /// Keeps divided limits found under this number. Returns whether there are any.
    pub(super) fn keep_limits(&mut self, number: u64, now: Tick) -> bool {
        let has_some = self.number == number && matches!(self.limits, Limits::Divided(_));
        if has_some {
            self.found = now;
        }
        has_some
    }

    /// Whether it holds a part of this limit.
    fn has_joined(&self, number: u64) -> bool {
        matches!(&self.limits, Limits::Divided(lines) if lines.iter().any(|line| line.number() == number))
    }

    /// Allows all requests, or refuses all.
    pub(super) fn blanket(&mut self, allowed: bool, number: u64, now: Tick) {
        self.limits = if allowed { Limits::None } else { Limits::Closed };
        (self.given, self.number, self.found) = (None, number, now);
    }

    /// Takes over the limits of a decision, keeping its part in those that it holds. All requests are refused if
    /// there is no room for another pool, or if a request costs more than a limit ever grants. Left out are shadow
    /// limits, and places and breakers, which depend on when calls begin and end.
    pub(super) fn limit_by(
        &mut self,
        decision: &GateDecision,
        request: &Descriptor<'_>,
        pools: &Pools,
        number: u64,
        now: Tick,
    ) {
        if decision.refusal.is_some() {
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
            match pools.of(divided, line.kept_back, left, |number| self.has_joined(number), now) {
                Some(pool) => found.push((pool, cost)),
                // The next report looks the limits up again.
                None => return self.blanket(false, 0, now),
            }
        }
        if found.is_empty() {
            return self.blanket(true, number, now);
        }
        // In this order all buckets lock their limits.
        found.sort_unstable_by_key(|(pool, _)| pool.number);
        found.dedup_by_key(|(pool, _)| pool.number);
        (self.number, self.found) = (number, now);
        if let Limits::Divided(lines) = &mut self.limits
            && lines.iter().map(BucketLimit::number).eq(found.iter().map(|(pool, _)| pool.number))
        {
            for (line, (_, cost)) in lines.iter_mut().zip(found) {
                self.dearer |= line.set_cost(cost, now);
            }
            return;
        }
        let joined = found.into_iter().map(|(pool, cost)| BucketLimit::join(pool, cost, now));
        self.limits = Limits::Divided(joined.collect());
        (self.given, self.dearer) = (None, false);
    }

    /// Takes how many requests were allowed and denied since the last report. Returns the next assignment, valid for
    /// `ttl`.
    pub(super) fn report(
        &mut self,
        allowed: u64,
        denied: u64,
        ttl: Duration,
        now: Tick,
    ) -> (Assignment, Assigned) {
        let lines = match &self.limits {
            Limits::None => return (Assignment::Allow, Assigned::allow),
            Limits::Closed => return (Assignment::Deny, Assigned::deny),
            Limits::Divided(lines) => lines,
        };
        let until = now.after(ttl).after(ON_ITS_WAY);
        let mut held: SmallVec<[Locked<'_>; 1]> = lines.iter().map(BucketLimit::lock).collect();
        for (at, line) in held.iter_mut().enumerate() {
            // Requests that the tightest limit denied do not count as demand on the others.
            let is_asked_for_all = self.given.is_none() || at == self.binding;
            let asked = if is_asked_for_all { allowed.saturating_add(denied) } else { allowed };
            line.report(asked, now);
        }
        // Before the offers: an assignment that has ended cannot be repeated.
        let mut renewed = true;
        for line in &mut held {
            renewed &= line.renew(until, now);
        }
        self.given = self.given.filter(|_| renewed);
        if let Some((part, binding)) = Locked::offered_by_all(&mut held, now)
            && self.given.is_none_or(|given| self.dearer || given.is_worth_replacing(part))
        {
            // The limits stay locked since they made their offers, so none refuses now.
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

// Converts parts of a limit between units and requests, by what a request costs under its policy.

/// A limit that a bucket meets; the bucket leaves it when this is dropped.
#[derive(Debug)]
pub(super) struct BucketLimit {
    pool: Arc<Pool>,
    holder: HolderId,
    /// The units of a request, at least 1.
    cost: u64,
}

/// A limit that is locked for one report.
pub(super) struct Locked<'l> {
    division: MutexGuard<'l, Division>,
    holder: HolderId,
    cost: u64,
    /// Its rates are per 10 to this power seconds.
    power: u8,
}

impl Drop for BucketLimit {
    fn drop(&mut self) {
        self.pool.division.lock().leave(self.holder);
    }
}

impl BucketLimit {
    /// Joins the holders of the limit; a request costs `cost` units.
    pub(super) fn join(pool: Arc<Pool>, cost: u64, now: Tick) -> Self {
        let cost = cost.max(1);
        let holder = pool.division.lock().join(cost, now);
        Self { pool, holder, cost }
    }

    pub(super) fn number(&self) -> u64 {
        self.pool.number
    }

    /// Sets what a request costs. Returns whether that is more than before.
    pub(super) fn set_cost(&mut self, cost: u64, now: Tick) -> bool {
        let before = std::mem::replace(&mut self.cost, cost.max(1));
        if before < self.cost {
            self.pool.division.lock().raise_least(self.holder, self.cost, now);
        }
        before < self.cost
    }

    /// Locks the limit. Several limits must be locked in the order of their numbers.
    pub(super) fn lock(&self) -> Locked<'_> {
        let (holder, cost, power) = (self.holder, self.cost, self.pool.pace.power);
        Locked { division: self.pool.division.lock(), holder, cost, power }
    }
}

impl Locked<'_> {
    pub(super) fn report(&mut self, requests: u64, now: Tick) {
        self.division.report(self.holder, requests.saturating_mul(self.cost), now);
    }

    /// Renews the part. Returns whether there is one.
    pub(super) fn renew(&mut self, until: Tick, now: Tick) -> bool {
        self.division.renew(self.holder, until, now)
    }

    /// Returns what all limits can offer, and which offers least; `None` if one offers nothing.
    pub(super) fn offered_by_all(lines: &mut [Self], now: Tick) -> Option<(AssignedPart, usize)> {
        let (mut least, mut burst, mut binding, mut power) = (u128::MAX, u64::MAX, 0, 0);
        for (at, line) in lines.iter_mut().enumerate() {
            let offered = line.division.offer(line.holder, now)?;
            let requests =
                u128::from(offered.rate) * scale(TokenPace::LONGEST - line.power) / u128::from(line.cost);
            if requests < least {
                (least, binding) = (requests, at);
            }
            (burst, power) = (burst.min(offered.burst / line.cost), power.max(line.power));
        }
        Some((AssignedPart::of(least, burst, power)?, binding))
    }

    /// Grants what was offered. Returns whether it may be handed out.
    pub(super) fn grant(&mut self, part: AssignedPart, until: Tick, now: Tick) -> bool {
        let interval = part.pace.power.saturating_sub(self.power);
        let units = u128::from(part.pace.tokens) * u128::from(self.cost);
        let rate = u64::try_from(units.div_ceil(scale(interval))).unwrap_or(u64::MAX);
        let burst = u64::from(part.burst).saturating_mul(self.cost);
        self.division.grant(self.holder, Portion { rate, burst }, until, now)
    }
}

const fn scale(power: u8) -> u128 {
    10_u128.pow(power as u32)
}

// The answers to a proxy about one of its buckets.

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
