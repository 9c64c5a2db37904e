//! Wraps a store that may fail in a fallback, and reports when the store goes away and comes back.

use std::sync::Arc;

use serde_json::json;
use tidegate::store::fallback::{Change, OUTAGE_AFTER};
use tidegate::store::{Charge, Fallback, Op, Settled, Step, Store};
use tidegate::{Clock, Cost, Quota, Tick, visible};

use super::timed_store::TimedStore;
use crate::events::Events;
use crate::metrics::{Metrics, StoreState};
use crate::stores::Sharing;

/// Returns the fallback between the gate and a store that may fail; `None` for a store in this process, which cannot.
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

/// Marks an engine as away that was unreachable when the server started, so that no request has to find out.
pub(super) fn find_away(fallback: &Fallback, now: Tick) {
    let quota = Arc::new(Quota::per_second(1).gcra().expect("a rate in range"));
    let charges = [Charge::new(&[0], &quota, Cost::ONE)];
    // The fallback answers at once. The answer does not matter: no policy uses this key.
    for _ in 0..OUTAGE_AFTER {
        let _ = fallback.settle_into(&Step::new(now, Op::Peek, &charges), &mut Settled::default());
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
