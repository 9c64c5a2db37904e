//! The quotas of a limiter and the state of each: the general form, kept behind a lock.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Tick};

use crate::store::{Cell, Charge, Op, Settled, Step, settle};

/// Quotas and cells in the same order.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) quotas: SmallVec<[Arc<Quota>; 1]>,
    pub(super) cells: SmallVec<[Option<Cell>; 1]>,
}

impl Limits {
    pub(super) fn settle(&mut self, now: Tick, op: Op<'_>, cost: Cost, max_wait: Duration) -> Settled {
        // A limiter's cells are identified by their order, so the key is not used.
        let line = |quota| Charge { max_wait, ..Charge::new(b"", quota, cost) };
        let charges: SmallVec<[Charge<'_>; 4]> = self.quotas.iter().map(line).collect();
        settle(&Step::new(now, op, &charges), &mut self.cells).0
    }
}
