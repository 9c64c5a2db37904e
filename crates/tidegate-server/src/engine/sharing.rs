//! Which store decides which word of `share`, where several nodes share an engine.
//!
//! ```text
//! share: leased (unless said) ──▶ Leased ──▶ Fallback ──▶ the engine
//! share: central ───────────────────────────▶ Fallback
//! share: split ──▶ this node's part of each limit, in memory
//! share: local ──▶ memory
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::Part;
use tidegate::cluster::shares::{Division, Driver, Status};
use tidegate::policy::{PolicySet, Share};
use tidegate::store::{CapacityError, Leased, MemoryStore, Split, Store};
use tidegate::{Clock, Gate};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Engine;
use crate::stores::Sharing;

/// How often what leases hold is looked at: a few times in the second that units may be held.
pub(crate) const LEASES_EVERY: Duration = Duration::from_millis(250);

/// How long a node that stops waits until it is no member any more.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// What a node has where it shares an engine with others.
pub(super) struct Shared {
    /// Units drawn from the engine ahead of time.
    leased: Leased,
    /// This node among the others, where they agree on their parts.
    member: Option<Membership>,
}

/// A node's membership while it runs.
struct Membership {
    /// How many requests were decided: the demand by which nodes divide limits.
    demand: Arc<AtomicU64>,
    status: Box<dyn Fn() -> Status + Send + Sync>,
    /// Ends it, and the task that keeps it.
    leaves: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.member.as_ref().map(|member| (member.status)());
        f.debug_struct("Shared")
            .field("leased", &self.leased)
            .field("status", &status)
            .finish_non_exhaustive()
    }
}

/// Makes the gate of a node that shares an engine, asked as `engine`, with others; inside a tokio runtime. `name` tells it from them.
///
/// # Errors
/// [`CapacityError`] when there is no memory for what the node counts by itself.
pub(super) fn gate(
    policies: Arc<PolicySet>,
    engine: Arc<dyn Store>,
    sharing: &Sharing,
    clock: &Arc<dyn Clock>,
    name: &str,
) -> Result<(Gate, Shared), CapacityError> {
    let runtime = Handle::current();
    let (part, member) = match &sharing.coordinator {
        None => (Part::even(sharing.nodes), None),
        Some(coordinator) => {
            let demand = Arc::<AtomicU64>::default();
            let asked = Arc::clone(&demand);
            // Relaxed: a number that is averaged over seconds.
            let demanded = move || asked.load(Ordering::Relaxed);
            let division = Division::among(sharing.nodes);
            let driver = Driver::new(Arc::clone(coordinator), Arc::clone(clock), name, division, demanded);
            let (part, status) = (driver.part(), Box::new(driver.status()));
            let (leaves, over) = oneshot::channel();
            let task = runtime.spawn(driver.run(async move { drop(over.await) }));
            (part, Some(Membership { demand, status, leaves: Mutex::new(Some((leaves, task))) }))
        }
    };
    let leased = Leased::around(Arc::clone(&engine), Arc::clone(clock))
        .part(part.clone())
        .background(move |later| drop(runtime.spawn(later)))
        .build();
    let memory = || MemoryStore::with_capacity(sharing.keys);
    let gate = Gate::new(policies, leased.clone())
        .with_store(Share::Leased, leased.clone())
        .with_store(Share::Central, engine)
        .with_store(Share::Split, Split::new(memory()?, part))
        .with_store(Share::Local, memory()?);
    Ok((gate, Shared { leased, member }))
}

impl Engine {
    /// Counts a request of this node, where nodes divide limits by their demand.
    #[inline]
    pub(super) fn note_demand(&self, requests: u64) {
        if let Some(member) = self.shared.as_ref().and_then(|shared| shared.member.as_ref()) {
            member.demand.fetch_add(requests, Ordering::Relaxed);
        }
    }

    /// Gives back what leases held too long. Called every [`LEASES_EVERY`].
    pub(crate) async fn tidy_leases(&self) {
        let Some(shared) = &self.shared else { return };
        if let Some(returned) = shared.leased.tick(self.now()) {
            returned.await;
        }
    }

    /// Gives back what leases hold, ends this node's membership, and has counters kept for the last time. Called when no request comes any
    /// more.
    pub(crate) async fn close_stores(&self) {
        if let Some(shared) = &self.shared {
            shared.leased.close().await;
            let leaving = shared.member.as_ref().and_then(|member| member.leaves.lock().take());
            if let Some((leaves, task)) = leaving {
                let _ = leaves.send(());
                // Others find out by themselves, if the engine does not answer now.
                let _ = tokio::time::timeout(LEAVES_WITHIN, task).await;
            }
        }
        let Some(kept) = self.kept.clone() else { return };
        match tokio::task::spawn_blocking(move || kept.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the last counters were not written"),
            Err(error) => tracing::error!(%error, "the store could not be closed"),
        }
    }

    /// Returns why counters cannot be kept at present, and for how long that has been so.
    pub(crate) fn trouble(&self) -> Option<(String, Duration)> {
        self.kept.as_ref()?.trouble()
    }

    /// Returns how this node stands among the others, where they agree on their parts.
    pub(crate) fn membership(&self) -> Option<Status> {
        let member = self.shared.as_ref()?.member.as_ref()?;
        Some((member.status)())
    }

    /// Sets what metrics tell of stores that are looked at when they are read.
    pub(super) fn show_store(&self) {
        if self.kept.is_some() {
            self.metrics.store_is(self.store_kind, self.trouble().is_none());
        }
        if let Some(shared) = &self.shared {
            self.metrics.leases.show(&shared.leased.health());
        }
        if let Some(status) = self.membership() {
            self.metrics.leases.show_part(&status);
        }
    }
}
