//! A store of this process that grants this node's part of each limit, and asks nobody: `share: split`.
//!
//! Somebody agrees with the other nodes which [`Part`] of the whole is this node's, and changes it as demand moves
//! ([`crate::cluster::shares`]). Here each limit is divided by it: rates, bursts, counts and places, each rounded down
//! ([`Quota::divided`](crate::Quota::divided)).
//!
//! # Never more than the limit
//! While the parts of all nodes add up to the whole at most, at every instant, all nodes together grant at most what the limit grants: no
//! node and no engine is asked for that. A part that has become smaller counts at once, for what is not yet spent. One that has become
//! larger counts when it has been this node's for as long as the limit takes to fill up ([`Quota::fills_within`](crate::Quota::fills_within)): before, what has come
//! may have been spent by whoever had it. So of a limit per minute, a part that has moved is used a minute later; and a node that starts
//! has what is [always](Part::always) its own for that long, because nobody knows what it granted before it was started again.
//!
//! Think of the whole as of many small limits, each in the hands of one node. One that changes hands rests until it is full. Thus whoever
//! has it then finds at least what it counts on, and each of them keeps its own rate and burst.
//!
//! What is settled later may be more than was charged; it is booked as a debt where it was charged, as everywhere, and moves to no other
//! node.
//!
//! # What it is for
//! Limits of many units at once, with a steady demand: of 10 units on 4 nodes each has two, rounded down, and of 3 units none. What leaves
//! a node less than one unit is refused, as is what cannot be divided: calendar windows, pacers, warm-ups, places that never lapse,
//! breakers. A policy file that asks for the latter is refused, and warned of the former.
//!
//! A charge whose part has changed since gives nothing back when it ends with less.
//!
//! # Limits that change
//! A limit of which this node's part changes is to the store a limit that has changed: what was spent stays spent, or each change of a part
//! would give all of it again. So [`Replace::Reset`](crate::Replace::Reset), by which a limit that somebody rewrites begins full, counts as [`Replace::AsIs`](crate::Replace::AsIs)
//! here.

use std::fmt;

use super::divided::Divider;
use super::step::{Op, Settled, Step};
use super::{Caps, Home, MemoryStore, Occupancy, Settling, Store, StoreError};
use crate::cluster::Part;

/// A store of this process that grants this node's part of each limit; see the [module](self).
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
    /// Makes a store that grants a part of each limit. The store's keys are this one's alone.
    #[must_use]
    pub fn new(store: MemoryStore, part: Part) -> Self {
        Self { store, divider: Divider::new(part) }
    }

    /// Returns a function that tells how many units were asked for in all, allowed or not: the demand by which parts are
    /// [divided](crate::cluster::shares::Driver::new). Steps that this store was not asked do not count.
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

    fn fetch(&self, keys: &[&[u8]]) {
        self.store.fetch(keys);
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    fn caps(&self) -> Caps {
        self.store.caps()
    }

    fn home(&self) -> Home {
        self.store.home()
    }
}
