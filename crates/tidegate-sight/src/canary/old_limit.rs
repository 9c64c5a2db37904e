//! The limit that a policy has beside its canary, read from the text of the configuration in force.
//!
//! It is followed only where the events of a policy tell all that it is asked: one rate for all keys, charged at the check.
//! All else is compared with other keys alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::{AddedPolicy, Config, Format};
use tidegate::policy::{ChargeOn, Mode, Over, Policy};
use tidegate_core::{Algorithm as _, Ask, Cost, Quota, State, Tick, Transition};

/// The longest list that a limit may keep for each key; those of some windows have an entry for each request.
const LONGEST_STATE: u64 = 64;

/// A limit, and the longest delay with which a request passes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OldLimit {
    quota: Arc<Quota>,
    max_wait: Duration,
}

impl OldLimit {
    /// Makes one that refuses what it does not grant at once.
    #[cfg(test)]
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota: Arc::new(quota), max_wait: Duration::ZERO }
    }

    /// `None`: what it would decide cannot be told from the events.
    fn of(policy: &Policy) -> Option<Self> {
        let [limit] = policy.limits.as_slice() else { return None };
        let is_one = limit.tiers.is_none()
            && limit.overrides.is_empty()
            && limit.follows.is_none()
            && limit.keep_for.parts().next().is_none();
        let is_plain = policy.mode == Mode::Enforce
            && policy.charge == ChargeOn::Check
            && policy.settle.is_none()
            && matches!(policy.over, Over::Deny);
        let quota = limit.terms.quota.as_ref().filter(|quota| is_one && is_plain && is_small(quota))?;
        if let Some(wall) = SystemClock::new().wall() {
            quota.follow_wall(&wall);
        }
        Some(Self { quota: Arc::clone(quota), max_wait: limit.max_wait })
    }

    /// Decides a request of a key, whose state is changed. Returns whether it would be refused.
    pub(super) fn refuses(&self, state: &mut Option<State>, at: Tick, cost: Cost) -> bool {
        let quota = &*self.quota;
        let before = state.get_or_insert_with(|| quota.fresh(at));
        // As the gate does where the clock was set back.
        if let Some(set_back) = quota.set_back(before, at) {
            *before = set_back;
        }
        match quota.decide(before, Ask::within(at, cost, self.max_wait)) {
            Transition::Allowed { next, .. } => {
                *before = next;
                false
            }
            Transition::Denied { .. } => true,
        }
    }
}

/// Returns whether its states are small enough to be kept of thousands of keys.
fn is_small(quota: &Quota) -> bool {
    match quota {
        Quota::SlidingLog(_) => quota.capacity() <= LONGEST_STATE,
        Quota::SlidingWindow(window) => window.buckets() <= LONGEST_STATE,
        _ => !quota.is_guard(),
    }
}

/// Reads the limits of the policies with a canary, by policy, from the text that [`tidegate_server::Sight::configured`] is
/// told. Takes as long as reading those policies; others are left out first.
pub(super) fn read(policies: &str) -> BTreeMap<String, OldLimit> {
    let mut found = BTreeMap::new();
    // Most configurations have none.
    if !policies.contains("canary") {
        return found;
    }
    let Ok(mut all) = serde_json::from_str::<Value>(policies) else { return found };
    let mut file = match all.get_mut("file").map(Value::take) {
        Some(file @ Value::Object(_)) => file,
        _ => json!({ "version": 1 }),
    };
    let of_file = file.get_mut("policies").and_then(Value::as_array_mut);
    match of_file {
        Some(listed) => listed.retain_mut(|policy| {
            let canary = policy.as_object_mut().and_then(|policy| policy.remove("canary"));
            canary.is_some_and(|canary| !canary.is_null())
        }),
        None => file["policies"] = json!([]),
    }
    // With blanks and line ends, as YAML wants them.
    let text = serde_json::to_string_pretty(&file).unwrap_or_default();
    let Ok((config, _)) = Config::parse(&text, "policies", Format::Yaml) else { return found };
    add(&mut found, &config);
    let api = all.get("api").and_then(Value::as_object);
    for (name, text) in api.into_iter().flatten() {
        let Some(text) = text.as_str().filter(|text| text.contains("canary")) else { continue };
        if let Ok((config, _)) = Config::with_added(config.written(), &[AddedPolicy { name, text }]) {
            add(&mut found, &config);
        }
    }
    found
}

fn add(found: &mut BTreeMap<String, OldLimit>, config: &Config) {
    let limits = config.policies.policies().iter();
    found.extend(limits.filter_map(|policy| Some((policy.name.clone(), OldLimit::of(policy)?))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_file(policies: &Value) -> Vec<String> {
        let text = json!({ "file": { "version": 1, "policies": policies }, "api": {} }).to_string();
        read(&text).into_keys().collect()
    }

    #[test]
    fn limits_of_policies_with_a_canary_are_read() {
        let canary = json!({ "limit": { "rate": "6/s", "burst": 12 }, "share": "5%" });
        let limit = json!({ "rate": "10/s", "burst": 20 });
        let policies = json!([
            { "name": "with", "by": ["client.ip"], "limit": limit, "canary": canary },
            { "name": "without", "limit": limit },
            { "name": "shadow", "mode": "shadow", "limit": limit, "canary": canary },
            { "name": "later", "limit": limit, "charge": "on-failure", "canary": canary },
        ]);
        assert_eq!(of_file(&policies), ["with"]);
        assert!(of_file(&json!([{ "name": "without", "limit": limit }])).is_empty());
        for text in ["", "canary", "{\"file\": null, \"api\": {\"canary\": 3}}", "{\"file\": [\"canary\"]}"] {
            assert!(read(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_limit_decides_as_the_gate_does() {
        let old = OldLimit::new(Quota::per_second(1).burst(2).gcra().unwrap());
        let mut state = None;
        let mut refused = |ms: u64| old.refuses(&mut state, Tick::from_nanos(ms * 1_000_000), Cost::ONE);
        assert_eq!([0, 0, 0, 999, 1_000, 1_000].map(&mut refused), [false, false, true, true, false, true]);
    }
}
