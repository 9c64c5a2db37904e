//! Times the answers of a store that may fail, and logs keys that it cannot settle.
//!
//! It stands beneath the fallback, so that calls that were given up count too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::histogram::Histogram;
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::{Executed, Execution, Later, Occupancy, Step, StepAnswer, Store, StoreError};
use tidegate::{Limiter, Quota, Tick};

use crate::metrics::{StoreOp, StoreTimes};
use crate::span_attributes;

/// How many lines may be logged at once.
const BURST: u64 = 3;
/// How many lines a minute may be logged after that.
const PER_MINUTE: u64 = 1;

/// Times answers that come later. Those that are there at once cost nothing.
#[derive(Debug)]
pub(super) struct TimedStore<S> {
    store: S,
    times: StoreTimes,
    errors: Arc<KeyErrors>,
}

impl<S: Store> TimedStore<S> {
    pub(super) fn new(store: S, times: StoreTimes, kind: &'static str) -> Self {
        Self { store, times, errors: Arc::new(KeyErrors::of(kind)) }
    }

    fn timed<T: Send + 'static>(
        &self,
        op: StoreOp,
        later: Later<T>,
        each: impl Fn(&T, &KeyErrors) + Send + 'static,
    ) -> Later<T> {
        let (times, errors) = (self.times.series(op), Arc::clone(&self.errors));
        Box::pin(async move {
            // The system's clock, not the gate's, which a test may stop.
            let timer = Timer { times, since: SystemClock::new().now() };
            let answer = later.await;
            drop(timer);
            each(&answer, &errors);
            answer
        })
    }
}

/// Records its time when dropped: the store has answered, or was given up.
struct Timer {
    times: Histogram,
    since: Tick,
}

impl Drop for Timer {
    fn drop(&mut self) {
        let took = SystemClock::new().now().since(self.since);
        self.times.observe(took.as_secs_f64());
        span_attributes::note(|notes| span_attributes::add(&mut notes.store, took));
    }
}

impl<S: Store> Store for TimedStore<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.store.execute_into(step, out) {
            Execution::Later(later) => {
                Execution::Later(
                    self.timed(StoreOp::of(step.op), later, |answer, errors| errors.note(answer)),
                )
            }
            done => done,
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let later = self.store.execute_each(steps, out)?;
        let each =
            |answers: &Vec<StepAnswer>, errors: &KeyErrors| answers.iter().for_each(|one| errors.note(one));
        Some(self.timed(StoreOp::batch, later, each))
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}

/// Logs, in part, steps that a store could not execute because of the data under their keys, and counts the rest.
///
/// Nothing else reports them: the store answers, and `on_store_error` decides. A foreign program overwrote keys, or
/// too many nodes write one at once. Meanwhile each node grants its own part of the limit.
#[derive(Debug)]
struct KeyErrors {
    store: &'static str,
    often: Limiter,
    left_out: AtomicU64,
}

impl KeyErrors {
    /// Makes the log limit of a store of this kind.
    fn of(store: &'static str) -> Self {
        let quota = Quota::per_minute(PER_MINUTE).burst(BURST).gcra().expect("a rate in range");
        Self { store, often: Limiter::new(quota).expect("a quota in range"), left_out: AtomicU64::new(0) }
    }

    fn note(&self, answer: &StepAnswer) {
        let Err(error) = answer else { return };
        if !matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::CellTooLarge { .. } | StoreError::Contended { .. }
        ) {
            return;
        }
        // Relaxed: the count stands alone, and only people read it.
        if !self.often.admit() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            store = self.store,
            reason = %error,
            why,
            left_out,
            "the store cannot settle a key; on_store_error decides its requests"
        );
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Cost;
    use tidegate::store::{Charge, Op};

    use super::*;
    use crate::metrics::Metrics;

    /// Never answers.
    #[derive(Debug)]
    struct Hanging;

    impl Store for Hanging {
        fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
            Execution::Later(Box::pin(std::future::pending()))
        }

        fn occupancy(&self) -> Occupancy {
            Occupancy::default()
        }
    }

    #[tokio::test]
    async fn a_step_that_nobody_waits_for_any_longer_is_noted_and_one_never_asked_is_not() {
        let metrics = Metrics::new();
        let store = TimedStore::new(Hanging, metrics.store_times("redis"), "redis");
        let quota = Arc::new(Quota::per_minute(10).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::ONE)];
        let asked = |op| {
            let step = Step::new(Tick::from_secs(1000), op, &charges);
            let Execution::Later(later) = store.execute_into(&step, &mut Executed::default()) else {
                panic!()
            };
            later
        };
        drop(asked(Op::Peek));
        assert!(tokio::time::timeout(std::time::Duration::ZERO, asked(Op::Take)).await.is_err());
        let text = metrics.write(Tick::EPOCH, Occupancy::default(), [].into_iter(), |_| {});
        let count = |op: &str, count: u32| {
            let line = format!(
                "tidegate_store_operation_duration_seconds_count{{store=\"redis\",op=\"{op}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        };
        count("take", 1);
        count("peek", 0);
    }
}
