//! The configuration in force, with facts that are derived once. A reload replaces the whole.
//!
//! A reload replaces the value as a whole. A decision carries the policy set that it was made under. In the moment
//! between the gate's change and this one, the facts are computed for that one decision.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderName;
use serde_json::{Value, json};
use tidegate::config::{Envoy, Written};
use tidegate::http_answer::server_parts::Window;
use tidegate::http_answer::{HeaderForm, over};
use tidegate::policy::{Among, Limit, Mode, Policy, PolicySet};
use tidegate::{Quota, Tick};
use tidegate_core::Algorithm;

use crate::api_policies::ApiPolicies;
use crate::denial_log::DenialLog;
use crate::metrics::admitted_share::Judge;
use crate::metrics::{Metrics, PolicySeries};
use crate::proxy::Proxy;
use crate::settings::Settings;
use crate::sight::{OF_OTHERS, Sight};
use crate::top_keys::TopKeys;
use crate::uncovered_requests::Unmet;

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct ActiveConfig {
    pub(crate) set: Arc<PolicySet>,
    pub(crate) policies: Arc<[Facts]>,
    /// The file with its policies; `None` if a program made them.
    pub(crate) written: Option<Written>,
    /// The policies that were put through the API.
    pub(crate) api: Arc<ApiPolicies>,
    pub(crate) headers: HeaderForm,
    /// The headers that name the policies over whose limit a request was let through.
    pub(crate) over: over::Headers,
    pub(crate) proxy: Proxy,
    /// Whether some policy is settled ([`settles`]).
    pub(crate) settles: bool,
    /// Whether some policy may delay a request.
    pub(crate) delays: bool,
    /// Whether some policy has a breaker.
    pub(crate) breaks: bool,
    /// The attributes with the prefix `rls.` that policies use, sorted. The gRPC door computes them for a
    /// descriptor on demand.
    #[cfg_attr(not(feature = "grpc"), expect(dead_code, reason = "read by that door alone"))]
    pub(crate) rls_attributes: Box<[Box<str>]>,
    /// How that door's calls say which priority their requests have.
    #[cfg_attr(not(feature = "grpc"), expect(dead_code, reason = "read by that door alone"))]
    pub(crate) envoy: Envoy,
    /// Counts the configurations put in force since start, from 1.
    pub(crate) number: u64,
    /// When it came into force, by the gate's clock.
    pub(crate) since: Tick,
    pub(crate) unmet: Unmet,
    /// Whether the log has told of numbers without a reading.
    pub(crate) unread_is_told: AtomicBool,
    /// Whether the log has told of policies whose calls nobody reports as ended.
    pub(crate) unended_is_told: AtomicBool,
    /// How many requests were decided before it.
    decided_before: u64,
}

/// Derived facts and state of one policy.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) series: Arc<PolicySeries>,
    pub(crate) keys: Arc<Keys>,
    /// The log limit for its denials. Survives reloads.
    pub(crate) denials: Arc<DenialLog>,
    /// Whether a request has reached its limits. Survives reloads that do not change which requests do.
    pub(crate) met: Arc<Met>,
    /// Compares the admitted requests with the limit, for policies where that is exact.
    pub(crate) judge: Option<Arc<Judge>>,
    /// Its number for the sight; 0 without one.
    pub(crate) number: u16,
    /// What Envoy asks of it. Survives reloads.
    #[cfg(feature = "grpc")]
    pub(crate) reports: Arc<Reports>,
    /// The windows of the policy's quotas, sorted by the address of the quota, which is the look-up key. Quotas are
    /// shared, and outlive this value.
    windows: Box<[(usize, Window)]>,
}

/// What is needed to tell whether a request has reached the limits of a policy.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Since when the policy has applied to the same requests.
    since: Tick,
    /// How many decisions of the policy were counted before.
    before: u64,
    /// How many requests the policy had admitted before.
    admitted_before: u64,
    /// Whether a look has reached its limits: looks are not counted.
    looked_at: AtomicBool,
    /// Whether a call was reported as ended.
    ended: AtomicBool,
    /// When somebody first saw that many calls were admitted and none was reported as ended.
    many_since: OnceLock<Tick>,
}

/// The calls of a policy that depends on how they end, if none was ever reported as ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unended {
    pub(crate) admitted: u64,
    pub(crate) since: Tick,
}

impl Unended {
    /// After so many calls without an end nobody reports any.
    const MANY: u64 = 100;
    /// How long after that it is told: calls may take long.
    const TOLD_AFTER: Duration = Duration::from_secs(300);
}

impl Met {
    fn new(since: Tick, series: &PolicySeries) -> Self {
        Self { since, before: series.decisions(), admitted_before: series.admitted(), ..Self::default() }
    }

    /// Records that a call was reported as ended.
    pub(crate) fn note_ended(&self) {
        raise(&self.ended);
    }

    /// Records that a look has reached the limits.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_look(&self) {
        raise(&self.looked_at);
    }
}

/// Sets a flag that all threads share.
fn raise(flag: &AtomicBool) {
    // Relaxed: the flag stands alone. Read first, since writing would take the cache line from other threads.
    if !flag.load(Ordering::Relaxed) {
        flag.store(true, Ordering::Relaxed);
    }
}

fn is_for_the_same(one: &Policy, other: &Policy) -> bool {
    (one.mode == Mode::Off, one.direction, &one.matching, &one.by, &one.when)
        == (other.mode == Mode::Off, other.direction, &other.matching, &other.by, &other.when)
}

/// The keys that one policy denied or found near their limit. Survives reloads.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) denied: TopKeys,
    pub(crate) near: TopKeys,
}

/// Whether a policy is asked for 0 units, and refuses more than it has left without charging: Envoy then reports what
/// was used, and the limit never refuses anything.
#[cfg(feature = "grpc")]
#[derive(Debug, Default)]
pub(crate) struct Reports {
    asked_for_none: AtomicBool,
    is_told: AtomicBool,
}

#[cfg(feature = "grpc")]
impl Reports {
    /// Notes that the policy was asked for 0 units.
    pub(crate) fn asked_for_none(&self) {
        raise(&self.asked_for_none);
    }

    /// Notes a refusal of several units. Returns whether to tell: the first time for a policy that was also asked for
    /// 0 units.
    pub(crate) fn refused_several(&self) -> bool {
        // Relaxed: each flag stands alone.
        self.asked_for_none.load(Ordering::Relaxed) && !self.is_told.swap(true, Ordering::Relaxed)
    }
}

impl ActiveConfig {
    pub(crate) fn new(
        settings: &Settings,
        metrics: &Metrics,
        sight: Option<&Arc<dyn Sight>>,
        before: Option<&Self>,
        since: Tick,
    ) -> Self {
        let set = Arc::clone(&settings.policies);
        let policies = set.policies();
        let facts = policies.iter().map(|policy| {
            let before = before.and_then(|live| {
                let (at, before) = live.set.find(&policy.name)?;
                Some((before, live.policies.get(at)?))
            });
            let is_for_others = before.is_none_or(|(before, _)| !is_for_the_same(before, policy));
            let mut facts = Facts::of(policy, metrics, sight, before.map(|(_, facts)| facts), Some(since));
            if is_for_others {
                facts.met = Arc::new(Met::new(since, &facts.series));
            }
            facts
        });
        let named = set.attributes_read();
        let mut rls: Vec<Box<str>> =
            named.names().filter(|name| name.starts_with("rls.")).map(Box::from).collect();
        rls.sort_unstable();
        Self {
            policies: facts.collect(),
            written: settings.written.clone(),
            api: Arc::clone(&settings.api),
            rls_attributes: rls.into(),
            envoy: settings.envoy.clone(),
            headers: settings.headers,
            over: over_headers(settings),
            settles: policies.iter().any(settles),
            breaks: policies
                .iter()
                .any(|policy| policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_breaker)),
            delays: policies.iter().any(delays),
            proxy: Proxy::new(settings),
            number: before.map_or(0, |live| live.number) + 1,
            since,
            unmet: Unmet::new(&set),
            unread_is_told: AtomicBool::new(false),
            unended_is_told: AtomicBool::new(false),
            decided_before: metrics.requests.decided(),
            set,
        }
    }

    /// Tells the sight that this configuration comes into force.
    pub(crate) fn tell(&self, sight: &dyn Sight) {
        let api: BTreeMap<&str, &str> = self.api.each().collect();
        let policies = json!({ "file": self.written.as_ref().map(Written::to_json), "api": api });
        sight.configured(self.number, &policies.to_string());
    }

    /// Returns the policies whose limits no request has reached, and since when. Leaves out those that are off or
    /// have conditions.
    pub(crate) fn unreached(&self) -> impl Iterator<Item = (&str, Tick)> {
        let each = self.set.policies().iter().enumerate();
        each.filter_map(|(at, policy)| Some((policy.name.as_str(), self.unreached_since(at)?)))
    }

    /// Returns since when no request has reached the limits of a policy, as [`ActiveConfig::unreached`].
    pub(crate) fn unreached_since(&self, at: usize) -> Option<Tick> {
        let policy = &self.set.policies()[at];
        let applies = policy.mode != Mode::Off && policy.when.is_empty();
        self.policies.get(at).filter(|_| applies)?.unreached_since()
    }

    /// Returns the policies that depend on how calls end and of which none was reported as ended, although many
    /// were admitted a while ago. Policies that are off are left out.
    pub(crate) fn unended(&self, now: Tick) -> impl Iterator<Item = (&Policy, Unended)> {
        let each = self.set.policies().iter().zip(&*self.policies);
        let awaits = each.filter(|(policy, _)| policy.mode != Mode::Off && settles(policy));
        awaits.filter_map(move |(policy, facts)| Some((policy, facts.unended(now)?)))
    }

    /// Returns how many requests were decided under it.
    pub(crate) fn decided(&self, metrics: &Metrics) -> u64 {
        metrics.requests.decided().saturating_sub(self.decided_before)
    }

    /// Returns the facts of a policy set, which differs from this configuration's only during a reload or if policies
    /// were chosen.
    pub(crate) fn facts(&self, set: &Arc<PolicySet>, metrics: &Metrics) -> Cow<'_, [Facts]> {
        if Arc::ptr_eq(set, &self.set) {
            return Cow::Borrowed(&self.policies);
        }
        let of = |policy: &Policy| {
            let own = self.set.find(&policy.name).and_then(|(at, _)| self.policies.get(at));
            Facts::of(policy, metrics, None, own, None)
        };
        set.policies().iter().map(of).collect()
    }

    /// Returns the policies with these indices.
    pub(crate) fn among(&self, only: &[usize]) -> Among {
        Among::new(Arc::clone(&self.set), only.iter().copied())
    }

    /// Returns whether an attribute is part of any policy's key.
    pub(crate) fn keys_by(&self, name: &str) -> bool {
        self.set.policies().iter().any(|policy| policy.by.iter().any(|by| by == name))
    }
}

/// Returns a policy as it was written, from the text that the sight was told ([`ActiveConfig::tell`]): as it was put
/// through the API, or JSON of the file's. `None` if the text has no such policy.
pub(crate) fn policy_as_written(policies: &str, name: &str) -> Option<String> {
    let policies: Value = serde_json::from_str(policies).ok()?;
    if let Some(text) = policies["api"][name].as_str() {
        return Some(text.to_owned());
    }
    let of_file = policies["file"]["policies"].as_array()?;
    of_file.iter().find(|policy| policy["name"] == name).map(Value::to_string)
}

fn over_headers(settings: &Settings) -> over::Headers {
    let name = settings.priority_header.as_deref().and_then(|name| HeaderName::try_from(name).ok());
    name.map_or_else(over::Headers::default, |name| over::Headers::default().priority_in(name))
}

fn delays(policy: &Policy) -> bool {
    policy.deciding_limits().any(|limit| !limit.max_wait.is_zero())
}

/// Returns whether a check that a policy charges is answered with a ticket unasked.
pub(crate) fn settles(policy: &Policy) -> bool {
    policy.settle.is_some()
        || policy.charges_failures()
        || policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_guard)
}

impl Facts {
    /// Computes the facts of a policy. `in_force` is the tick from which the policy is in force; `None` if it is
    /// not.
    fn of(
        policy: &Policy,
        metrics: &Metrics,
        sight: Option<&Arc<dyn Sight>>,
        before: Option<&Self>,
        in_force: Option<Tick>,
    ) -> Self {
        let quotas = policy.each_limit().flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref());
        // Breakers are left out: whether they admit the next call is not a number that a policy grants.
        let counting = policy.limits.iter().filter(|limit| !limit.is_breaker());
        let most = counting.filter_map(|limit| limit.terms.quota.as_deref()).map(most_of).min();
        if in_force.is_some() {
            metrics.limits_of_plans(&policy.name, limits_of_plans(policy));
        }
        let mut windows: Box<[_]> = quotas.map(|quota| (address(quota), Window::of(quota))).collect();
        windows.sort_unstable_by_key(|(address, _)| *address);
        let series = match before {
            Some(before) => {
                metrics.limit(&policy.name, most);
                Arc::clone(&before.series)
            }
            None => Arc::new(metrics.policy(&policy.name, most)),
        };
        if policy.canary.is_some() {
            metrics.canary(&policy.name, &series);
        }
        Self {
            series,
            keys: before.map_or_else(Arc::default, |before| Arc::clone(&before.keys)),
            denials: before.map_or_else(Arc::default, |before| Arc::clone(&before.denials)),
            met: before.map_or_else(Arc::default, |before| Arc::clone(&before.met)),
            judge: Judge::of(
                policy,
                settles(policy),
                before.and_then(|before| before.judge.as_ref()),
                in_force,
            ),
            number: match (before, in_force, sight) {
                // The sight is told of a policy and its rate when it comes into force: it may make its caller wait, and
                // these facts are for one decision.
                (Some(before), None, _) => before.number,
                (None, None, _) => OF_OTHERS,
                (_, Some(_), Some(sight)) => sight.policy(&policy.name, one_rate(policy)),
                (_, Some(_), None) => 0,
            },
            #[cfg(feature = "grpc")]
            reports: before.map_or_else(Arc::default, |before| Arc::clone(&before.reports)),
            windows,
        }
    }

    pub(crate) fn unreached_since(&self) -> Option<Tick> {
        let reached = self.met.looked_at.load(Ordering::Relaxed) || self.series.decisions() > self.met.before;
        (!reached).then_some(self.met.since)
    }

    fn unended(&self, now: Tick) -> Option<Unended> {
        if self.met.ended.load(Ordering::Relaxed) {
            return None;
        }
        let admitted = self.series.admitted().saturating_sub(self.met.admitted_before);
        if admitted < Unended::MANY {
            return None;
        }
        let many_since = *self.met.many_since.get_or_init(|| now);
        let is_told = now.since(many_since) >= Unended::TOLD_AFTER;
        is_told.then_some(Unended { admitted, since: self.met.since })
    }

    /// Returns in how many seconds an exhausted quota is full again.
    pub(crate) fn window(&self, quota: &Arc<Quota>, now: Tick) -> Option<u64> {
        let found = self.windows.binary_search_by_key(&address(quota), |(address, _)| *address);
        // A quota that a check brought along does not belong to the policy, and neither does a rate that was
        // adjusted.
        let window = found.map_or_else(|_| Window::of(quota), |at| self.windows[at].1);
        window.seconds(quota, now)
    }
}

/// Returns the most units that a policy grants one key of each plan at once: of each value for which some limit has
/// a rate of its own. A plan without any limit is left out.
fn limits_of_plans(policy: &Policy) -> BTreeMap<String, u64> {
    let limits = || policy.limits.iter().filter(|limit| !limit.is_breaker());
    let mut plans: BTreeMap<String, u64> = BTreeMap::new();
    for choice in limits().filter_map(|limit| limit.tiers.as_ref()) {
        for plan in choice.values.keys() {
            let of_plan = |limit: &Limit| {
                let own = limit.tiers.as_ref().filter(|other| other.by == choice.by);
                let terms = own.and_then(|own| own.values.get(plan)).unwrap_or(&limit.terms);
                terms.quota.as_deref().map(most_of)
            };
            if let Some(most) = limits().filter_map(of_plan).min() {
                plans.entry(plan.clone()).and_modify(|least| *least = most.min(*least)).or_insert(most);
            }
        }
    }
    plans
}

/// Returns the units a second of a policy's first limit, if all keys have that rate.
pub(crate) fn one_rate(policy: &Policy) -> Option<f64> {
    let first = policy.limits.first()?;
    let is_one = first.tiers.is_none() && first.overrides.is_empty() && first.follows.is_none();
    per_second(first.terms.quota.as_deref().filter(|_| is_one)?)
}

/// Returns the units a second that a limit allows, if it has one rate.
pub(crate) fn per_second(quota: &Quota) -> Option<f64> {
    let rate = match quota {
        Quota::SlidingWindow(limit) => limit.rate(),
        Quota::SlidingCounter(limit) => limit.rate(),
        Quota::SlidingLog(limit) => limit.rate(),
        Quota::LeakyQueue(limit) => limit.rate(),
        Quota::FixedWindow(limit) => return Some(limit.limit() as f64 / limit.period().as_secs_f64()),
        quota => quota.flow()?.0,
    };
    Some(rate.count() as f64 / rate.period().as_secs_f64())
}

fn address(quota: &Arc<Quota>) -> usize {
    Arc::as_ptr(quota).addr()
}

/// Returns the largest cost that a full limit of this quota grants, of an adaptive one the largest ever.
pub(crate) fn most_of(quota: &Quota) -> u64 {
    if let Quota::Adaptive(guard) = quota {
        return guard.most();
    }
    quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_limit_grants_its_burst() {
        assert_eq!(most_of(&Quota::per_second(100).burst(200).gcra().unwrap()), 200);
    }
}
