//! What stands between the gate and a store that may fail, and what is said when that goes and comes back.

use std::sync::Arc;

use tidegate::Clock;
use tidegate::store::fallback::Change;
use tidegate::store::{Fallback, Store};

use crate::metrics::{Metrics, StoreState};

/// Returns what stands between the gate and a store, where the store may fail: one in memory cannot, and needs nothing.
pub(super) fn fallback_for(
    store: &Arc<dyn Store>,
    kind: &'static str,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Option<Fallback> {
    if store.caps().always_decides {
        return None;
    }
    let states = metrics.store_states(kind);
    let told = move |change: &Change| tell(change, kind, &states);
    Some(Fallback::around(Arc::clone(store), Arc::clone(clock)).on_change(told).build())
}

fn tell(change: &Change, store: &'static str, states: &StoreState) {
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
        false => tracing::warn!(
            store,
            reason,
            "the store is gone; until it is back, policies go by on_store_error"
        ),
    }
}
