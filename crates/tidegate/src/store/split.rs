//! A store of this process that grants this node's part of each limit, and asks nobody: `share: split`.
//!
//! Somebody agrees with the other nodes which [`Part`] of the whole is this node's, and changes it as demand moves
//! ([`crate::cluster::shares`]). Here each limit is divided by it: rates, bursts, counts and places, each rounded down
//! ([`Quota::divided`]).
//!
//! # Never more than the limit
//! While the parts of all nodes add up to the whole at most, at every instant, all nodes together grant at most what the limit grants: no
//! node and no engine is asked for that. A part that has become smaller counts at once, for what is not yet spent. One that has become
//! larger counts when it has been this node's for as long as the limit takes to fill up ([`Quota::fills_within`]): before, what has come
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
//! would give all of it again. So [`Replace::Reset`], by which a limit that somebody rewrites begins full, counts as [`Replace::AsIs`]
//! here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm as _, Decision, Quota, Replace, Retry, Standing, Tick};

use super::per_limit::PerLimit;
use super::step::{Charge, Ending, Op, Settled, Settlement, Step};
use super::{Caps, Home, MemoryStore, Occupancy, Settling, Store, StoreError};
use crate::cluster::Part;

/// What is this node's of a limit, and of the whole when it was divided: the last part that was asked for, which is nearly always the next
/// one.
type Divided = ArcSwap<(Option<Arc<Quota>>, u32)>;

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
    part: Part,
    divided: PerLimit<Arc<Divided>>,
    asked: Arc<AtomicU64>,
}

impl fmt::Debug for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split").field("store", &self.store).field("part", &self.part).finish_non_exhaustive()
    }
}

/// A charge that this node decides: its place in the step, and as it is decided.
type Here<'a> = SmallVec<[(usize, Charge<'a>); 4]>;

impl Split {
    /// Makes a store that grants a part of each limit. The store's keys are this one's alone.
    #[must_use]
    pub fn new(store: MemoryStore, part: Part) -> Self {
        Self { store, part, divided: PerLimit::new(), asked: Arc::default() }
    }

    /// Returns a function that tells how many units were asked for in all, allowed or not: the demand by which parts are
    /// [divided](crate::cluster::shares::Driver::new). Steps that this store was not asked do not count.
    pub fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let asked = Arc::clone(&self.asked);
        // Relaxed: a count.
        move || asked.load(Ordering::Relaxed)
    }

    /// Returns what is this node's of a limit, and of the whole.
    fn of(&self, charge: &Charge<'_>, now: Tick) -> (Option<Arc<Quota>>, u32) {
        let Some(span) = charge.quota.fills_within() else { return (None, 0) };
        let part = self.part.least(now, span);
        let divide = || (charge.quota.divided(part, Part::WHOLE).map(Arc::new), part);
        if charge.passing {
            return divide();
        }
        let make = || Arc::new(ArcSwap::from_pointee(divide()));
        self.divided.with(charge.quota, make, |divided| {
            let last = divided.load();
            if last.1 == part {
                return (last.0.clone(), part);
            }
            let new = divide();
            divided.store(Arc::new(new.clone()));
            new
        })
    }

    /// Settles a step that takes or peeks.
    fn decide(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        if matches!(step.op, Op::Take | Op::Draw) {
            let units =
                step.charges.iter().fold(0u64, |units, charge| units.saturating_add(charge.cost.units()));
            // Relaxed: a count.
            self.asked.fetch_add(units, Ordering::Relaxed);
        }
        let own: SmallVec<[_; 4]> = step.charges.iter().map(|charge| self.of(charge, step.now)).collect();
        let mut here: Here<'_> = SmallVec::new();
        for (place, (charge, (quota, part))) in step.charges.iter().zip(&own).enumerate() {
            if let Some(quota) = quota {
                let kept_back = u128::from(charge.kept_back) * u128::from(*part);
                // At most what it was.
                let kept_back =
                    u64::try_from(kept_back.div_ceil(u128::from(Part::WHOLE))).unwrap_or(u64::MAX);
                here.push((place, Charge { quota, kept_back, replace: kept(charge.replace), ..*charge }));
            }
        }
        let closed =
            own.iter().zip(step.charges).any(|((quota, _), charge)| quota.is_none() && charge.binding);
        let charges: SmallVec<[Charge<'_>; 4]> = here.iter().map(|(_, charge)| *charge).collect();
        let op = if closed { Op::Peek } else { step.op };
        let mut decided = Settled { allowed: true, at: step.now, ..Settled::default() };
        if !charges.is_empty() {
            self.settle(&Step { op, charges: &charges, ..*step }, &mut decided)?;
        }
        out.allowed = decided.allowed && !closed;
        out.wait = if out.allowed { decided.wait } else { Duration::ZERO };
        (out.at, out.by, out.breaker) = (decided.at, decided.by, None);
        out.lines.clear();
        out.lines.extend(step.charges.iter().map(|charge| nothing(charge, decided.at)));
        for ((place, _), mut line) in here.iter().zip(decided.lines) {
            let charge = &step.charges[*place];
            let asked = charge.cost.units().saturating_add(charge.kept_back);
            if let Ruling::Denied { retry: Retry::Never } = line.decision.ruling
                && asked <= charge.quota.capacity()
            {
                // The limit may grant it, and this node when it has more of it.
                line.decision.ruling = Ruling::Denied { retry: Retry::Unknown };
            }
            out.lines[*place] = line;
        }
        Ok(())
    }

    /// Settles a step that ends charges.
    fn finish(&self, step: &Step<'_>, endings: &[Ending], out: &mut Settled) -> Result<(), StoreError> {
        let own: SmallVec<[Arc<Quota>; 4]> = step
            .charges
            .iter()
            .zip(endings)
            .map(|(charge, ending)| match ending {
                // Under the part it was made under, as far as that is the present one.
                Ending::Finish { .. } => {
                    self.of(charge, step.now).0.unwrap_or_else(|| Arc::clone(charge.quota))
                }
                // A mark is one, and this node's.
                Ending::Once | Ending::Forget => Arc::clone(charge.quota),
            })
            .collect();
        let charges: SmallVec<[Charge<'_>; 4]> =
            step.charges.iter().zip(&own).map(|(charge, quota)| Charge { quota, ..*charge }).collect();
        self.settle(&Step { charges: &charges, ..*step }, out)
    }

    fn settle(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        match self.store.settle_into(step, out) {
            Settling::Done(done) => done,
            Settling::Later(_) => Err(StoreError::MustWait),
        }
    }
}

/// How what was spent goes over to another part: as it does to another limit, but never forgotten, or each change would give all of it
/// again.
const fn kept(replace: Replace) -> Replace {
    match replace {
        Replace::Reset => Replace::AsIs,
        other => other,
    }
}

/// Answers a charge of which this node has nothing.
fn nothing(charge: &Charge<'_>, now: Tick) -> Settlement {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = Decision {
        ruling: Ruling::Denied { retry: Retry::Unknown },
        standing: Standing { limit: 0, remaining: 0, ..full },
    };
    Settlement { decision, receipt: None }
}

impl Store for Split {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match step.op {
            Op::Take | Op::Peek | Op::Draw => Settling::Done(self.decide(step, out)),
            Op::Finish(endings) => Settling::Done(self.finish(step, endings, out)),
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
