//! Counts the demand by which nodes divide limits among themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Rate;
use tidegate::store::{Answer, Later, Occupancy, Op, Settled, Settling, Step, Store};

/// The number of units asked of stores whose limits nodes divide, whether allowed or not. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand(Arc<AtomicU64>);

impl Demand {
    /// Wraps a store so that the units of its `take` steps are counted.
    pub(super) fn of(&self, store: impl Store + 'static) -> impl Store + 'static {
        Counted { store, demand: self.clone() }
    }

    /// Returns how many units were asked for since the start.
    pub(super) fn units(&self) -> u64 {
        // Relaxed, here and below: the number stands alone and is averaged over seconds.
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, step: &Step<'_>) {
        if matches!(step.op, Op::Take) {
            // What can never be granted, or has no known cost, is no demand that more of the limit would meet.
            let units = step.charges.iter().map(|charge| charge.cost.units());
            let units = units.filter(|units| *units < Rate::MAX_COUNT).fold(0, u64::saturating_add);
            self.0.fetch_add(units, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Counted<S> {
    store: S,
    demand: Demand,
}

impl<S: Store> Store for Counted<S> {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        self.demand.note(step);
        self.store.settle_into(step, out)
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        steps.iter().for_each(|step| self.demand.note(step));
        self.store.settle_each(steps, out)
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
    use tidegate::store::{Charge, PlainStore};
    use tidegate::{Cost, Quota, Tick};

    use super::*;

    /// Regression: batches were not counted, a check of a hundred units counted as one, and peeks were counted.
    #[test]
    fn units_that_are_asked_for_count_alone_or_in_a_batch_and_looks_do_not() {
        let demand = Demand::default();
        let store = demand.of(PlainStore::default());
        let quota = Arc::new(Quota::per_minute(10).gcra().unwrap());
        let charges = [Charge::new(b"key", &quota, Cost::new(7).unwrap())];
        let step = |op| Step::new(Tick::from_secs(1000), op, &charges);
        let _ = store.blocking_settle(&step(Op::Take));
        assert_eq!(demand.units(), 7);
        let _ = store.blocking_settle(&step(Op::Peek));
        assert_eq!(demand.units(), 7);
        assert!(store.settle_each(&[step(Op::Take), step(Op::Take)], &mut Vec::new()).is_none());
        assert_eq!(demand.units(), 21);
    }
}
