//! The store beneath the gate: the fallback around it, whether it can be asked, and how it is left in an orderly way.
//! Where nodes share an engine, also leases and membership.

mod roster;
mod shared_gate;
mod timed_store;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::json;
use tidegate::clock::Clock;
use tidegate::cluster::shares::Status;
use tidegate::cluster::{Coordinator, OwnReport, Part};
use tidegate::policy::{Limit, Mode, Policy, PolicySet, Share, policy_of_key};
use tidegate::store::fallback::{Change, OUTAGE_AFTER};
use tidegate::store::leased::LeaseHealth;
use tidegate::store::{
    CapacityError, Caps, Charge, Executed, Execution, Fallback, Home, Later, Occupancy, Op, Step, StepAnswer,
    Store, StoreError,
};
use tidegate::{Cost, Quota, Tick, visible};
use tidegate_core::Standing;

pub(crate) use self::roster::{Nodes, REPORTS_EVERY, Seen};
pub(super) use self::shared_gate::shared_gate;
use self::shared_gate::{EngineSharing, LoggedProblems, Presence};
use self::timed_store::TimedStore;
use super::Base;
use crate::events::Events;
use crate::metrics::{Metrics, StoreState, stores};
use crate::stores::{PersistentCounters, Sharing};

/// How often leases are checked: a few times within the second for which units may be held.
pub(crate) const LEASES_EVERY: Duration = Duration::from_millis(250);

/// How long a stopping node waits for its leases, and again for its membership to end.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// How long a stopping server waits until the last counters are on disk. A busy disk takes a second; service
/// managers kill after 30 s to 90 s.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// The store of this server.
#[derive(Debug)]
pub(crate) struct Storage {
    base: Arc<Base>,
    /// Stands between the gate and a store that may fail; `None` for one that cannot.
    fallback: Option<Fallback>,
    shared: Option<EngineSharing>,
    /// Writes the counters of a store in this process to disk; `None` for stores that do not.
    kept: Option<Arc<dyn PersistentCounters>>,
    /// Held while a copy is made.
    backs_up: Arc<Mutex<()>>,
}

/// An outage of the store, as the health check reports it.
#[derive(Debug)]
pub(crate) struct Outage {
    /// Why the engine is not asked.
    pub(crate) reason: Arc<str>,
    /// How long the outage has lasted.
    pub(crate) lasts: Duration,
}

/// What follows the policies published for all nodes.
pub(crate) struct ClusterPolicies {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) report: OwnReport,
}

/// Returns the fallback between the gate and a store that may fail; `None` for a store in this process, which
/// cannot.
pub(super) fn fallback_for(
    store: &Arc<dyn Store>,
    kind: &'static str,
    sharing: Option<&Sharing>,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
    events: &Arc<Events>,
) -> Option<Fallback> {
    // A store in this process always decides, even one that may answer later, like the one on disk.
    if store.caps().always_decides || store.caps().later_if_strict {
        return None;
    }
    let states = metrics.store_states(kind);
    let events = Arc::clone(events);
    let told = move |change: &Change| {
        log_change(change, kind, &states);
        let (state, reason) =
            (if change.up { "up" } else { "down" }, visible::line(&change.reason).to_string());
        events.publish("store", || json!({ "store": kind, "state": state, "reason": reason }));
    };
    let timed = TimedStore::new(Arc::clone(store), metrics.store_times(kind), kind);
    let mut fallback = Fallback::around(timed, Arc::clone(clock)).on_change(told);
    if let Some(sharing) = sharing {
        fallback = fallback.nodes(sharing.nodes).deadline(sharing.deadline);
    }
    Some(fallback.build())
}

/// Marks an engine that was away at the start, so that no request has to find out.
pub(super) fn find_away(fallback: &Fallback, now: Tick) {
    let quota = Arc::new(Quota::per_second(1).gcra().expect("a rate in range"));
    let charges = [Charge::new(&[0], &quota, Cost::ONE)];
    // The fallback answers at once. The answer does not matter: no policy uses this key.
    for _ in 0..OUTAGE_AFTER {
        let _ = fallback.execute_into(&Step::new(now, Op::Peek, &charges), &mut Executed::default());
    }
}

fn log_change(change: &Change, store: &'static str, states: &StoreState) {
    states.turn(change.up);
    let (reason, lasted_ms) = (&*change.reason, change.lasted.as_millis());
    match change.up {
        true => tracing::info!(
            store,
            reason,
            lasted_ms,
            decided_without_it = change.without_engine,
            "the store is back"
        ),
        false => tracing::warn!(store, reason, "the store is gone; until it is back, on_store_error decides"),
    }
}

impl Storage {
    pub(super) fn new(
        base: Arc<Base>,
        fallback: Option<Fallback>,
        shared: Option<EngineSharing>,
        kept: Option<Arc<dyn PersistentCounters>>,
    ) -> Self {
        Self { base, fallback, shared, kept, backs_up: Arc::default() }
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.base.store_kind
    }

    /// Returns how full the store is.
    pub(crate) fn occupancy(&self) -> Occupancy {
        self.base.store.occupancy()
    }

    /// Returns the current outage, if there is one.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let health = self.fallback.as_ref()?.health();
        Some(Outage { reason: health.down?, lasts: self.base.now().since(health.since) })
    }

    /// Returns why the engine is not asked at present.
    pub(super) fn down(&self) -> Option<Arc<str>> {
        self.fallback.as_ref()?.health().down
    }

    /// Returns units that leases have held too long.
    /// Called every [`LEASES_EVERY`].
    pub(crate) async fn tidy_leases(&self) {
        let Some(shared) = &self.shared else { return };
        if let Some(returned) = shared.leased.tick(self.base.now()) {
            returned.await;
        }
    }

    /// Stops drawing units ahead, or goes on.
    pub(crate) fn draw_ahead(&self, draws: bool) {
        if let Some(shared) = &self.shared {
            shared.leased.draw_ahead(draws);
        }
    }

    /// Returns the health of the leases; `None` where nothing is drawn ahead.
    pub(crate) fn lease_health(&self) -> Option<LeaseHealth> {
        Some(self.shared.as_ref()?.leased.health())
    }

    /// Leaves the agreement on parts, so that others get this node's part.
    pub(crate) fn hand_over(&self) {
        self.be(Presence::Away);
    }

    /// Joins the agreement on parts again.
    pub(crate) fn join_again(&self) {
        self.be(Presence::Member);
    }

    fn be(&self, presence: Presence) {
        if let Some(member) = self.shared.as_ref().and_then(|shared| shared.member.as_ref()) {
            member.presence.send_replace(presence);
        }
    }

    /// Returns leased units, ends the membership, and writes the counters for the last time. Called when no more
    /// requests come. Returns whether all counters are kept; if not, the log has said why.
    pub(crate) async fn close(&self) -> bool {
        if let Some(shared) = &self.shared {
            // Units that the engine does not take back in time expire with the leases.
            let _ = tokio::time::timeout(LEAVES_WITHIN, shared.leased.close()).await;
            if let Some(nodes) = &shared.nodes {
                let _ = tokio::time::timeout(LEAVES_WITHIN, nodes.leave()).await;
            }
            self.be(Presence::Over);
            let leaving = shared.member.as_ref().and_then(|member| member.task.lock().take());
            if let Some(task) = leaving {
                // If the engine does not answer now, the other nodes notice by themselves that this one has gone.
                let _ = tokio::time::timeout(LEAVES_WITHIN, task).await;
            }
        }
        let Some(kept) = self.kept.clone() else { return true };
        match tokio::time::timeout(CLOSES_WITHIN, tokio::task::spawn_blocking(move || kept.close())).await {
            Ok(Ok(Ok(()))) => return true,
            Ok(Ok(Err(error))) => tracing::error!(%error, "the last counters were not written"),
            Ok(Err(error)) => tracing::error!(%error, "the store could not be closed"),
            Err(_) => tracing::error!(
                "the last counters were not written within {} s: the disk hangs",
                CLOSES_WITHIN.as_secs()
            ),
        }
        false
    }

    /// Returns why counters cannot be written at present, and since how long.
    pub(crate) fn trouble(&self) -> Option<(String, Duration)> {
        self.kept.as_ref()?.trouble()
    }

    /// Writes a copy of the counters on disk, and returns its file; `None` for a store that keeps none.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn back_up(&self) -> Option<Result<PathBuf, String>> {
        let (kept, alone) = (self.kept.clone()?, Arc::clone(&self.backs_up));
        let copying = move || {
            let _alone = alone.lock();
            kept.back_up()
        };
        let copied = tokio::task::spawn_blocking(copying).await;
        Some(copied.unwrap_or_else(|error| Err(error.to_string())))
    }

    pub(super) fn is_away(&self) -> bool {
        self.down().is_some() || self.trouble().is_some()
    }

    /// Returns the state of this node's membership; `None` where nodes do not agree on parts.
    pub(crate) fn membership(&self) -> Option<Status> {
        let member = self.shared.as_ref()?.member.as_ref()?;
        Some((member.status)())
    }

    /// Returns the policies that ask for leases and are decided by the engine, since it is too far away, and its round
    /// trip; none where regions divide the limits.
    pub(crate) fn too_far<'p>(&self, policies: &'p PolicySet) -> (Vec<&'p str>, Duration) {
        let far = policies.policies().iter().filter(|policy| self.is_too_far_for(policy));
        let round_trip = self.shared.as_ref().map_or(Duration::ZERO, |shared| shared.leased.round_trip());
        (far.map(|policy| policy.name.as_str()).collect(), round_trip)
    }

    fn is_too_far_for(&self, policy: &Policy) -> bool {
        let Some(shared) = self.shared.as_ref().filter(|_| self.region().is_none()) else { return false };
        let mut quotas =
            policy.each_limit().flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref());
        policy.mode != Mode::Off
            && shared.fleet.share_used(policy) == Share::Leased
            && quotas.any(|quota| shared.leased.is_too_far_for(quota))
    }

    /// Returns the nodes of an engine that does not coordinate them.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.shared.as_ref()?.nodes.as_ref()
    }

    /// Returns how often the engine was found to have lost a key's state, and its clock to be set back.
    pub(crate) fn noticed(&self) -> (u64, u64) {
        self.shared.as_ref().map_or((0, 0), |shared| (shared.leased.losses(), shared.leased.clock_set_back()))
    }

    /// Returns the policies that ask for leases and are decided by the engine, since their limits cannot be leased.
    pub(crate) fn not_leased<'p>(&self, policies: &'p PolicySet) -> Vec<&'p str> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let is_central = |policy: &&Policy| {
            let asked = policy.share.unwrap_or(Share::Leased);
            policy.mode != Mode::Off
                && asked == Share::Leased
                && shared.fleet.share_used(policy) == Share::Central
        };
        policies.policies().iter().filter(is_central).map(|policy| policy.name.as_str()).collect()
    }

    /// Returns whether nodes share an engine.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns of which nodes the counters of a policy are: `all`, those of this `region`, or `this` one; `None` where
    /// nodes do not share an engine.
    pub(crate) fn nodes_counted(&self, policy: &Policy) -> Option<&'static str> {
        let shared = self.shared.as_ref()?;
        Some(match shared.fleet.share_used(policy) {
            Share::Leased | Share::Central if self.region().is_some() => "region",
            Share::Leased | Share::Central => "all",
            Share::Split | Share::Local => "this",
        })
    }

    /// Returns the most units of a key that nodes may hold besides those that its standing has; `None` where they draw
    /// none ahead.
    pub(crate) fn held_at_most(&self, policy: &Policy, standing: &Standing) -> Option<u64> {
        let leases = self.shared.as_ref()?.fleet.share_used(policy) == Share::Leased;
        leases.then(|| standing.limit.saturating_sub(standing.remaining))
    }

    /// Says how far the engine is, which nodes share it, and what may pass beyond a limit without it; empty if no nodes
    /// share one.
    pub(super) fn fleet_in_words(&self, policies: &PolicySet) -> String {
        let Some(shared) = &self.shared else { return String::new() };
        let mut words = Vec::new();
        if let Some(seen) = self.nodes().map(Nodes::seen).filter(|seen| seen.members > 0) {
            let (ms, most) = (seen.round_trip.as_secs_f64() * 1e3, shared.fleet.nodes);
            words.push(format!("answers in {ms:.1} ms, {} of {most} nodes", seen.members));
        }
        if let Some(status) = self.membership() {
            let part = f64::from(status.part) * 100.0 / f64::from(Part::WHOLE);
            words.push(format!("this node has {part:.1} % of what is split"));
        }
        let excess = policies.policies().iter().filter_map(|policy| shared.fleet.possible_excess(policy));
        let excess = excess.fold(0.0, f64::max);
        words.push(match excess {
            _ if excess.is_infinite() => "without it limits are open".to_owned(),
            _ => format!("without it up to {excess:.0} units beyond a limit pass here"),
        });
        words.join(", ")
    }

    /// Returns the region of this node; `None` where regions do not agree on parts.
    pub(crate) fn region(&self) -> Option<&str> {
        self.shared.as_ref()?.member.as_ref()?.region.as_deref()
    }

    /// Returns what brings the policies published for all nodes, and where this node reports what it made of them.
    /// `None` if it uses its own.
    pub(crate) fn cluster_policies(&self) -> Option<ClusterPolicies> {
        let member = self.shared.as_ref()?.member.as_ref().filter(|member| member.cluster_policies)?;
        Some(ClusterPolicies {
            coordinator: Arc::clone(&member.coordinator),
            clock: Arc::clone(&member.clock),
            report: member.report.clone(),
        })
    }

    /// Logs when nodes stop agreeing on their parts and when they agree again.
    /// Called every [`LEASES_EVERY`].
    pub(crate) fn tell_membership(&self) {
        let Some(member) = self.shared.as_ref().and_then(|shared| shared.member.as_ref()) else { return };
        let status = (member.status)();
        let now = LoggedProblems { failed: status.failed.is_some(), too_many: status.too_many };
        let before = std::mem::replace(&mut *member.logged.lock(), now);
        let region = member.region.as_deref();
        match (before.failed, &status.failed) {
            (false, Some(reason)) if region.is_some() => tracing::warn!(
                reason = &**reason,
                region,
                "this node cannot agree with other regions on their parts of the limits; it uses its region's part until that lapses, and then \
                 only the part that is always its own"
            ),
            (false, Some(reason)) => tracing::warn!(
                reason = &**reason,
                "nodes cannot agree on their parts of the limits; this one uses its part until that lapses, and then only the part that is always its own"
            ),
            (true, None) if region.is_some() => {
                tracing::info!(
                    region,
                    "this node agrees with other regions on their parts of the limits again"
                );
            }
            (true, None) => tracing::info!("nodes agree on their parts of the limits again"),
            _ => {}
        }
        match (before.too_many, now.too_many) {
            (false, true) if region.is_some() => tracing::warn!(
                members = status.members,
                "more regions divide the limits than store.region.max says; together they may grant more than a limit until the parts are smaller"
            ),
            (true, false) if region.is_some() => {
                tracing::info!("no more regions divide the limits than store.region.max says");
            }
            (false, true) => tracing::warn!(
                members = status.members,
                "more nodes share the engine than store.nodes says; together they may grant more than a limit until the parts are smaller"
            ),
            (true, false) => tracing::info!("no more nodes share the engine than store.nodes says"),
            _ => {}
        }
    }

    pub(super) fn show(&self, policies: &PolicySet, registry: &mut Registry) {
        if self.kept.is_some() {
            self.base.metrics.store_is(self.base.store_kind, !self.is_away());
        }
        if let Some(shared) = &self.shared {
            stores::show(registry, &shared.leased.health());
            stores::show_engine(registry, &shared.leased);
            self.show_shares(shared, policies, registry);
        }
        if let Some(status) = self.membership() {
            stores::show_part(registry, &status, self.region().is_some());
        }
        self.show_members(registry);
        if let Some(policies) = self.cluster_policies() {
            stores::show_policies(registry, &policies.report.now());
        }
    }
}

impl Storage {
    /// Registers how many nodes or regions there are, and whether they are as the file says.
    fn show_members(&self, registry: &mut Registry) {
        let (status, nodes) = (self.membership(), self.nodes().map(Nodes::seen));
        if let Some(status) = &status {
            stores::show_agreement(registry, status.failed.is_none());
        }
        if let Some(seen) = &nodes {
            stores::show_other_policies(registry, seen.others().len());
            // Else it has not answered.
            if seen.members > 0 {
                stores::show_load(registry, seen.load);
            }
        }
        if status.is_none() && nodes.is_none() {
            return;
        }
        let too_many = status.as_ref().is_some_and(|status| status.too_many)
            || nodes.as_ref().is_some_and(Seen::too_many);
        let members = status.map_or_else(|| nodes.map_or(0, |seen| seen.members), |status| status.members);
        stores::show_members(registry, too_many, members);
    }

    /// Registers what each policy has drawn, and what it may grant without the engine.
    fn show_shares(&self, shared: &EngineSharing, policies: &PolicySet, registry: &mut Registry) {
        let mut out: BTreeMap<String, u64> = BTreeMap::new();
        let mut excess = Vec::new();
        for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            let share = match shared.fleet.share_used(policy) {
                Share::Leased if self.is_too_far_for(policy) => Share::Central,
                share => share,
            };
            if share == Share::Leased {
                out.insert(policy.name.clone(), 0);
            }
            if let Some(units) = shared.fleet.possible_excess(policy) {
                excess.push((policy.name.clone(), share.word(), units));
            }
        }
        shared.leased.each_outstanding(|key, units| {
            // A policy that was removed may have units out.
            let policy = policy_of_key(key).unwrap_or_default();
            match out.get_mut(policy) {
                Some(all) => *all = all.saturating_add(units),
                None => drop(out.insert(policy.to_owned(), units)),
            }
        });
        stores::show_outstanding(registry, out);
        stores::show_possible_excess(registry, excess);
    }
}

// A store in memory that its first use makes, for `share: local` and `split` beside an engine: most files use
// neither, each table takes tens of megabytes, and a reload may begin to use one.

struct OnFirstUse<S> {
    make: Box<dyn Fn() -> Result<S, CapacityError> + Send + Sync>,
    home: Home,
    made: OnceLock<Result<S, CapacityError>>,
}

impl<S: Store> OnFirstUse<S> {
    fn new(make: impl Fn() -> Result<S, CapacityError> + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), home: Home::of_process(), made: OnceLock::new() }
    }

    /// The first call makes the store, which takes some milliseconds.
    fn made(&self) -> Result<&S, StoreError> {
        let made = self.made.get_or_init(&self.make).as_ref();
        made.map_err(|error| StoreError::Unavailable { reason: error.to_string() })
    }
}

impl<S: Store> fmt::Debug for OnFirstUse<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnFirstUse").field("made", &self.made).finish_non_exhaustive()
    }
}

impl<S: Store> Store for OnFirstUse<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.made() {
            Ok(made) => made.execute_into(step, out),
            Err(error) => Execution::Done(Err(error)),
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        match self.made() {
            Ok(made) => made.execute_each(steps, out),
            Err(error) => {
                out.clear();
                out.extend(steps.iter().map(|_| Err(error.clone())));
                None
            }
        }
    }

    fn fetch(&self, keys: &[&[u8]]) {
        if let Some(Ok(made)) = self.made.get() {
            made.fetch(keys);
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.made.get().and_then(|made| made.as_ref().ok()).map(Store::occupancy).unwrap_or_default()
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.always_decides = true;
        caps
    }

    fn home(&self) -> Home {
        self.home
    }
}

#[cfg(test)]
mod tests {
    use tidegate::store::MemoryStore;

    use super::*;

    #[test]
    fn a_table_is_made_by_the_first_step_and_says_of_itself_what_others_do() {
        let lazy = OnFirstUse::new(|| MemoryStore::with_capacity(100));
        assert_eq!(lazy.caps(), MemoryStore::with_capacity(1).unwrap().caps());
        assert_eq!(lazy.occupancy().capacity, 0);
        let quota = Arc::new(Quota::per_minute(1).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::ONE)];
        let take =
            || lazy.blocking_execute(&Step::new(Tick::from_secs(1), Op::Take, &charges)).unwrap().allowed;
        assert_eq!([take(), take()], [true, false]);
        assert!(lazy.occupancy().capacity >= 100);
        let none = OnFirstUse::new(|| MemoryStore::with_capacity(usize::MAX));
        let refused = none.blocking_execute(&Step::new(Tick::EPOCH, Op::Take, &charges)).unwrap_err();
        assert!(refused.to_string().contains("a table cannot have room"), "{refused}");
    }
}
