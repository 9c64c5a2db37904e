//! Whether a store is available, and how often it went away and came back.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The series about the state of one store.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(super) shown: Gauge<i64, AtomicI64>,
    pub(super) went: Counter,
    pub(super) came_back: Counter,
}

impl StoreState {
    /// Records that the store went away or came back.
    pub(crate) fn turn(&self, up: bool) {
        self.shown.set(i64::from(up));
        if up {
            self.came_back.inc()
        } else {
            self.went.inc()
        };
    }
}
