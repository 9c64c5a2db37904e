//! Builds the gate of a node that shares an engine with others: which store decides each value of `share`.
//!
//! ```text
//! share: leased (unless said) ──▶ Leased ──▶ Fallback ──▶ the engine
//! share: central ───────────────────────────▶ Fallback
//! share: split ──▶ this node's part of each limit, in memory
//! share: local ──▶ memory
//! ```
//!
//! If several regions, each with its own engine, divide the limits, the region's part applies before its engine is asked:
//!
//! ```text
//! share: leased (unless said) ──▶ Regional ──▶ Leased ──▶ Fallback ──▶ the region's engine
//! share: central ─────────────▶ Regional ───────────────▶ Fallback
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::Gate;
use tidegate::clock::Clock;
use tidegate::cluster::shares::{Division, Driver, Status};
use tidegate::cluster::{self, Coordinator, Part};
use tidegate::limiter::Rate;
use tidegate::policy::{PolicySet, Share};
use tidegate::store::{
    Executed, Execution, Later, Leased, MemoryStore, Occupancy, Op, Regional, Split, Step, StepAnswer, Store,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::OnFirstUse;
use super::roster::Nodes;
use crate::stores::{Fleet, Sharing};

pub(crate) struct EngineSharing {
    /// Units drawn from the engine in advance.
    pub(super) leased: Leased,
    pub(super) fleet: Fleet,
    /// The nodes of an engine that does not coordinate them.
    pub(super) nodes: Option<Nodes>,
    /// This node's membership, where nodes agree on their parts.
    pub(super) member: Option<Membership>,
}

/// The running membership of a node.
pub(super) struct Membership {
    /// The state of the agreement among nodes or regions.
    pub(super) status: Box<dyn Fn() -> Status + Send + Sync>,
    /// The region of this node, where regions agree instead of nodes.
    pub(super) region: Option<String>,
    /// The problems that the log was told of last.
    pub(super) logged: Mutex<LoggedProblems>,
    /// The coordinator by which nodes agree, and what this node tells the others through it.
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) report: cluster::OwnReport,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) cluster_policies: bool,
    pub(super) presence: watch::Sender<Presence>,
    /// Maintains the membership, until it is over.
    pub(super) task: Mutex<Option<JoinHandle<()>>>,
}

/// Whether this node is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Member,
    /// It has left, and may join again.
    Away,
    /// It has left for good.
    Over,
}

/// The problems of a membership that the log reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedProblems {
    /// The last round failed.
    pub(super) failed: bool,
    /// There are more members than the configured maximum.
    pub(super) too_many: bool,
}

impl fmt::Debug for EngineSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.member.as_ref().map(|member| (member.status)());
        f.debug_struct("EngineSharing")
            .field("leased", &self.leased)
            .field("status", &status)
            .finish_non_exhaustive()
    }
}

/// Makes the gate of a node that shares `engine`; `name` identifies it among the others. Call it inside a tokio
/// runtime.
pub(crate) fn shared_gate(
    policies: Arc<PolicySet>,
    engine: Arc<dyn Store>,
    sharing: &Sharing,
    clock: &Arc<dyn Clock>,
    name: &str,
) -> (Gate, EngineSharing) {
    let runtime = Handle::current();
    let demand = AskedUnits::default();
    let member = Membership::of(sharing, clock, name, &demand);
    // Demand does not divide the region's engine among the nodes of the region: each has an even part.
    let agreed = member.as_ref().map(|(_, part)| part.clone());
    let part =
        agreed.clone().filter(|_| sharing.region.is_none()).unwrap_or_else(|| Part::even(sharing.nodes));
    let leased = Leased::around(Arc::clone(&engine), Arc::clone(clock))
        .nodes(sharing.nodes)
        .part(part.clone())
        .background(move |later| drop(runtime.spawn(later)))
        .build();
    let (keys, full_keys) = (sharing.keys, sharing.full_keys);
    let memory = move || match full_keys {
        true => MemoryStore::with_full_keys(keys),
        false => MemoryStore::with_capacity(keys),
    };
    let local = OnFirstUse::new(memory);
    let gate = match agreed.filter(|_| sharing.region.is_some()) {
        Some(of_region) => {
            let lent = demand.of(Regional::around(leased.clone(), of_region.clone()));
            let central = demand.of(Regional::around(engine, of_region));
            Gate::new(policies, lent).with_own_store_for(Share::Leased).with_store(Share::Central, central)
        }
        None => {
            let split = OnFirstUse::new(move || Ok(Split::new(memory()?, part.clone())));
            let (lent, split) = (demand.of(leased.clone()), demand.of(split));
            let gate = Gate::new(policies, lent).with_own_store_for(Share::Leased);
            gate.with_store(Share::Central, engine).with_store(Share::Split, split)
        }
    };
    let member = member.map(|(member, _)| member);
    let nodes = sharing.roster.clone().map(|roster| Nodes::new(roster, name, sharing.nodes));
    let fleet =
        Fleet { nodes: sharing.nodes, regions: sharing.region.as_ref().map_or(1, |region| region.most) };
    (gate.with_store(Share::Local, local), EngineSharing { leased, fleet, nodes, member })
}

impl Membership {
    /// Joins the agreement on parts, if a coordinator is configured. Returns this node's part too.
    fn of(
        sharing: &Sharing,
        clock: &Arc<dyn Clock>,
        name: &str,
        demand: &AskedUnits,
    ) -> Option<(Self, Part)> {
        let (coordinator, most) = match (&sharing.region, &sharing.coordinator) {
            (Some(region), _) => (&region.coordinator, region.most),
            (None, coordinator) => (coordinator.as_ref()?, sharing.nodes),
        };
        let asked = demand.clone();
        let (demanded, division) = (move || asked.units(), Division::among(most));
        let region = sharing.region.as_ref().map(|region| region.name.clone());
        let mut driver = Driver::new(Arc::clone(coordinator), Arc::clone(clock), name, division, demanded)
            .in_region(region.as_deref().unwrap_or_default());
        let (part, status, report) = (driver.part(), Box::new(driver.status()), driver.own_report());
        let presence = watch::Sender::new(Presence::Member);
        let mut wanted = presence.subscribe();
        let task = Handle::current().spawn(async move {
            loop {
                let mut seen = wanted.clone();
                // An error means that the server is gone.
                driver.run(async move { drop(seen.wait_for(|now| *now != Presence::Member).await) }).await;
                let next = wanted.wait_for(|now| *now != Presence::Away).await;
                if next.is_ok_and(|next| *next == Presence::Member) {
                    continue;
                }
                break;
            }
        });
        let member = Self {
            status,
            region,
            logged: Mutex::default(),
            coordinator: Arc::clone(coordinator),
            report,
            clock: Arc::clone(clock),
            cluster_policies: sharing.cluster_policies,
            presence,
            task: Mutex::new(Some(task)),
        };
        Some((member, part))
    }
}

/// The units asked of stores whose limits nodes divide, whether allowed or not: the demand by which nodes divide
/// limits among themselves. Clones share the count.
#[derive(Clone, Debug, Default)]
struct AskedUnits(Arc<AtomicU64>);

impl AskedUnits {
    /// Counts the units of a store's `take` steps.
    fn of(&self, store: impl Store + 'static) -> impl Store + 'static {
        MeteredStore { store, demand: self.clone() }
    }

    /// Returns how many units were asked for since the start.
    fn units(&self) -> u64 {
        // Relaxed, here and below: the number stands alone and is averaged over seconds.
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, step: &Step<'_>) {
        if matches!(step.op, Op::Take) {
            // What can never be granted, or has no known cost, is no demand that more of the limit would meet.
            let units = step.charges.iter().map(|charge| charge.cost.units());
            let units = units.filter(|units| *units < Rate::MAX_COUNT).fold(0, u64::saturating_add);
            self.0.fetch_add(units, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct MeteredStore<S> {
    store: S,
    demand: AskedUnits,
}

impl<S: Store> Store for MeteredStore<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.demand.note(step);
        self.store.execute_into(step, out)
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        steps.iter().for_each(|step| self.demand.note(step));
        self.store.execute_each(steps, out)
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::store::{Charge, PlainStore};
    use tidegate::{Cost, Quota, Tick};

    use super::*;

    /// Regression: batches were not counted, a check of a hundred units counted as one, and peeks were counted.
    #[test]
    fn units_that_are_asked_for_count_alone_or_in_a_batch_and_looks_do_not() {
        let demand = AskedUnits::default();
        let store = demand.of(PlainStore::default());
        let quota = Arc::new(Quota::per_minute(10).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::new(7).unwrap())];
        let step = |op| Step::new(Tick::from_secs(1000), op, &charges);
        let _ = store.blocking_execute(&step(Op::Take));
        assert_eq!(demand.units(), 7);
        let _ = store.blocking_execute(&step(Op::Peek));
        assert_eq!(demand.units(), 7);
        assert!(store.execute_each(&[step(Op::Take), step(Op::Take)], &mut Vec::new()).is_none());
        assert_eq!(demand.units(), 21);
    }
}
