//! What all parts of the engine stand on: the gate, the configuration in force, and where they tell what they do.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tidegate::store::{Occupancy, Store};
use tidegate::{Gate, Tick};

use crate::active_config::ActiveConfig;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::redact::Redact;

/// The ground of the engine's parts. Made once, and shared by all of them.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) gate: Gate,
    pub(super) live: ArcSwap<ActiveConfig>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: Arc<Events>,
    /// Hides keys in what is told.
    pub(super) redact: Redact,
    /// The store beneath the gate.
    pub(super) store: Arc<dyn Store>,
    pub(super) store_kind: &'static str,
    /// Whether a decision never waits: the only store is in this process's memory.
    pub(super) decides_at_once: bool,
    /// When this process started, by the gate's clock.
    pub(super) started: Tick,
}

impl Base {
    /// Returns the settings in force, held by an arc-swap guard: a shared reference count would be written by all
    /// threads. Keep the guard for one request at most.
    pub(super) fn live(&self) -> Guard<Arc<ActiveConfig>> {
        self.live.load()
    }

    /// Returns the present tick of the gate's clock.
    pub(super) fn now(&self) -> Tick {
        self.gate.now()
    }

    /// Returns how full the store is.
    pub(super) fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    /// Counts a step that the store could not settle.
    pub(super) fn count_store_error(&self) {
        self.metrics.store_error(self.store_kind);
    }
}
