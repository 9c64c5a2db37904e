//! Measures how long an engine takes, and logs the keys that it cannot settle. Wraps the engine directly, inside the
//! fallback, so that calls that were given up are measured too.

use std::sync::Arc;

use prometheus_client::metrics::histogram::Histogram;
use tidegate::store::{Answer, Later, Occupancy, Settled, Settling, Step, Store};
use tidegate::{Clock, SystemClock, Tick};

use super::key_errors::KeyErrors;
use crate::metrics::{StoreOp, StoreTimes};
use crate::span_attributes;

/// Times answers of an engine that come later. Answers that are there at once are not timed, and cost nothing.
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
            // Uses the system's clock, not the gate's, which a test may stop.
            let timer = Timer { times, since: SystemClock::new().now() };
            let answer = later.await;
            drop(timer);
            each(&answer, &errors);
            answer
        })
    }
}

/// Records the time since its start when it is dropped: when the store has answered, or was given up.
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
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match self.store.settle_into(step, out) {
            Settling::Later(later) => {
                Settling::Later(self.timed(StoreOp::of(step.op), later, |answer, errors| errors.note(answer)))
            }
            done => done,
        }
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        let later = self.store.settle_each(steps, out)?;
        let each =
            |answers: &Vec<Answer>, errors: &KeyErrors| answers.iter().for_each(|one| errors.note(one));
        Some(self.timed(StoreOp::batch, later, each))
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate::store::{Charge, Op};
    use tidegate::{Cost, Quota};

    use super::*;
    use crate::metrics::Metrics;

    /// Never answers.
    #[derive(Debug)]
    struct Hanging;

    impl Store for Hanging {
        fn settle_into(&self, _: &Step<'_>, _: &mut Settled) -> Settling {
            Settling::Later(Box::pin(std::future::pending()))
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
            let Settling::Later(later) = store.settle_into(&step, &mut Settled::default()) else { panic!() };
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
