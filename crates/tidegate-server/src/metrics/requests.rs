//! How requests end, requests in flight, how long requests are delayed, and how long deciding takes.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

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

// Histograms of decision times, counted by each thread separately: the one lock of a library histogram costs as much
// as deciding a limit, and more under contention.

/// Upper bounds in nanoseconds. In memory a decision takes under one microsecond, over a network milliseconds.
const BOUNDS: [u64; 12] = [
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    50_000,
    250_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

/// The number of parts in which threads count. With more threads, some share a part.
const PARTS: usize = 8;

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionTimes(Arc<[TimeCounts; PARTS]>);

/// The counts of some threads, on their own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct TimeCounts {
    /// Indexed by the first bound that is not exceeded; the last count has no bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Default for TimeCounts {
    fn default() -> Self {
        Self { counts: array::from_fn(|_| AtomicU64::new(0)), nanos: AtomicU64::new(0) }
    }
}

impl DecisionTimes {
    /// Records the duration of a decision.
    pub(crate) fn observe(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS.iter().position(|bound| nanos <= *bound).unwrap_or(BOUNDS.len());
        // Relaxed: each number is read by itself.
        let part = &self.0[own_part()];
        part.counts[at].fetch_add(1, Ordering::Relaxed);
        part.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns each upper bound in nanoseconds with the count above the bound before; the last bound is `u64::MAX`.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (u64, u64)> {
        let of =
            move |at: usize| self.0.iter().map(|part| part.counts[at].load(Ordering::Relaxed)).sum::<u64>();
        BOUNDS.into_iter().chain([u64::MAX]).enumerate().map(move |(at, bound)| (bound, of(at)))
    }
}

/// Returns the index of this thread's part.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    // Fails only while the thread ends.
    OWN.try_with(|own| *own).unwrap_or(0)
}

impl EncodeMetric for DecisionTimes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let sum = |of: &dyn Fn(&TimeCounts) -> &AtomicU64| {
            self.0.iter().map(|part| of(part).load(Ordering::Relaxed)).sum::<u64>()
        };
        let bounds = BOUNDS.into_iter().map(seconds).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.enumerate().map(|(at, bound)| (bound, sum(&|part| &part.counts[at]))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(seconds(sum(&|part| &part.nanos)), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for DecisionTimes {
    const TYPE: MetricType = MetricType::Histogram;
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Metric;

    use super::*;

    #[test]
    fn it_is_written_as_the_librarys() {
        let (own, library) = (DecisionTimes::default(), Histogram::new(BOUNDS.map(seconds)));
        for nanos in [0, 249, 250, 251, 9_999, 1_000_000_000, 60_000_000_000] {
            let took = Duration::from_nanos(nanos);
            std::thread::scope(|scope| _ = scope.spawn(|| own.observe(took)));
            library.observe(took.as_secs_f64());
        }
        fn written(metric: impl Metric) -> String {
            let (mut registry, mut text) = (Registry::default(), String::new());
            registry.register_with_unit("decision_duration", "Times", Unit::Seconds, metric);
            encode(&mut text, &registry).unwrap();
            text
        }
        let (own, library) = (written(own), written(library));
        // The library rounds its sum at each step.
        let lines = |text: &str| {
            text.lines().filter(|line| !line.contains("_sum")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&own), lines(&library));
        assert!(own.contains("decision_duration_seconds_sum 61.000010749\n"), "{own}");
    }
}
