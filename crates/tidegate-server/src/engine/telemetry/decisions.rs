//! Counts each decision under every policy that took part in it.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};

use serde_json::json;
use tidegate::explain::key_text;
use tidegate::gate::ChargedAnyway;
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{Descriptor, Mode, Refusal};
use tidegate::{GateDecision, LimitDecision};

use super::Telemetry;
use crate::active_config::{ActiveConfig, Facts};
use crate::metrics::{Decided, Tally, Used, count_units};

impl Telemetry {
    /// Counts a decision under each of its policies.
    pub(crate) fn count(&self, facts: &[Facts], request: &Descriptor<'_>, decision: &GateDecision) {
        if !decision.allowed && self.base.events.any() {
            self.tell_listeners(request, decision);
        }
        if let Some(refusal) = &decision.refusal {
            self.count_refusal(facts, request, decision, refusal);
            return;
        }
        let policies = decision.policies.policies();
        for lines in decision.limits.chunk_by(|one, next| one.policy == next.policy) {
            let Some(first) = lines.first() else { continue };
            let (policy, facts) = (&policies[first.policy], &facts[first.policy]);
            let own = lines.iter().filter(|line| !policy.is_shadow_limit(line.limit));
            if let Some(decided) = together(own.clone()) {
                // A request over a limit counts as allowed if the policy lets such requests through (`over`).
                let passes = policy.lets_through() && decision.allowed;
                let decided = match decided {
                    Decided::denied if passes => {
                        self.base.metrics.protection.over(&policy.name, policy.over);
                        Decided::allowed
                    }
                    decided => decided,
                };
                let enforced = policy.mode == Mode::Enforce;
                if decided == Decided::delayed && enforced {
                    let waits = own.clone().map(|line| line.decision.wait());
                    self.base.metrics.requests.waits(&policy.name, waits.max().unwrap_or_default());
                }
                tally(facts, enforced).count(decided);
            }
            let shadow = lines.iter().filter(|line| policy.is_shadow_limit(line.limit));
            if let Some(decided) = together(shadow) {
                facts.series.shadow.count(decided);
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
                        .admitted(facts, request, decision, line)
                        .is_some_and(|used| is_near(used.units, used.of));
                }
            }
            if denied {
                facts.keys.denied.add(&key_text(&decision.policies, policy, request));
            } else if near && decision.allowed {
                facts.series.near.inc();
                facts.keys.near.add(&key_text(&decision.policies, policy, request));
            }
        }
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

    /// Counts the units that a key is admitted under a limit that is a rate and a burst. Returns what the key has used of
    /// the rate, if it is one of the keys that are counted.
    fn admitted(
        &self,
        facts: &Facts,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        line: &LimitDecision,
    ) -> Option<Used> {
        let (quota, _) = decision.quota_of(line, request)?;
        let (rate, burst) = quota.flow()?;
        let policies = &decision.policies;
        let mut hasher = self.hasher.build_hasher();
        line.limit.hash(&mut hasher);
        for (_, value) in policies.policies()[line.policy].key_values(request, policies.ipv6_prefix()) {
            value.hash(&mut hasher);
        }
        let units = line.cost.units();
        let used = facts.series.hottest.admitted(decision.at, hasher.finish(), units, rate, burst)?;
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
        if refusal.needs.is_some() {
            self.base.metrics.protection.too_late(&policy.name);
        }
        if refusal.block.is_some() {
            self.base.metrics.protection.blocked(&policy.name);
        }
    }

    /// Sends a denial to the listeners of the event stream, with a digest of its key.
    #[cold]
    fn tell_listeners(&self, request: &Descriptor<'_>, decision: &GateDecision) {
        self.base.events.denied(decision.at, || {
            let policy = decision.policy().and_then(|at| decision.policies.policies().get(at));
            let key = policy.map(|policy| self.base.redact.key(&decision.policies, policy, request, false));
            let retry = decision.retry();
            json!({
                "policy": policy.map(|policy| &policy.name),
                "key": key,
                "retry": retry.as_str(),
                "retry_after_ms": retry.after().map(millis_up),
            })
        });
    }
}

/// Returns the counters of a policy that is enforced, or only measured.
pub(crate) fn tally(facts: &Facts, enforced: bool) -> &Tally {
    if enforced { &facts.series.enforce } else { &facts.series.shadow }
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
