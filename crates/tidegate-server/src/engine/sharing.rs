//! Which store decides which word of `share`, where several nodes share an engine.
//!
//! ```text
//! share: leased (unless said) ──▶ Leased ──▶ Fallback ──▶ the engine
//! share: central ───────────────────────────▶ Fallback
//! share: split ──▶ this node's part of each limit, in memory
//! share: local ──▶ memory
//! ```

use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Part;
use tidegate::policy::{PolicySet, Share};
use tidegate::store::{CapacityError, Fallback, Leased, MemoryStore, Store};
use tidegate::{Clock, Gate};
use tokio::runtime::Handle;

use super::Engine;
use crate::stores::Sharing;

/// How often what leases hold is looked at: a few times in the second that units may be held.
pub(crate) const LEASES_EVERY: Duration = Duration::from_millis(250);

/// Makes the gate, and what draws units ahead of time where there is an engine to draw them from.
pub(super) fn gate(
    policies: Arc<PolicySet>,
    store: &Arc<dyn Store>,
    fallback: Option<&Fallback>,
    sharing: Option<&Sharing>,
    clock: &Arc<dyn Clock>,
) -> Result<(Gate, Option<Leased>), CapacityError> {
    let asked: Arc<dyn Store> = match fallback {
        Some(fallback) => Arc::new(fallback.clone()),
        None => Arc::clone(store),
    };
    let Some(sharing) = sharing else { return Ok((Gate::new(policies, asked), None)) };
    let runtime = Handle::current();
    let part = Part::even(sharing.nodes);
    let leased = Leased::around(Arc::clone(&asked), Arc::clone(clock))
        .part(part)
        .background(move |later| drop(runtime.spawn(later)))
        .build();
    let memory = || MemoryStore::with_capacity(sharing.keys);
    let gate = Gate::new(policies, leased.clone())
        .with_store(Share::Leased, leased.clone())
        .with_store(Share::Central, asked)
        .with_store(Share::Local, memory()?);
    Ok((gate, Some(leased)))
}

impl Engine {
    /// Gives back what leases held too long. Called every [`LEASES_EVERY`].
    pub(crate) async fn tidy_leases(&self) {
        if let Some(returned) = self.leased.as_ref().and_then(|leased| leased.tick(self.now())) {
            returned.await;
        }
    }

    /// Gives back what leases hold, and has counters kept for the last time. Called when no request comes any more.
    pub(crate) async fn close_stores(&self) {
        if let Some(leased) = &self.leased {
            leased.close().await;
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

    /// Sets what metrics tell of stores that are looked at when they are read.
    pub(super) fn show_store(&self) {
        if self.kept.is_some() {
            self.metrics.store_is(self.store_kind, self.trouble().is_none());
        }
        if let Some(leased) = &self.leased {
            self.metrics.leases.show(&leased.health());
        }
    }
}
