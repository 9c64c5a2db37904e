//! Stores that grant a part of each limit: this node's ([`Split`]), or a region's ([`Regional`]).
//!
//! Such a store asks an inner store for smaller limits than its callers name. [`Split`] describes what a part of a limit
//! is, and when a larger part may be used.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm as _, Decision, Quota, Replace, Retry, Standing, Tick};
use tidegate_limits::store::{
    Charge, ChargeAnswer, ChargeRules, Ending, Executed, Execution, Later, MemoryStore, Occupancy, Op,
    OwnedStep, PerLimit, Step, StepAnswer, Store, StoreError,
};

use crate::Part;

/// A store of this process that grants this node's part of each limit without asking another node or an engine:
/// `share: split`.
///
/// A [driver](crate::shares::Driver) agrees with the other nodes on this node's [`Part`]. Each limit is divided by it:
/// rates, bursts, counts and places, each rounded down ([`Quota::divided`]).
///
/// # Never more than the limit
/// While the parts of all nodes add up to at most the whole, they grant at most what the limit grants. A smaller part
/// applies at once to all that is not yet spent. A larger part applies only after it has been this node's for as long
/// as the limit takes to fill up ([`Quota::fills_within`]): until then, its
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
/// otherwise grant everything again. So [`Replace::Reset`], which makes a rewritten
/// limit start full, is treated as [`Replace::AsIs`] here.
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

/// A store that grants a region's part of each limit from an engine that only that region uses, usually behind a
/// [`Leased`](crate::Leased).
///
/// If the wrapped store answers on the spot, this one only adds a lookup of the part, without an allocation.
///
/// The regions agree on the [`Part`] of each ([`Driver::in_region`](crate::shares::Driver::in_region)). So no request
/// waits for another region, and a region that is cut off continues to work.
///
/// ```text
/// region a:  nodes ── Regional ── Leased ── Fallback ──▶ engine a: 6/10 of each limit
/// region b:  nodes ── Regional ── Leased ── Fallback ──▶ engine b: 3/10
/// region c:  nodes ── Regional ── Leased ── Fallback ──▶ engine c: 1/10
///                └── all nodes, not for a request: who is there, and what each region is asked for
/// ```
///
/// # Never more than the limit
/// As with [`Split`], a smaller part applies at once, and a larger one when it has been the region's for
/// as long as the limit takes to fill up. Nodes of one region may know different parts for a moment; the engine grants
/// no more than the largest of them allows.
///
/// For that long, a node that starts uses only the permanent part of its region, because it does not know for how long
/// the region has had more. What other nodes of the region spend counts against that part too. So limits that fill up
/// within minutes suit regions, and limits per day do not.
///
/// # What it is for
/// The same limits as [`Split`], with the same rounding. Breakers and adaptive limits are not divided:
/// each region has its own, whole. A charge whose part has changed since it was made gives nothing back when it ends
/// with less.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tidegate::cluster::Part;
/// use tidegate::store::{Charge, Op, PlainStore, Regional, Step, Store};
/// use tidegate::{Cost, Quota, Tick};
///
/// let (part, engine) = (Part::even(3), Arc::new(PlainStore::default()));
/// let nodes = [Regional::around(Arc::clone(&engine), part.clone()), Regional::around(engine, part)];
/// let quota = Arc::new(Quota::per_minute(100).burst(30).gcra()?);
/// let mut granted = 0;
/// for node in nodes.iter().cycle().take(40) {
///     let charges = [Charge::new(b"key", &quota, Cost::ONE)];
///     let step = Step::new(Tick::from_secs(1000), Op::Take, &charges);
///     granted += u32::from(node.blocking_execute(&step)?.allowed);
/// }
/// assert_eq!(granted, 9, "a third of the burst, rounded down, for the nodes of the region together");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Regional {
    store: Box<dyn Store>,
    divider: Divider,
}

impl Regional {
    /// Makes the store. Only this region may use the keys of `store`.
    #[must_use]
    pub fn around(store: impl Store + 'static, part: Part) -> Self {
        Self { store: Box::new(store), divider: Divider::new(part).with_guards() }
    }

    /// Returns a counter of all units that this node was asked for, allowed or not: the demand by which parts are
    /// [divided](crate::shares::Driver::new).
    pub fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        self.divider.demand()
    }
}

fn unasked(step: &Step<'_>) -> Executed {
    Executed { allowed: true, at: step.now, ..Executed::default() }
}

impl Store for Regional {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let divided = self.divider.divide(step);
        let charges = divided.charges(step);
        if charges.is_empty() {
            *out = unasked(step);
            divided.answer(step, out);
            return Execution::Done(Ok(()));
        }
        let asked = Step { op: divided.op(step), charges: &charges, ..*step };
        match self.store.execute_into(&asked, out) {
            Execution::Done(done) => Execution::Done(done.map(|()| divided.answer(step, out))),
            Execution::Later(later) => {
                drop(charges);
                let step = OwnedStep::of(step);
                Execution::Later(Box::pin(async move {
                    let mut executed = later.await?;
                    step.with(|step| divided.answer(step, &mut executed));
                    Ok(executed)
                }))
            }
        }
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let divided: Vec<DividedStep> = steps.iter().map(|step| self.divider.divide(step)).collect();
        let charges: Vec<SmallVec<[Charge<'_>; 4]>> =
            divided.iter().zip(steps).map(|(divided, step)| divided.charges(step)).collect();
        let all = divided.iter().zip(steps).zip(&charges);
        let asked: Vec<Step<'_>> = all
            .filter(|(_, charges)| !charges.is_empty())
            .map(|((divided, step), charges)| Step { op: divided.op(step), charges, ..*step })
            .collect();
        let Some(later) = self.store.execute_each(&asked, out) else {
            let mut answers = mem::take(out).into_iter();
            let both = divided.iter().zip(steps);
            out.extend(both.map(|(divided, step)| one_of_many(divided, step, &mut answers)));
            return None;
        };
        drop(asked);
        drop(charges);
        let steps: Vec<OwnedStep> = steps.iter().map(OwnedStep::of).collect();
        Some(Box::pin(async move {
            let mut answers = later.await.into_iter();
            let both = divided.iter().zip(&steps);
            both.map(|(divided, step)| step.with(|step| one_of_many(divided, step, &mut answers))).collect()
        }))
    }

    fn beneath(&self) -> Option<&dyn Store> {
        Some(&*self.store)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}

fn one_of_many(
    divided: &DividedStep,
    step: &Step<'_>,
    answers: &mut impl Iterator<Item = StepAnswer>,
) -> StepAnswer {
    let mut executed = match divided.is_asked() {
        false => unasked(step),
        true => answers.next().unwrap_or_else(|| {
            Err(StoreError::Unavailable { reason: "it answered fewer steps than it was asked".to_owned() })
        })?,
    };
    divided.answer(step, &mut executed);
    Ok(executed)
}

/// The divided limit that was used last, with its part: parts rarely change.
type Last = ArcSwap<(Option<Arc<Quota>>, u32)>;

/// Divides the limits of a step by a [`Part`], and converts the answers back to the whole limits.
struct Divider {
    part: Part,
    /// Whether breakers and adaptive limits, which cannot be divided, are left whole; if `false`, they are refused.
    guards: bool,
    divided: PerLimit<Arc<Last>>,
    asked: Arc<AtomicU64>,
}

impl fmt::Debug for Divider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Divider").field("part", &self.part).finish_non_exhaustive()
    }
}

struct DividedStep {
    /// For each charge, the divided limit and the part that it was made for. The limit is `None` where the part is less
    /// than one unit, or the limit cannot be divided.
    parts: SmallVec<[(Option<Arc<Quota>>, u32); 4]>,
    /// Whether a binding charge has no divided limit: then nothing is taken.
    closed: bool,
}

impl Divider {
    fn new(part: Part) -> Self {
        Self { part, guards: false, divided: PerLimit::default(), asked: Arc::default() }
    }

    /// Leaves breakers and adaptive limits whole: they depend on how calls end.
    fn with_guards(self) -> Self {
        Self { guards: true, ..self }
    }

    fn demand(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let asked = Arc::clone(&self.asked);
        // Relaxed: a count.
        move || asked.load(Ordering::Relaxed)
    }

    fn divide(&self, step: &Step<'_>) -> DividedStep {
        if matches!(step.op, Op::Take | Op::Draw) {
            let units =
                step.charges.iter().fold(0u64, |units, charge| units.saturating_add(charge.cost.units()));
            // Relaxed: a count.
            self.asked.fetch_add(units, Ordering::Relaxed);
        }
        let undivided = |charge: &Charge<'_>| (Some(Arc::clone(charge.quota)), Part::WHOLE);
        let parts: SmallVec<[_; 4]> = match step.op {
            Op::Take | Op::Peek | Op::Draw => {
                step.charges.iter().map(|charge| self.of(charge, step.now)).collect()
            }
            Op::Finish(endings) => {
                let part = |(charge, ending): (&Charge<'_>, &Ending)| match ending {
                    // Ended under the present part; where that has changed since the charge, nothing comes back.
                    Ending::Finish { .. } | Ending::Extend { .. } => {
                        let (quota, part) = self.of(charge, step.now);
                        (quota.or_else(|| Some(Arc::clone(charge.quota))), part)
                    }
                    // A mark is one unit, which is not divided.
                    Ending::Once | Ending::Forget => undivided(charge),
                };
                step.charges.iter().zip(endings).map(part).collect()
            }
            Op::Reset | Op::Breaker(_) => step.charges.iter().map(undivided).collect(),
        };
        let closed =
            parts.iter().zip(step.charges).any(|((quota, _), charge)| quota.is_none() && charge.binding);
        DividedStep { parts, closed }
    }

    fn of(&self, charge: &Charge<'_>, now: Tick) -> (Option<Arc<Quota>>, u32) {
        if self.guards && charge.quota.is_guard() && !matches!(**charge.quota, Quota::Concurrency(_)) {
            return (Some(Arc::clone(charge.quota)), Part::WHOLE);
        }
        let Some(span) = charge.quota.fills_within() else { return (None, 0) };
        let part = self.part.least(now, span);
        let divide = || (charge.quota.divided(part, Part::WHOLE).map(Arc::new), part);
        if charge.inline_quota {
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
}

impl DividedStep {
    const fn op<'a>(&self, step: &Step<'a>) -> Op<'a> {
        if self.closed { Op::Peek } else { step.op }
    }

    fn is_asked(&self) -> bool {
        self.parts.iter().any(|(quota, _)| quota.is_some())
    }

    /// Returns the charges that the inner store decides; empty where there is nothing to decide.
    fn charges<'a>(&'a self, step: &Step<'a>) -> SmallVec<[Charge<'a>; 4]> {
        let takes = matches!(step.op, Op::Take | Op::Peek | Op::Draw);
        let both = self.parts.iter().zip(step.charges);
        both.filter_map(|((quota, part), charge)| {
            let quota = quota.as_ref()?;
            if !takes {
                return Some(Charge { quota, ..*charge });
            }
            let kept_back = u128::from(charge.kept_back) * u128::from(*part);
            // At most the original `kept_back`.
            let kept_back = u64::try_from(kept_back.div_ceil(u128::from(Part::WHOLE))).unwrap_or(u64::MAX);
            let rules = ChargeRules { replace: without_reset(charge.rules.replace), ..charge.rules };
            Some(Charge { quota, kept_back, rules, ..*charge })
        })
        .collect()
    }

    fn answer(&self, step: &Step<'_>, out: &mut Executed) {
        if !matches!(step.op, Op::Take | Op::Peek | Op::Draw) {
            return;
        }
        out.allowed &= !self.closed;
        out.breaker = None;
        if !out.allowed {
            out.wait = Duration::ZERO;
        }
        if self.parts.iter().any(|(quota, _)| quota.is_none()) {
            let mut decided = mem::take(&mut out.lines).into_iter();
            let line = |((quota, _), charge): (&(Option<Arc<Quota>>, u32), &Charge<'_>)| {
                let line = quota.as_ref().and_then(|_| decided.next());
                line.unwrap_or_else(|| denial(charge, out.at))
            };
            out.lines = self.parts.iter().zip(step.charges).map(line).collect();
        }
        for (line, charge) in out.lines.iter_mut().zip(step.charges) {
            let asked = charge.cost.units().saturating_add(charge.kept_back);
            if let Ruling::Denied { retry: Retry::Never } = line.decision.ruling
                && asked <= charge.quota.capacity()
            {
                // The whole limit may grant it, and so may this part once it is larger.
                line.decision.ruling = Ruling::Denied { retry: Retry::Unknown };
            }
        }
    }
}

/// Keeps what was spent under the former part, or each change of a part would grant everything again.
const fn without_reset(replace: Replace) -> Replace {
    match replace {
        Replace::Reset => Replace::AsIs,
        other => other,
    }
}

fn denial(charge: &Charge<'_>, now: Tick) -> ChargeAnswer {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = Decision {
        ruling: Ruling::Denied { retry: Retry::Unknown },
        standing: Standing { limit: 0, remaining: 0, ..full },
    };
    ChargeAnswer { decision, receipt: None }
}
