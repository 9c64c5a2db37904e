//! Histograms of decision times, counted by each thread separately: the one lock of a library histogram costs as much
//! as deciding a limit, and more under contention.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

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
pub(super) const PARTS: usize = 8;

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
}

/// Returns the index of this thread's part.
pub(super) fn own_part() -> usize {
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
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::{Metric, Registry, Unit};

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
