//! Computes how many round trips each policy costs on an engine. Each fact comes from the code that decides it:
//! which limits the Redis script supports, which are leased, how many round trips a compare-and-set takes.

use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Part;
use tidegate::config::{EngineKind, StoreKind, StoreSettings};
use tidegate::policy::{Limit, Mode, Over, Policy, PolicySet, Share};
use tidegate::store::leased::most_held;
use tidegate::store::{CAS_ROUND_TRIPS, OnStoreError};
use tidegate::{Quota, Tick};

use crate::active_config::{most_of, per_second, settles};

/// Where the requests of a policy are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedIn {
    /// In this process.
    Process,
    /// By the engine's script.
    Script,
    /// In this process, on state that is written back to the engine if unchanged since.
    CompareAndSet,
    /// In this process, with units drawn in advance.
    Leases,
    /// Unknown: the engine's client is not built in.
    Unknown,
}

impl DecidedIn {
    /// Returns the name of the variant.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Script => "script",
            Self::CompareAndSet => "compare-and-set",
            Self::Leases => "leases",
            Self::Unknown => "unknown",
        }
    }
}

/// The cost of a policy in round trips.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyCost {
    /// The policy.
    pub policy: String,
    /// How nodes share it.
    pub share: Share,
    /// Where its requests are decided.
    pub decided_in: DecidedIn,
    /// The round trips of a request that passes, if no other node writes the key. For [`DecidedIn::Leases`], of a draw;
    /// most requests make none. `None` if the engine's client is not built in.
    pub round_trips: Option<u32>,
    /// For leases: the most units of a draw, if the most nodes are present, and all regions have equal parts; else `None`.
    pub lease_units: Option<u64>,
    /// The part of `round_trips` that no lease saves: 1 for the look for a block if the policy blocks keys, else 0.
    pub at_least: u32,
    /// The round trips of the settlement after each request; 0 if none is expected.
    pub settling: u32,
}

/// Returns the cost of each policy that is not off; empty if the store is in this process.
#[must_use]
pub fn round_trips(store: &StoreSettings, policies: &PolicySet) -> Vec<PolicyCost> {
    let StoreKind::Engine(engine) = &store.kind else { return Vec::new() };
    let asked = policies.policies().iter().filter(|policy| policy.mode != Mode::Off);
    let regions = engine.region.as_ref().map_or(1, |region| region.most);
    asked.map(|policy| cost_of(policy, &engine.engine, regions, engine.nodes)).collect()
}

fn cost_of(policy: &Policy, engine: &EngineKind, regions: u64, nodes: u64) -> PolicyCost {
    let share = policy.share.unwrap_or(Share::Leased);
    let quotas: Vec<&Arc<Quota>> = quotas_of(policy).collect();
    let made = |decided_in, round_trips: Option<u32>, lease_units| {
        let asks = !matches!(decided_in, DecidedIn::Process);
        let settling = if asks && settles(policy) { CAS_ROUND_TRIPS } else { 0 };
        let at_least = u32::from(matches!(policy.over, Over::Block { .. }) && share != Share::Local);
        let round_trips = round_trips.map(|trips| trips + at_least);
        let policy = policy.name.clone();
        PolicyCost { policy, share, decided_in, round_trips, lease_units, at_least, settling }
    };
    // A limit that follows another one's load has no numbers before it is asked.
    let follows = follows(policy);
    if matches!(share, Share::Local | Share::Split) || (quotas.is_empty() && !follows) {
        return made(DecidedIn::Process, Some(0), None);
    }
    if let Some(least) = lease_units(policy, Fleet { nodes, regions }) {
        let draw = scripted(engine, &quotas).map(|scripted| if scripted { 1 } else { CAS_ROUND_TRIPS });
        return made(DecidedIn::Leases, draw, Some(least));
    }
    match scripted(engine, &quotas) {
        Some(true) if !follows => made(DecidedIn::Script, Some(1), None),
        Some(_) => made(DecidedIn::CompareAndSet, Some(CAS_ROUND_TRIPS), None),
        None => made(DecidedIn::Unknown, None, None),
    }
}

/// The most nodes that share an engine, and the most regions that divide the limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) nodes: u64,
    pub(crate) regions: u64,
}

/// How long nodes may decide alone in a short outage: until the last one uses the engine again.
const ALONE: Duration = Duration::from_millis(1250);

impl Fleet {
    /// Returns which share a policy really uses: a limit that cannot be leased is decided by the engine, and a policy
    /// without a limit in this process.
    pub(crate) fn share_used(self, policy: &Policy) -> Share {
        match policy.share.unwrap_or(Share::Leased) {
            Share::Leased if lease_units(policy, self).is_some() => Share::Leased,
            Share::Leased | Share::Central if quotas_of(policy).next().is_none() && !follows(policy) => {
                Share::Local
            }
            Share::Leased | Share::Central => Share::Central,
            share => share,
        }
    }

    /// Returns the units beyond the limit of one key that this node grants if the engine goes away now: infinitely many
    /// if it then allows everything. Of several limits, the largest number. `None` if the policy refuses nothing.
    pub(crate) fn possible_excess(self, policy: &Policy) -> Option<f64> {
        if policy.mode != Mode::Enforce || policy.lets_through() {
            return None;
        }
        let asks = matches!(self.share_used(policy), Share::Leased | Share::Central);
        let limits = policy.deciding_limits().filter(|limit| !limit.is_breaker());
        let quotas = limits.flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref());
        let alone = |quota: &Arc<Quota>| {
            let (quota, span) = (of_one_region(quota, self.regions), ALONE.as_secs_f64());
            let granted = per_second(&quota).map_or_else(
                || quota.granted_within(ALONE).unwrap_or_default().max(most_of(&quota)) as f64,
                |rate| most_of(&quota) as f64 + (rate * span).floor(),
            );
            granted / self.nodes as f64
        };
        Some(match policy.on_store_error {
            OnStoreError::Local if asks => quotas.map(alone).fold(0.0, f64::max),
            OnStoreError::Allow if asks => f64::INFINITY,
            _ => 0.0,
        })
    }
}

fn quotas_of(policy: &Policy) -> impl Iterator<Item = &Arc<Quota>> {
    policy.each_limit().flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref())
}

fn follows(policy: &Policy) -> bool {
    policy.each_limit().any(|limit| limit.follows.is_some())
}

/// Returns the most units of a draw; `None` if the policy is not leased.
fn lease_units(policy: &Policy, fleet: Fleet) -> Option<u64> {
    let waits = policy.each_limit().any(|limit| !limit.max_wait.is_zero());
    if policy.share.unwrap_or(Share::Leased) != Share::Leased || waits || follows(policy) {
        return None;
    }
    let (Fleet { nodes, regions }, settled) = (fleet, settles(policy));
    let held = quotas_of(policy).map(|quota| most_held(&of_one_region(quota, regions), nodes, settled));
    held.collect::<Option<Vec<u64>>>()?.into_iter().min()
}

/// Returns the part of a limit that one of `regions` engines decides.
fn of_one_region(quota: &Arc<Quota>, regions: u64) -> Arc<Quota> {
    let part = Part::even(regions).at(Tick::EPOCH);
    // A limit that cannot be divided applies in full in each region. If an even part is less than one unit, a region has a
    // larger part at times.
    quota.divided(part, Part::WHOLE).map_or_else(|| Arc::clone(quota), Arc::new)
}

/// Returns whether the engine's script decides all of these; `None` if this program does not know.
#[cfg_attr(not(feature = "redis"), allow(unused_variables, reason = "only the client of Redis has a script"))]
fn scripted(engine: &EngineKind, quotas: &[&Arc<Quota>]) -> Option<bool> {
    match engine {
        #[cfg(feature = "redis")]
        EngineKind::Redis { .. } => Some(quotas.iter().all(|quota| tidegate_redis::decided_by_script(quota))),
        #[cfg(not(feature = "redis"))]
        EngineKind::Redis { .. } => None,
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the check stated for each node of a region what it would hold if the region had the whole limit.
    #[test]
    fn a_lease_in_a_region_is_of_its_part_of_the_limit() {
        let quota = Arc::new(Quota::per_second(3_000).burst(8_000).gcra().expect("a limit in range"));
        let held = |regions| most_held(&of_one_region(&quota, regions), 2, true);
        assert_eq!((held(1), held(4)), (Some(200), Some(50)), "5 % of the region's burst, half of it");
    }
}
