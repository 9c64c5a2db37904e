//! How long operations of an engine take.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tidegate::store::Op;

/// Upper bounds in seconds. A round trip nearby takes a fraction of a millisecond; after `store.deadline` (250 ms by
/// default) nobody waits any longer.
const STORE_TIMES: [f64; 12] =
    [100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0];

/// The operations of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum StoreOp {
    take,
    draw,
    peek,
    finish,
    reset,
    breaker,
    /// Several steps in one exchange.
    batch,
}

impl StoreOp {
    const ALL: [Self; 7] =
        [Self::take, Self::draw, Self::peek, Self::finish, Self::reset, Self::breaker, Self::batch];

    /// Returns the label of a step's operation.
    pub(crate) fn of(op: Op<'_>) -> Self {
        match op {
            Op::Take => Self::take,
            Op::Draw => Self::draw,
            Op::Peek => Self::peek,
            Op::Finish(_) => Self::finish,
            Op::Reset => Self::reset,
            Op::Breaker(_) => Self::breaker,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StoreOpLabels {
    store: &'static str,
    op: StoreOp,
}

/// The durations of operations, for all stores.
pub(super) type Times = Family<StoreOpLabels, Histogram, fn() -> Histogram>;

pub(super) fn registered(registry: &mut Registry) -> Times {
    let times = Times::new_with_constructor(|| Histogram::new(STORE_TIMES));
    registry.register_with_unit(
        "store_operation_duration",
        "Time that the engine took, from the first request until it answered or its callers stopped waiting",
        Unit::Seconds,
        times.clone(),
    );
    times
}

/// The series of one store. Its steps are recorded without a look-up by name.
#[derive(Debug)]
pub(crate) struct StoreTimes([Histogram; StoreOp::ALL.len()]);

impl StoreTimes {
    pub(super) fn of(times: &Times, store: &'static str) -> Self {
        Self(StoreOp::ALL.map(|op| times.get_or_create_owned(&StoreOpLabels { store, op })))
    }

    /// Returns the series of one operation, in seconds.
    pub(crate) fn series(&self, op: StoreOp) -> Histogram {
        self.0[op as usize].clone()
    }
}
