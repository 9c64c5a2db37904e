//! Counts decisions on limits that callers bring along.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::labels::{Decided, ThrottleLabel};

/// The counters, looked up once. A delayed decision counts as allowed: Redis clients are never made to wait.
#[derive(Debug)]
pub(crate) struct Throttled {
    allowed: Counter,
    denied: Counter,
    error: Counter,
}

impl Throttled {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let series = Family::<ThrottleLabel, Counter>::default();
        registry.register(
            "throttle_decisions",
            "Decisions on limits that Redis clients send (CL.THROTTLE), except those of quantity 0",
            series.clone(),
        );
        let of = |decision| series.get_or_create_owned(&ThrottleLabel { decision });
        Self { allowed: of(Decided::allowed), denied: of(Decided::denied), error: of(Decided::error) }
    }

    /// Counts a decision.
    pub(crate) fn count(&self, decision: Decided) {
        let series = match decision {
            Decided::allowed | Decided::delayed => &self.allowed,
            Decided::denied => &self.denied,
            Decided::error => &self.error,
        };
        series.inc();
    }
}
