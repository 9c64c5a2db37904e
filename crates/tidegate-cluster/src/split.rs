//! A store that grants this node's part of each limit.

use crate::Part;
use crate::divided::Divider;
use tidegate_limits::store::{Executed, Execution, MemoryStore, Occupancy, Op, Step, Store, StoreError};

/// A store of this process that grants this node's part of each limit without asking another node or an engine:
/// `share: split`.
///
/// A [driver](crate::shares::Driver) agrees with the other nodes on this node's [`Part`]. Each limit is divided by it:
/// rates, bursts, counts and places, each rounded down ([`Quota::divided`](tidegate_limits::Quota::divided)).
///
/// # Never more than the limit
/// While the parts of all nodes add up to at most the whole, they grant at most what the limit grants. A smaller part
/// applies at once to all that is not yet spent. A larger part applies only after it has been this node's for as long
/// as the limit takes to fill up ([`Quota::fills_within`](tidegate_limits::Quota::fills_within)): until then, its
/// former owner may have spent what has refilled. So for a limit per minute, a part that has moved is used a minute
/// later. A node that starts uses only its [permanent](Part::permanent) part for that long, because what it granted
/// before is unknown. As a model, the whole consists of many small limits, each owned by one node: one that changes
/// its owner is not used until it is full, so its new owner finds at least what it counts on.
///
/// A charge that ends with more than was charged leaves the debt on its node; one that ends with less
/// gives nothing back if the part has changed meanwhile.
///
/// # What it is for
/// Limits with large bursts and a steady demand. Parts are rounded down: of 10 units on 4 nodes each node has two, and
/// of 3 units none. A charge whose part is less than one unit is refused, and so is a limit that cannot be divided:
/// calendar windows, pacers, warm-ups, places that never lapse, breakers.
///
/// # Limits that change
/// What was spent stays spent, because a changed part looks like a changed limit, and each change of a part would
/// otherwise grant everything again. So [`Replace::Reset`](tidegate_limits::Replace::Reset), which makes a rewritten
/// limit start full, is treated as [`Replace::AsIs`](tidegate_limits::Replace::AsIs) here.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::cluster::Part;
/// use tidegate::store::{Charge, MemoryStore, Op, Split, Step, Store};
/// use tidegate::{Cost, Quota, Tick};
///
/// let store = Split::new(MemoryStore::with_capacity(1000)?, Part::even(4));
/// let quota = Arc::new(Quota::per_minute(100).burst(20).gcra()?);
/// let take = |secs| {
///     let charges = [Charge::new(b"key", &quota, Cost::ONE)];
///     store.blocking_execute(&Step::new(Tick::from_secs(secs), Op::Take, &charges)).map(|executed| executed.allowed)
/// };
/// let granted = (0..20).filter(|_| take(1000) == Ok(true)).count();
/// assert_eq!(granted, 5, "a quarter of the burst");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Split {
    store: MemoryStore,
    divider: Divider,
}

impl Split {
    /// Makes the store. No other store or gate may use the keys of `store`.
    #[must_use]
    pub fn new(store: MemoryStore, part: Part) -> Self {
        Self { store, divider: Divider::new(part) }
    }

    /// Returns a counter of all units that were asked for, allowed or not: the demand by which parts are
    /// [divided](crate::shares::Driver::new).
    pub fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        self.divider.demand()
    }

    fn decide(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        let divided = self.divider.divide(step);
        let charges = divided.charges(step);
        if charges.is_empty() {
            *out = Executed { allowed: true, at: step.now, ..Executed::default() };
        } else {
            let step = Step { op: divided.op(step), charges: &charges, ..*step };
            match self.store.execute_into(&step, out) {
                Execution::Done(done) => done?,
                Execution::Later(_) => return Err(StoreError::MustWait),
            }
        }
        divided.answer(step, out);
        Ok(())
    }
}

impl Store for Split {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match step.op {
            Op::Take | Op::Peek | Op::Draw | Op::Finish(_) => Execution::Done(self.decide(step, out)),
            Op::Reset | Op::Breaker(_) => self.store.execute_into(step, out),
        }
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}
