//! How requests end, requests in flight, and how long requests are delayed.

use std::array;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::decision_times::{PARTS, own_part};
use super::labels::{
    Decided, PolicyLabel, RequestLabels, RequestOutcome, ThrottleLabel, Transport, TransportLabel,
};
use super::new_series;

/// Upper bounds of delays, in seconds: `max_wait` is milliseconds for a queue that smooths bursts, seconds for one
/// that schedules.
const WAITS: [f64; 12] = [1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0, 5.0, 30.0];

/// The series of requests. Those of delays are made with a policy's first delay.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Indexed by the position in [`Transport::ALL`].
    in_flight: [Gauge<i64, AtomicI64>; Transport::ALL.len()],
    waits: Family<PolicyLabel, Histogram, fn() -> Histogram>,
    /// In parts, since each request is counted, and a counter that all threads share costs as much as deciding.
    outcomes: [OutcomeCounts; PARTS],
}

/// The counts of some threads, on their own cache lines: by transport and outcome.
#[derive(Debug)]
#[repr(align(128))]
struct OutcomeCounts([[AtomicU64; RequestOutcome::ALL.len()]; Transport::ALL.len()]);

#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a Gauge<i64, AtomicI64>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Requests {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let in_flight: Family<TransportLabel, Gauge<i64, AtomicI64>> = new_series(
            registry,
            "requests_inflight",
            "Requests being answered, by transport, including the request for these metrics",
        );
        let waits = Family::new_with_constructor((|| Histogram::new(WAITS)) as fn() -> Histogram);
        registry.register_with_unit(
            "queue_wait",
            "How long a policy with max_wait delayed requests",
            Unit::Seconds,
            waits.clone(),
        );
        let of = |transport| in_flight.get_or_create_owned(&TransportLabel { transport });
        let none = || OutcomeCounts(array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))));
        Self { in_flight: Transport::ALL.map(of), waits, outcomes: array::from_fn(|_| none()) }
    }

    /// Counts a request by how it ended. Returns how many ended like this before, as this thread counts them.
    pub(crate) fn count(&self, transport: Transport, outcome: RequestOutcome) -> u64 {
        // Relaxed: each number is read by itself.
        self.outcomes[own_part()].0[transport as usize][outcome as usize].fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn decided(&self) -> u64 {
        let each = Transport::ALL
            .into_iter()
            .flat_map(|transport| RequestOutcome::ALL.into_iter().map(move |outcome| (transport, outcome)));
        let decided = each.filter(|(_, outcome)| *outcome != RequestOutcome::invalid);
        decided.map(|(transport, outcome)| self.counted(transport, outcome)).sum()
    }

    pub(crate) fn counted(&self, transport: Transport, outcome: RequestOutcome) -> u64 {
        let of = |part: &OutcomeCounts| part.0[transport as usize][outcome as usize].load(Ordering::Relaxed);
        self.outcomes.iter().map(of).sum()
    }

    /// Registers how many requests ended how.
    pub(super) fn show(&self, registry: &mut Registry) {
        let family = Family::<RequestLabels, Counter>::default();
        for transport in Transport::ALL {
            for outcome in RequestOutcome::ALL {
                let count = self.counted(transport, outcome);
                family.get_or_create(&RequestLabels { transport, outcome }).inc_by(count);
            }
        }
        registry.register("requests", "Requests of each door, each counted once, by how they ended, and each check of a batch; not peeks", family);
    }

    /// Counts a request in flight until the value is dropped, also if its caller hangs up.
    pub(crate) fn begin(&self, transport: Transport) -> InFlight<'_> {
        let gauge = &self.in_flight[transport as usize];
        gauge.inc();
        InFlight(gauge)
    }

    pub(crate) fn in_flight(&self) -> usize {
        // Read one after the other (relaxed); none is ever negative.
        let sum: i64 = self.in_flight.iter().map(Gauge::get).sum();
        usize::try_from(sum).unwrap_or(0)
    }

    /// Records how long a policy delays a request.
    pub(crate) fn waits(&self, policy: &str, wait: Duration) {
        self.waits.get_or_create(&PolicyLabel { policy: policy.to_owned() }).observe(wait.as_secs_f64());
    }

    /// Drops the series of a removed policy.
    pub(super) fn forget(&self, policy: &str) {
        self.waits.remove(&PolicyLabel { policy: policy.to_owned() });
    }
}

// Counts decisions on limits that callers bring along.

/// The counters, looked up once. A delayed decision counts as allowed: Redis clients never wait.
#[derive(Debug)]
pub(crate) struct Throttled {
    allowed: Counter,
    denied: Counter,
    error: Counter,
}

impl Throttled {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let series: Family<ThrottleLabel, Counter> = new_series(
            registry,
            "throttle_decisions",
            "Decisions on limits that Redis clients send (CL.THROTTLE), except those of quantity 0",
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
