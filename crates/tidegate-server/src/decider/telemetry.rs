//! What the server tells about decisions: counts, the outcome of a call for its span, and denials, which it remembers
//! and logs.

mod denials;

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tidegate::Cost;
use tidegate::config::{Address, Peer};
use tidegate::gate::explain::key_text;
use tidegate::gate::{ChargedAnyway, GateDecision, LimitDecision};
use tidegate::policy::{AccessEntry, Descriptor, Mode, Policy, PolicySet, Refusal};
use tidegate::store::DecidedBy;

pub(crate) use self::denials::REMEMBERED;
use self::denials::REMEMBERED_BYTES;
use super::{Base, Conclusion};
use crate::active_config::{ActiveConfig, Facts};
use crate::denial_log::DenialLog;
use crate::metrics::peer_names::{PeerNames, show_envoy};
use crate::metrics::{Decided, Metrics, RequestOutcome, Transport, Used, count_units};
use crate::refused_requests::RefusedRequests;
use crate::sight::{Seen, Sight, Verdict};
use crate::span_attributes;
use crate::top_keys::{TopKeys, entry_key};
use crate::uncovered_requests::Misdirected;

/// What is told about decisions.
#[derive(Debug)]
pub(crate) struct Telemetry {
    base: Arc<Base>,
    refused: RefusedRequests,
    /// The log limit of all denials together.
    denials: DenialLog,
    /// The deny list of the whole file.
    file_list: GlobalDenyList,
    /// The blocks for all policies.
    pub(crate) blocked: GlobalDenyList,
    peer_names: PeerNames,
    /// Hashes the keys whose rates are counted.
    hasher: RandomState,
    grpc: Option<Address>,
}

impl Telemetry {
    pub(super) fn new(base: Arc<Base>, metrics_names: Option<Peer>, grpc: Option<Address>) -> Self {
        let file_list = GlobalDenyList::new(DENY_LIST);
        file_list.show(&base.metrics);
        Self {
            base,
            refused: RefusedRequests::new(REMEMBERED, REMEMBERED_BYTES),
            denials: DenialLog::of_all(),
            file_list,
            blocked: GlobalDenyList::new(BLOCKS),
            peer_names: PeerNames::of(metrics_names),
            hasher: RandomState::default(),
            grpc,
        }
    }

    /// Returns the lists that refuse and belong to no policy.
    pub(crate) fn lists(&self) -> [&GlobalDenyList; 2] {
        [&self.file_list, &self.blocked]
    }

    /// Counts a request of a door once, however many policies it has.
    pub(super) fn count_request(
        &self,
        live: &ActiveConfig,
        transport: Transport,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
        stated: Option<Cost>,
        conclusion: &Conclusion,
    ) {
        let outcome = match conclusion {
            Conclusion::Unsettled { allowed: true, .. } => RequestOutcome::failed_open,
            Conclusion::Unsettled { allowed: false, .. } => RequestOutcome::failed_closed,
            Conclusion::Decided(decision) if !decision.allowed => RequestOutcome::denied,
            Conclusion::Decided(decision) if self.is_unmet(live, transport, request, only, decision) => {
                RequestOutcome::unmatched
            }
            Conclusion::Decided(decision) if !decision.wait.is_zero() => RequestOutcome::delayed,
            Conclusion::Decided(_) => RequestOutcome::allowed,
        };
        let unmatched = outcome == RequestOutcome::unmatched;
        let turn = self.base.metrics.requests.count(transport, outcome);
        if let Some(count) = live.unmet.looks_at(turn).filter(|_| !unmatched) {
            live.unmet.look_at(&live.set, &live.proxy.named, transport, request, count);
            if let (Some(stated), Conclusion::Decided(decision)) = (stated, conclusion) {
                live.unmet.look_at_cost(decision, transport, stated, count);
            }
        }
    }

    /// Returns whether no policy is about a request that passes, and notes its kind.
    pub(crate) fn is_unmet(
        &self,
        live: &ActiveConfig,
        transport: Transport,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
        decision: &GateDecision,
    ) -> bool {
        if !decision.limits.is_empty() || !decision.allowed {
            return false;
        }
        let among = only.map(|only| live.among(only));
        if live.set.meets(request, among.as_ref()) {
            return false;
        }
        if transport == Transport::grpc {
            self.count_unknown_domain(live, request);
        }
        live.unmet.note_request(&live.set, transport, request, only);
        true
    }

    /// What a look finds is not counted, but that it reached the limits is noted.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_looked_at(&self, live: &ActiveConfig, decision: &GateDecision) {
        let facts = live.facts(&decision.policies, &self.base.metrics);
        decision.limits.iter().for_each(|line| facts[line.policy].met.note_look());
    }

    /// Counts a look that refuses a request of a proxy as a decision of its policies. One that passes is not
    /// counted: the charge that follows is.
    #[cfg(feature = "grpc")]
    pub(super) fn count_refused_look(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        decision: &GateDecision,
    ) {
        if decision.refusal.is_some() || decision.refusing().next().is_some() {
            if !decision.allowed {
                self.tell_listeners(request, decision, None);
            }
            self.count(&live.facts(&decision.policies, &self.base.metrics), request, decision);
        }
    }

    /// Counts a look that decides a request of a proxy: a gRPC call that spends nothing.
    #[cfg(feature = "grpc")]
    pub(crate) fn count_look(&self, live: &ActiveConfig, request: &Descriptor<'_>, conclusion: &Conclusion) {
        if let Conclusion::Decided(decision) = conclusion {
            self.note_looked_at(live, decision);
            self.count_refused_look(live, request, decision);
        }
        self.count_request(live, Transport::grpc, request, None, None, conclusion);
    }

    /// Counts a call at the wrong address or in the wrong protocol.
    pub(crate) fn misdirected(&self, why: &Misdirected) {
        let transport = match why {
            Misdirected::GrpcAtHttp
            | Misdirected::SubRequestElsewhere
            | Misdirected::SubRequestAtAdmin
            | Misdirected::SubRequest(_)
            | Misdirected::NoToken(..) => Transport::http,
            Misdirected::HttpAtResp => Transport::resp,
            #[cfg(feature = "grpc")]
            Misdirected::Http1AtGrpc | Misdirected::TlsAtGrpc => Transport::grpc,
        };
        self.base.metrics.requests.count(transport, RequestOutcome::invalid);
        self.base.live().unmet.note_misdirected(why, self.grpc.as_ref());
    }

    /// Counts a call that is answered with an error, which a proxy that fails open takes for a permission.
    #[cfg(feature = "grpc")]
    pub(crate) fn unreadable(&self, code: &'static str, message: &str) {
        self.base.metrics.requests.count(Transport::grpc, RequestOutcome::invalid);
        self.base.live().unmet.note_unreadable(code, message);
    }

    /// Of several decisions of a call, notes the first that may not pass, otherwise the first.
    pub(super) fn note_conclusion(&self, request: &Descriptor<'_>, conclusion: &Conclusion) {
        span_attributes::note(|notes| {
            let told = matches!(notes.outcome, Some("denied" | "error"));
            if told || notes.outcome.is_some() && conclusion.allowed() {
                return;
            }
            let decision = match conclusion {
                Conclusion::Unsettled { policy, .. } => {
                    (notes.outcome, notes.key) = (Some("error"), None);
                    notes.policy.clone_from(policy);
                    return;
                }
                Conclusion::Decided(decision) => decision,
            };
            notes.outcome = Some(match decision.allowed {
                false => "denied",
                true if decision.wait.is_zero() => "allowed",
                true => "delayed",
            });
            notes.by_fallback = decision.by == DecidedBy::Fallback;
            let policy = decision.policy().map(|at| &decision.policies.policies()[at]);
            notes.policy = policy.map(|policy| policy.name.clone());
            let key = |policy| self.base.redact.key(&decision.policies, policy, request, notes.reveals_keys);
            notes.key = policy.map(key);
        });
    }

    /// Counts a gRPC call, if Limitador's metric names are in use.
    pub(super) fn count_call(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        transport: Transport,
        allowed: bool,
    ) {
        if let (PeerNames::Limitador(calls), Transport::grpc) = (&self.peer_names, transport)
            && let Some(namespace) = request.value("rls.domain")
        {
            calls.count(namespace, allowed, live.set.policies());
        }
    }

    /// Counts a gRPC call that no policy is about by its domain, if there is no policy of that. Does nothing unless
    /// the metric names of envoyproxy/ratelimit are in use.
    pub(super) fn count_unknown_domain(&self, live: &ActiveConfig, request: &Descriptor<'_>) {
        if let (PeerNames::Envoy(unknown), Some(domain)) = (&self.peer_names, request.value("rls.domain")) {
            unknown.count(domain, live.set.policies());
        }
    }

    /// Returns the series under the names of another rate limiter as text; empty if none are in use.
    pub(super) fn peer_metrics(&self, live: &ActiveConfig, store_is_away: bool) -> String {
        let mut registry = Registry::default();
        match &self.peer_names {
            PeerNames::None => return String::new(),
            PeerNames::Envoy(unknown) => {
                unknown.show(&mut registry);
                let series = live.policies.iter().map(|facts| &*facts.series);
                show_envoy(&mut registry, live.set.policies().iter().zip(series));
            }
            PeerNames::Limitador(calls) => {
                calls.show(&mut registry, store_is_away, live.set.policies());
            }
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}

// Counts each decision under every policy that took part in it.

impl Telemetry {
    /// Counts a decision under each of its policies.
    pub(crate) fn count(&self, facts: &[Facts], request: &Descriptor<'_>, decision: &GateDecision) {
        if let Some(refusal) = &decision.refusal {
            self.count_refusal(facts, request, decision, refusal);
            return;
        }
        let policies = decision.policies.policies();
        for lines in decision.limits.chunk_by(|one, next| one.policy == next.policy) {
            let Some(first) = lines.first() else { continue };
            let (policy, facts) = (&policies[first.policy], &facts[first.policy]);
            // A canary's limit stands in the place of the first.
            let canary = policy.is_canary(first.limit);
            let own = lines.iter().filter(|line| !policy.is_shadow_limit(line.limit));
            let (mut verdicts, mut key) = ([None; 2], None);
            if let Some(decided) = together(own.clone()) {
                // A request over a limit counts as allowed if the policy lets such requests through (`over`).
                let passes = policy.lets_through() && decision.allowed;
                let enforced = policy.mode == Mode::Enforce;
                verdicts[0] = Some(verdict(decided, enforced, passes));
                let decided = match decided {
                    Decided::denied if passes => {
                        self.base.metrics.protection.over(&policy.name, policy.over);
                        Decided::allowed
                    }
                    decided => decided,
                };
                if decided == Decided::delayed && enforced {
                    let waits = own.clone().map(|line| line.decision.wait());
                    self.base.metrics.requests.waits(&policy.name, waits.max().unwrap_or_default());
                }
                facts.series.tally(enforced, canary).count(decided);
            }
            let shadow = lines.iter().filter(|line| policy.is_shadow_limit(line.limit));
            if let Some(decided) = together(shadow) {
                facts.series.shadow.count(decided);
                verdicts[1] = Some(verdict(decided, false, false));
            }
            let (mut denied, mut near) = (false, false);
            if let (Some(judge), Some(line)) = (&facts.judge, own.clone().next()) {
                judge.note(decision, line);
            }
            for line in own {
                let standing = line.decision.standing;
                let used = standing.limit.saturating_sub(standing.remaining);
                facts.series.utilization.note(decision.at, used, standing.limit);
                denied |= !line.decision.is_allowed();
                let is_near = |used: u64, of: u64| {
                    u128::from(used) * 100 >= u128::from(of) * u128::from(policy.near_limit)
                };
                near |= is_near(used, standing.limit);
                if decision.allowed && line.decision.is_allowed() {
                    near |= self
                        .admitted(facts, request, decision, line, &mut key)
                        .is_some_and(|used| is_near(used.units, used.of));
                }
            }
            if denied {
                facts.keys.denied.add(&key_text(&decision.policies, policy, request));
            } else if near && decision.allowed {
                facts.series.near.inc();
                facts.keys.near.add(&key_text(&decision.policies, policy, request));
            }
            if let Some(sight) = &self.base.sight {
                let key = key.unwrap_or_else(|| self.fingerprint(&decision.policies, policy, request));
                let near = near && !denied && decision.allowed;
                let units = if first.cost_is_unknown() { 0 } else { first.cost.units() };
                let cost = u32::try_from(units).unwrap_or(u32::MAX);
                let [real, measured] = verdicts;
                for (verdict, near, canary) in [(real, near, canary), (measured, false, false)] {
                    let Some(verdict) = verdict else { continue };
                    // A request that another policy refuses takes nothing of this one.
                    let allows = matches!(verdict, Verdict::Allowed | Verdict::Delayed | Verdict::WouldAllow);
                    let cost = if allows && !decision.allowed { 0 } else { cost };
                    let seen =
                        Seen { policy: facts.number, verdict, near, canary, key, cost, at: decision.at };
                    if sight.saw(seen) {
                        self.tell_name(&**sight, seen, decision, policy, request);
                    }
                }
            }
        }
    }

    /// Tells the sight what a policy decided without its limits: by a list or a block, or without the store.
    pub(super) fn tell_seen(
        &self,
        facts: &Facts,
        at: usize,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        verdict: Verdict,
    ) {
        let Some(sight) = &self.base.sight else { return };
        let policy = &decision.policies.policies()[at];
        let key = self.fingerprint(&decision.policies, policy, request);
        let line = decision.limits.iter().find(|line| line.policy == at && !line.cost_is_unknown());
        let cost = line.map_or(0, |line| u32::try_from(line.cost.units()).unwrap_or(u32::MAX));
        let canary = decision.policies.canary_decides(at, request);
        let seen = Seen { policy: facts.number, verdict, near: false, canary, key, cost, at: decision.at };
        if sight.saw(seen) {
            self.tell_name(&**sight, seen, decision, policy, request);
        }
    }

    /// Tells the sight the name of a key.
    #[cold]
    fn tell_name(
        &self,
        sight: &dyn Sight,
        seen: Seen,
        decision: &GateDecision,
        policy: &Policy,
        request: &Descriptor<'_>,
    ) {
        let name = key_text(&decision.policies, policy, request);
        let digest = self.base.redact.text(&name, false);
        sight.named(seen.policy, seen.key, &name, &digest);
    }

    /// Returns a number that stands for the key of a request as long as the process runs.
    fn fingerprint(&self, set: &PolicySet, policy: &Policy, request: &Descriptor<'_>) -> u64 {
        self.fingerprint_of(policy.key_values(request, set.ipv6_prefix()).map(|(_, value)| value))
    }

    /// Returns the same number for the values of a key.
    pub(super) fn fingerprint_of<T: AsRef<str>>(&self, values: impl Iterator<Item = Option<T>>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for value in values {
            value.as_ref().map(T::as_ref).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Counts the units that policies with `charge: always` were charged although the request was refused.
    #[cold]
    pub(crate) fn count_anyway(&self, live: &ActiveConfig, decision: &GateDecision, anyway: &ChargedAnyway) {
        let facts = live.facts(&decision.policies, &self.base.metrics);
        // The limits of one policy are charged the same units, so the first stands for all of them.
        for lines in anyway.lines.chunk_by(|one, next| one.0 == next.0) {
            if let [(policy, _, cost), ..] = lines {
                count_units(&facts[*policy].series.owed, cost.units());
            }
        }
        if let Some(error) = &anyway.error {
            self.base.count_store_error();
            tracing::warn!(%error, "units of a refused request were not charged");
        }
    }

    /// Counts the units that a key is admitted under a rate and a burst. Returns what the key has used, if it is
    /// counted. `key`: the fingerprint of the key, once it was needed.
    fn admitted(
        &self,
        facts: &Facts,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        line: &LimitDecision,
        key: &mut Option<u64>,
    ) -> Option<Used> {
        let (quota, _) = decision.quota_of(line, request)?;
        let (rate, burst) = quota.flow()?;
        let policies = &decision.policies;
        let policy = &policies.policies()[line.policy];
        let key = *key.get_or_insert_with(|| self.fingerprint(policies, policy, request));
        // The limits of a policy count the same key apart.
        let key = key ^ (line.limit as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let units = line.cost.units();
        let used = facts.series.hottest.admitted(decision.at, key, units, rate, burst)?;
        facts.series.utilization.note(decision.at, used.units, used.of);
        Some(used)
    }

    /// Counts a refusal by a list, a block or a deadline. A list of the whole file counts under its own name.
    fn count_refusal(
        &self,
        facts: &[Facts],
        request: &Descriptor<'_>,
        decision: &GateDecision,
        refusal: &Refusal,
    ) {
        let Some(at) = refusal.policy else {
            let list = if refusal.block.is_some() { &self.blocked } else { &self.file_list };
            list.count(&self.base.metrics, &refusal.entry);
            if refusal.block.is_some() {
                self.base.metrics.protection.blocked(list.name);
            }
            return;
        };
        let policy = &decision.policies.policies()[at];
        facts[at].series.enforce.count(Decided::denied);
        facts[at].keys.denied.add(&key_text(&decision.policies, policy, request));
        self.tell_seen(&facts[at], at, request, decision, Verdict::Denied);
        if refusal.needs.is_some() {
            self.base.metrics.protection.too_late(&policy.name);
        }
        if refusal.block.is_some() {
            self.base.metrics.protection.blocked(&policy.name);
        }
    }
}

/// Returns what the sight is told. `passes`: the policy lets requests over its limits through.
const fn verdict(decided: Decided, enforced: bool, passes: bool) -> Verdict {
    match decided {
        Decided::denied if !enforced => Verdict::WouldDeny,
        Decided::denied if passes => Verdict::Over,
        Decided::denied => Verdict::Denied,
        Decided::error => Verdict::Error,
        Decided::allowed | Decided::delayed if !enforced => Verdict::WouldAllow,
        Decided::allowed => Verdict::Allowed,
        Decided::delayed => Verdict::Delayed,
    }
}

/// Combines the decisions of several limits of one policy: denied, else delayed, else allowed.
fn together<'l>(lines: impl Iterator<Item = &'l LimitDecision>) -> Option<Decided> {
    lines.fold(None, |so_far, line| {
        let decided = match (line.decision.is_allowed(), line.decision.wait().is_zero()) {
            (false, _) => Decided::denied,
            (true, false) => Decided::delayed,
            (true, true) => Decided::allowed,
        };
        match (so_far, decided) {
            (Some(Decided::denied), _) | (_, Decided::denied) => Some(Decided::denied),
            (Some(Decided::delayed), _) => Some(Decided::delayed),
            (_, decided) => Some(decided),
        }
    })
}

// The lists that belong to no policy: the deny list of the whole file, and the blocks for all policies.

/// In place of a policy's name.
const DENY_LIST: &str = "(access.deny)";
/// In place of a policy's name.
pub(super) const BLOCKS: &str = "(blocked)";

/// The counts of one such list. They survive reloads.
#[derive(Debug)]
pub(crate) struct GlobalDenyList {
    /// Stands in place of a policy's name in metrics, in the log and in the list of top keys.
    pub(crate) name: &'static str,
    /// Made with the first refusal: a list that is not used has no series.
    refused: OnceLock<Counter>,
    /// The entries that refused, as keys: as many as the file has.
    pub(crate) keys: TopKeys,
    /// The log limit for its denials.
    denials: DenialLog,
}

impl GlobalDenyList {
    fn new(name: &'static str) -> Self {
        let refused = OnceLock::new();
        Self { name, refused, keys: TopKeys::default(), denials: DenialLog::default() }
    }

    /// Makes the series of the list.
    fn show(&self, metrics: &Metrics) -> &Counter {
        self.refused.get_or_init(|| metrics.refused_by_file(self.name))
    }

    /// Counts a refusal by an entry of the list.
    fn count(&self, metrics: &Metrics, entry: &AccessEntry) {
        self.show(metrics).inc();
        self.keys.add(&entry_key(entry));
    }
}
