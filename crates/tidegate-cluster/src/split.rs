//! A store that grants this node's part of each limit.

use std::fmt;

use crate::Part;
use crate::divided::Divider;
use tidegate_limits::store::{MemoryStore, Occupancy, Op, Settled, Settling, Step, Store, StoreError};

/// A store of this process that grants this node's part of each limit without asking another node or an engine:
/// `share: split`.
///
/// A separate driver ([`crate::shares`]) agrees with the other nodes which [`Part`] of the whole is this
/// node's, and changes it as demand moves. This store divides each limit by that part: rates, bursts, counts and
/// places, each rounded down ([`Quota::divided`](tidegate_limits::Quota::divided)).
///
/// # Never more than the limit
/// While the parts of all nodes add up to at most the whole at every instant, all nodes together grant at most what the
/// limit grants, without any request to another node or an engine. When a part becomes smaller, the smaller part
/// applies at once to all that is not yet spent. When a part becomes larger, the larger part applies only after it has
/// been this node's for as long as the limit takes to fill up ([`Quota::fills_within`](tidegate_limits::Quota::fills_within)):
/// until then, its former owner may already have spent what has refilled. So for a limit per minute, a part that has
/// moved is used a minute later. A node that starts uses only what is [permanently](Part::permanent) its own for that long,
/// because what it granted before the restart is unknown.
///
/// As a model, the whole consists of many small limits, each owned by one node. A small limit that changes its owner is
/// not used until it is full. So its new owner finds at least what it counts on, and each small limit keeps its own
/// rate and burst.
///
/// A charge that ends with more than was charged is booked as a debt where it was charged, as in every store; the debt
/// does not move to another node.
///
/// # What it is for
/// Limits with large bursts and a steady demand. Parts are rounded down: of 10 units on 4 nodes each node has two, and
/// of 3 units none. A charge whose part is less than one unit is refused, as is a limit that cannot be divided:
/// calendar windows, pacers, warm-ups, places that never lapse, breakers. Loading a policy file refuses limits that
/// cannot be divided, and warns of parts of less than one unit.
///
/// A charge whose part has changed since it was made gives nothing back when it ends with less.
///
/// # Limits that change
/// To the memory store, a changed part looks like a changed limit: what was spent stays spent, because otherwise each
/// change of a part would grant everything again. So [`Replace::Reset`](tidegate_limits::Replace::Reset), which makes a rewritten
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
///     store.blocking_settle(&Step::new(Tick::from_secs(secs), Op::Take, &charges)).map(|settled| settled.allowed)
/// };
/// let granted = (0..20).filter(|_| take(1000) == Ok(true)).count();
/// assert_eq!(granted, 5, "a quarter of the burst");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Split {
    store: MemoryStore,
    divider: Divider,
}

impl fmt::Debug for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split").field("store", &self.store).field("divider", &self.divider).finish()
    }
}

impl Split {
    /// Makes a store that grants a part of each limit. No other store or gate may use the keys of `store`.
    #[must_use]
    pub fn new(store: MemoryStore, part: Part) -> Self {
        Self { store, divider: Divider::new(part) }
    }

    /// Returns a function that returns how many units were asked for in all, allowed or not: the demand by which parts
    /// are [divided](crate::shares::Driver::new). Steps that this store was not asked do not count.
    pub fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        self.divider.demand()
    }

    fn decide(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        let divided = self.divider.divide(step);
        let charges = divided.charges(step);
        if charges.is_empty() {
            *out = Settled { allowed: true, at: step.now, ..Settled::default() };
        } else {
            let step = Step { op: divided.op(step), charges: &charges, ..*step };
            match self.store.settle_into(&step, out) {
                Settling::Done(done) => done?,
                Settling::Later(_) => return Err(StoreError::MustWait),
            }
        }
        divided.answer(step, out);
        Ok(())
    }
}

impl Store for Split {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match step.op {
            Op::Take | Op::Peek | Op::Draw | Op::Finish(_) => Settling::Done(self.decide(step, out)),
            Op::Reset | Op::Breaker(_) => self.store.settle_into(step, out),
        }
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}
