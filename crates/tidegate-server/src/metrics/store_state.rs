//! Whether a store is there, and how often it went and came back.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The series of how one store is.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(super) shown: Gauge<i64, AtomicI64>,
    pub(super) went: Counter,
    pub(super) came_back: Counter,
}

impl StoreState {
    /// Notes that it went or came back.
    pub(crate) fn turn(&self, up: bool) {
        self.shown.set(i64::from(up));
        if up {
            self.came_back.inc()
        } else {
            self.went.inc()
        };
    }
}
