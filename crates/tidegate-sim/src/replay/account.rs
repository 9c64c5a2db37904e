//! The figures of one policy in a replay.

use std::time::Duration;

use tidegate::gate::LimitDecision;
use tidegate::limiter::Rate;
use tidegate::policy::{Descriptor, Limit, Over, Policy, WrittenRate};
use tidegate::{Quota, Tick};

use super::ReplayOptions;
use super::outcome::{PeakRate, PolicyOutcome, shadow_limit_name};
use crate::peaks::Peaks;

/// The figures of a policy, and separately those of its shadow limit: what is only measured does not mix with what is
/// enforced.
#[derive(Debug)]
pub(super) struct PolicyAccount {
    pub(super) own: Account,
    shadow_limit: Option<Account>,
}

impl PolicyAccount {
    pub(super) fn new(policy: &Policy, options: &ReplayOptions) -> Self {
        let of_shadow_limit = |limit: &Limit| Account::new(std::slice::from_ref(limit), options);
        Self {
            own: Account::new(&policy.limits, options),
            shadow_limit: policy.shadow_limit.as_ref().map(of_shadow_limit),
        }
    }

    /// `lines` has the policy's own limits first, the shadow limit last.
    pub(super) fn note(
        &mut self,
        policy: &Policy,
        at: Tick,
        request: &Descriptor<'_>,
        lines: &[LimitDecision],
        signed_in: bool,
        ipv6_prefix: u8,
    ) {
        let own = lines.partition_point(|line| !policy.is_shadow_limit(line.limit));
        let (own, shadow) = lines.split_at(own);
        if !own.is_empty() {
            self.own.note(policy, at, request, own, signed_in, ipv6_prefix);
        }
        if let (Some(account), false) = (&mut self.shadow_limit, shadow.is_empty()) {
            account.note(policy, at, request, shadow, signed_in, ipv6_prefix);
        }
    }

    /// The policy's own, then its shadow limit's.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Account> {
        std::iter::once(&self.own).chain(&self.shadow_limit)
    }

    pub(super) fn outcomes(&self, policy: &Policy) -> impl Iterator<Item = PolicyOutcome> {
        let mut own = self.own.outcome(policy, &policy.limits);
        // What a canary refuses is refused, so it has no row of its own.
        own.limits.extend(policy.canary.iter().map(|canary| format!("canary {canary}")));
        let shadow = self.shadow_limit.as_ref().zip(policy.shadow_limit.as_ref());
        let shadow = shadow.map(|(account, limit)| PolicyOutcome {
            name: shadow_limit_name(&policy.name),
            shadow_limit_of: Some(policy.name.clone()),
            mode: "shadow",
            marked: None,
            demoted: None,
            ..account.outcome(policy, std::slice::from_ref(limit))
        });
        std::iter::once(own).chain(shadow)
    }
}

#[derive(Debug)]
pub(super) struct Account {
    matched: u64,
    denied: u64,
    delayed: u64,
    shadow_denied: u64,
    /// Exceeded a limit but were let through by it.
    over: u64,
    pub(super) denied_by_list: u64,
    first_denied: Option<Tick>,
    /// The most places of one key that were in use at once; `None` without guards.
    most_in_use: Option<u64>,
    pub(super) peaks: Peaks,
    /// What the limits grant in the window of the peaks.
    pub(super) granted: Option<Granted>,
    details: bool,
    /// The name of the current key, if it has several parts.
    key: Vec<u8>,
}

/// Finds the rate in the label of a limit: `gcra 100/s burst 200` has `100/s`.
pub(crate) fn written_rate(label: &str) -> Option<WrittenRate> {
    label.split_whitespace().find_map(|word| word.parse().ok())
}

/// The window of a row's peaks is the period of its first limit, so that the peak can be compared with the limit.
fn window(limits: &[Limit]) -> Duration {
    let labels = limits.iter().map(|limit| limit.terms.label.as_str());
    labels.filter_map(written_rate).find_map(WrittenRate::period).unwrap_or(Duration::from_secs(1))
}

impl Account {
    fn new(limits: &[Limit], options: &ReplayOptions) -> Self {
        let window = window(limits);
        let peaks = Peaks::new(window, options.peak_keys);
        Self {
            matched: 0,
            denied: 0,
            delayed: 0,
            shadow_denied: 0,
            over: 0,
            denied_by_list: 0,
            first_denied: None,
            most_in_use: None,
            peaks: if options.details { peaks.with_details() } else { peaks },
            granted: Granted::least(limits, window),
            details: options.details,
            key: Vec::new(),
        }
    }

    /// Prefetches the entries of the keys of coming requests, for keys that are a single unmodified value.
    pub(super) fn fetch(&self, policy: &Policy, requests: &[Descriptor<'_>]) {
        self.peaks.fetch(requests.iter().filter_map(|request| plain_key(policy, request)));
    }

    fn note(
        &mut self,
        policy: &Policy,
        at: Tick,
        request: &Descriptor<'_>,
        lines: &[LimitDecision],
        signed_in: bool,
        ipv6_prefix: u8,
    ) {
        self.matched += 1;
        for line in lines.iter().filter(|line| policy.limit(line.limit).is_some_and(has_places)) {
            let standing = line.decision.standing;
            let in_use = standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt);
            self.most_in_use = self.most_in_use.max(Some(in_use));
        }
        // A cost that could not be computed is more than any limit has, and no number of units.
        let cost = Some(lines[0].cost.units()).filter(|units| *units <= Rate::MAX_COUNT).unwrap_or(0);
        let refuses =
            |binding| lines.iter().any(|line| line.binding == binding && !line.decision.is_allowed());
        // A shadow limit does not mark or demote requests, even if its policy does.
        let lets_through = policy.lets_through() && !policy.is_shadow_limit(lines[0].limit);
        let (denied, unbound) = (refuses(true), refuses(false));
        let (over, shadow_denied) = (unbound && lets_through, unbound && !lets_through);
        let delayed = !denied && lines.iter().any(|line| line.binding && !line.decision.wait().is_zero());
        self.delayed += u64::from(delayed);
        self.shadow_denied += u64::from(shadow_denied);
        self.over += u64::from(over);
        let key = match plain_key(policy, request) {
            Some(key) => key,
            None => name_key(&mut self.key, policy, request, ipv6_prefix),
        };
        let mut seen = self.peaks.see(key, at, cost);
        if self.details {
            seen.detail(request.value("request.path"));
        }
        if denied || unbound {
            seen.deny(at, cost);
            self.denied += u64::from(denied);
            if denied || shadow_denied {
                self.first_denied.get_or_insert(at);
            }
        }
        if signed_in {
            seen.know();
        }
    }

    /// A limit of the row has blocked the key: the cost is 1, since its limits were not asked.
    pub(super) fn note_blocked(
        &mut self,
        policy: &Policy,
        at: Tick,
        request: &Descriptor<'_>,
        signed_in: bool,
        ipv6_prefix: u8,
    ) {
        self.matched += 1;
        self.denied += 1;
        let key = match plain_key(policy, request) {
            Some(key) => key,
            None => name_key(&mut self.key, policy, request, ipv6_prefix),
        };
        let mut seen = self.peaks.see(key, at, 1);
        if self.details {
            seen.detail(request.value("request.path"));
        }
        seen.deny(at, 1);
        if signed_in {
            seen.know();
        }
    }

    fn outcome(&self, policy: &Policy, limits: &[Limit]) -> PolicyOutcome {
        // Without denials all keys would be equal, and the order of their names would be asked for nothing.
        let has_denied = self.peaks.denied_keys() > 0;
        let worst =
            self.peaks.top(1, |key| if has_denied { key.denied } else { key.peak }).into_iter().next();
        let over = policy.lets_through().then_some(policy.over);
        PolicyOutcome {
            name: policy.name.clone(),
            shadow_limit_of: None,
            mode: match policy.mode {
                tidegate::policy::Mode::Off => "off",
                tidegate::policy::Mode::Shadow => "shadow",
                tidegate::policy::Mode::Enforce => "enforce",
            },
            limits: limits.iter().map(|limit| limit.terms.label.clone()).collect(),
            by: policy.by.clone(),
            matched: self.matched,
            denied: self.denied + self.denied_by_list,
            delayed: self.delayed,
            can_delay: limits.iter().any(|limit| !limit.max_wait.is_zero()),
            shadow_denied: self.shadow_denied,
            marked: (over == Some(Over::Mark)).then_some(self.over),
            demoted: matches!(over, Some(Over::Demote { .. })).then_some(self.over),
            keys: self.peaks.distinct(),
            keys_hit: self.peaks.denied_keys(),
            keys_hit_signed_in: self.peaks.denied_and_known(),
            peak: worst.as_ref().map(|key| PeakRate { count: key.peak, window: self.peaks.window() }),
            worst,
            most_in_use: self.most_in_use,
            guards: Vec::new(),
            first_denied: self.first_denied,
        }
    }
}

/// Says whether a limit counts what is in flight: any guard except a breaker.
fn has_places(limit: &Limit) -> bool {
    limit.terms.quota.as_ref().is_some_and(|quota| quota.is_guard() && !matches!(**quota, Quota::Breaker(_)))
}

pub(crate) fn key_name(policy: &Policy, request: &Descriptor<'_>, ipv6_prefix: u8) -> String {
    let mut name = Vec::new();
    if policy.by.is_empty() {
        return "(all)".to_owned();
    }
    name_key(&mut name, policy, request, ipv6_prefix);
    crate::log::text(&name).into_owned()
}

/// A single value or none; `None` if the name has to be built.
fn plain_key<'r>(policy: &Policy, request: &'r Descriptor<'_>) -> Option<&'r [u8]> {
    match policy.by.as_slice() {
        [] => Some(b"(all)"),
        [name] => match request.value(name) {
            None => Some(b"(none)"),
            // An IPv6 client is named by its network.
            Some(value) if name == "client.ip" && value.contains(':') => None,
            // Paths and hosts are named in the form in which they are compared.
            Some(_) if name == "request.path" || name == "request.host" => None,
            Some(value) => Some(value.as_bytes()),
        },
        _ => None,
    }
}

/// An IPv6 client as the network that shares its capacity.
fn name_key<'k>(
    out: &'k mut Vec<u8>,
    policy: &Policy,
    request: &Descriptor<'_>,
    ipv6_prefix: u8,
) -> &'k [u8] {
    out.clear();
    for (_, value) in policy.key_values(request, ipv6_prefix) {
        if !out.is_empty() {
            out.extend_from_slice(" · ".as_bytes());
        }
        out.extend_from_slice(value.as_deref().unwrap_or("(none)").as_bytes());
    }
    out
}

/// The most granted to one key in any window, and the limit that grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The amount, in cost units.
    pub(crate) units: u64,
    pub(crate) limit: String,
    /// Tiers or overrides give some keys a different limit.
    pub(crate) has_exceptions: bool,
}

impl Granted {
    /// The least of several limits; `None` if it is known for none of them.
    ///
    /// A waiting request is granted at the time it asks, for later use, so the longest accepted wait is added to the
    /// window.
    pub(super) fn least(limits: &[Limit], window: Duration) -> Option<Self> {
        let granted = |limit: &Limit| {
            let quota = limit.terms.quota.as_ref()?;
            let units = quota.granted_within(window.saturating_add(limit.max_wait))?;
            let has_exceptions = limit.tiers.is_some() || !limit.overrides.is_empty();
            Some(Self { units, limit: limit.terms.label.clone(), has_exceptions })
        };
        limits.iter().filter_map(granted).min_by_key(|granted| granted.units)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;

    use super::*;

    #[test]
    fn the_least_of_several_limits_is_named() {
        let minute = Duration::from_secs(60);
        let burst = Limit::new(Quota::per_second(2).burst(20).gcra().unwrap(), "gcra 2/s burst 20");
        let log = Limit::new(Quota::per_minute(50).sliding_log().unwrap(), "sliding-log 50/min");
        let guard = Limit::new(Quota::concurrency(5, minute).unwrap(), "concurrency 5");
        let least = |limits: &[Limit]| Granted::least(limits, minute).map(|least| (least.units, least.limit));
        assert_eq!(least(std::slice::from_ref(&burst)), Some((140, "gcra 2/s burst 20".to_owned())));
        assert_eq!(least(&[burst.clone(), log, guard.clone()]), Some((50, "sliding-log 50/min".to_owned())));
        assert_eq!(least(&[guard]), None);
        let mut patient = burst;
        patient.max_wait = Duration::from_secs(10);
        assert_eq!(least(&[patient]), Some((160, "gcra 2/s burst 20".to_owned())));
    }
}
