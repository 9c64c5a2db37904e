//! A store that grants a region's part of each limit.

use smallvec::SmallVec;

use crate::Part;
use crate::divided::{DividedStep, Divider};
use tidegate_limits::store::{
    Charge, Executed, Execution, Later, Occupancy, OwnedStep, Step, StepAnswer, Store,
};

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
/// As with [`Split`](crate::Split), a smaller part applies at once, and a larger one when it has been the region's for
/// as long as the limit takes to fill up. Nodes of one region may know different parts for a moment; the engine grants
/// no more than the largest of them allows.
///
/// For that long, a node that starts uses only the permanent part of its region, because it does not know for how long
/// the region has had more. What other nodes of the region spend counts against that part too. So limits that fill up
/// within minutes suit regions, and limits per day do not.
///
/// # What it is for
/// The same limits as [`Split`](crate::Split), with the same rounding. Breakers and adaptive limits are not divided:
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
            let mut answers = std::mem::take(out).into_iter();
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
            Err(tidegate_limits::store::StoreError::Unavailable {
                reason: "it answered fewer steps than it was asked".to_owned(),
            })
        })?,
    };
    divided.answer(step, &mut executed);
    Ok(executed)
}
