//! One step over several cells: the function that every store runs.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::dated;
use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{
    Algorithm, Ask, Cost, Decision, Quota, Receipt, Replace, Standing, State, Tick, Transition,
};

/// One line of a step: whose capacity, under which quota, how much.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose capacity: opaque bytes, distinct within a step.
    pub key: &'a [u8],
    /// The limit that holds now. A cell written under another one is carried over first.
    pub quota: &'a Arc<Quota>,
    /// How much.
    pub cost: Cost,
    /// The longest delay this line accepts; zero for all but queues and waits.
    pub max_wait: Duration,
    /// Whether its refusal refuses the step. `false` for a shadow: it is measured and never refuses.
    pub binding: bool,
    /// Whether an allowed step spends it; with `false` it is only looked at.
    pub spends: bool,
    /// How a changed quota takes over what was spent.
    pub replace: Replace,
    /// Who brought the key: a number of the policy, the same for all its keys. Where a store is full, keys of one owner do not
    /// push out those of another beyond an even share.
    pub owner: u32,
}

impl<'a> Charge<'a> {
    /// A binding charge that spends, at once or not at all; its owner is 0.
    #[must_use]
    pub const fn new(key: &'a [u8], quota: &'a Arc<Quota>, cost: Cost) -> Self {
        Self {
            key,
            quota,
            cost,
            max_wait: Duration::ZERO,
            binding: true,
            spends: true,
            replace: Replace::AsIs,
            owner: 0,
        }
    }
}

/// What a step does with its charges.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Spends every charge if all binding ones are allowed.
    Take,
    /// Decides like `Take` and changes nothing.
    Peek,
    /// Gives the cost of every charge back.
    Refund,
    /// Gives charges back that were made before; one tick per charge, at which its limit would have been full again if nothing
    /// had followed it. From then on it holds nothing, before that no more than time returns until then. A cell of another limit
    /// is left alone.
    GiveBack(&'a [Tick]),
    /// Takes back allowed charges that have not acted yet; one receipt per charge.
    Cancel(&'a [Receipt]),
    /// Forgets the keys: their limits are full again.
    Reset,
}

/// A list of charges to settle at one tick.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// When. A tick before the latest that a store has seen counts as that one: its time does not step back.
    pub now: Tick,
    /// What is done.
    pub op: Op<'a>,
    /// The charges, in order; keys are distinct.
    pub charges: &'a [Charge<'a>],
}

/// What a store keeps of one key: the state, and the quota it was written under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The limit that gives the state its meaning; a changed limit carries it over on next use.
    pub quota: Arc<Quota>,
    /// What was spent.
    pub state: State,
}

/// The answer to one charge of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What this limit by itself decided, and how it stands after the step.
    pub decision: Decision,
    /// Needed to cancel; present when the charge was spent. Of [`Op::GiveBack`]: its cost is what was given back, rounded up to
    /// whole units, and its mark by how many nanoseconds the limit is full sooner; absent where nothing was.
    pub receipt: Option<Receipt>,
}

/// The answer to a step: one settlement per charge, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Whether every binding charge was allowed.
    pub allowed: bool,
    /// The longest delay among the binding charges of an allowed step.
    pub wait: Duration,
    /// One per charge.
    pub lines: SmallVec<[Settlement; 4]>,
}

/// Settles a step over its cells, one per charge in the same order; `None` is a key never seen.
///
/// Pure but for `cells`. Returns whether they changed: only then is there anything to write back. A denied take and a peek
/// change nothing. An emptied cell is to be forgotten.
///
/// # Panics
/// When `cells` is shorter than the charges, or receipts or ticks are: a store's mistake, never an outsider's.
pub fn settle(step: &Step<'_>, cells: &mut [Option<Cell>]) -> (Settled, bool) {
    assert!(cells.len() >= step.charges.len(), "a cell for each charge");
    let mut settled = Settled::default();
    let changed = match step.op {
        Op::Take => take(step, cells, true, &mut settled),
        Op::Peek => take(step, cells, false, &mut settled),
        Op::Refund => adjust(step, cells, &mut settled, |quota, state, _, cost| {
            Some(quota.refund(state, step.now, cost))
        }),
        Op::GiveBack(untils) => give_back(step, cells, untils, &mut settled),
        Op::Cancel(receipts) => adjust(step, cells, &mut settled, |quota, state, index, _| {
            Some(quota.cancel(state, step.now, &receipts[index]))
        }),
        Op::Reset => adjust(step, cells, &mut settled, |_, _, _, _| None),
    };
    (settled, changed)
}

/// What one charge came to for itself, and what follows if the step is allowed.
type Decided<H> = (Ruling, Option<(<H as Hand>::Next, Receipt)>);

/// The state of one charge's key while a step has it in hand, in whatever form the store keeps it.
pub(super) trait Hand {
    /// A state that would follow.
    type Next;

    /// Decides one charge for itself: the ruling, and what follows if the step is allowed.
    fn decide(&self, charge: &Charge<'_>, now: Tick) -> (Ruling, Option<(Self::Next, Receipt)>);

    /// Returns how the limit stands, or would stand.
    fn standing(&self, charge: &Charge<'_>, next: Option<&Self::Next>, now: Tick) -> Standing;

    /// Puts a state in place.
    fn keep(&mut self, charge: &Charge<'_>, next: Self::Next);
}

impl Hand for Option<Cell> {
    type Next = State;

    fn decide(&self, charge: &Charge<'_>, now: Tick) -> (Ruling, Option<(State, Receipt)>) {
        let state = current(charge, self.as_ref(), now);
        match charge.quota.decide(&state, Ask::within(now, charge.cost, charge.max_wait)) {
            Transition::Allowed { wait, next, receipt } => (Ruling::Allowed { wait }, Some((next, receipt))),
            Transition::Denied { retry } => (Ruling::Denied { retry }, None),
        }
    }

    fn standing(&self, charge: &Charge<'_>, next: Option<&State>, now: Tick) -> Standing {
        match next {
            Some(next) => charge.quota.standing(next, now),
            None => charge.quota.standing(&current(charge, self.as_ref(), now), now),
        }
    }

    fn keep(&mut self, charge: &Charge<'_>, next: State) {
        keep(self, charge.quota, next);
    }
}

/// Returns the state of a cell as the charge's quota sees it.
fn current<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Cow<'c, State> {
    match cell {
        None => Cow::Owned(charge.quota.fresh(now)),
        // The pointer first: policies share one quota among all keys, and comparing quotas field by field costs more.
        Some(cell) if Arc::ptr_eq(&cell.quota, charge.quota) || cell.quota == *charge.quota => {
            Cow::Borrowed(&cell.state)
        }
        Some(cell) => Cow::Owned(charge.quota.carry(&cell.quota, &cell.state, now, charge.replace)),
    }
}

/// Puts a state in place; the quota is shared anew only where it changed, since all keys count on one counter.
fn keep(cell: &mut Option<Cell>, quota: &Arc<Quota>, state: State) {
    match cell {
        Some(cell) if Arc::ptr_eq(&cell.quota, quota) => cell.state = state,
        _ => *cell = Some(Cell { quota: Arc::clone(quota), state }),
    }
}

/// All or nothing: decides each charge for itself, and keeps what follows only if no binding one was refused. Writes the answer
/// and returns whether the hands changed.
pub(super) fn take<H: Hand>(step: &Step<'_>, hands: &mut [H], spend: bool, settled: &mut Settled) -> bool {
    let now = step.now;
    // As many as a plan holds without allocating; unused room costs nothing.
    let mut decided: SmallVec<[Decided<H>; 16]> = SmallVec::new();
    let (mut allowed, mut longest) = (true, Duration::ZERO);
    for (charge, hand) in step.charges.iter().zip(&*hands) {
        let (ruling, next) = hand.decide(charge, now);
        match ruling {
            Ruling::Allowed { wait } if charge.binding => longest = longest.max(wait),
            Ruling::Denied { .. } if charge.binding => allowed = false,
            _ => {}
        }
        decided.push((ruling, next));
    }
    let mut changed = false;
    settled.lines.clear();
    settled.lines.reserve_exact(decided.len());
    // Drained and not consumed: that would move the whole list first.
    for ((charge, hand), (ruling, next)) in step.charges.iter().zip(hands).zip(decided.drain(..)) {
        // A peek tells what there is, not what would be left.
        let spent = next.filter(|_| allowed && charge.spends && spend);
        let standing = hand.standing(charge, spent.as_ref().map(|(next, _)| next), now);
        let receipt = spent.map(|(next, receipt)| {
            hand.keep(charge, next);
            changed = true;
            receipt
        });
        settled.lines.push(Settlement { decision: Decision { ruling, standing }, receipt });
    }
    settled.allowed = allowed;
    settled.wait = if allowed { longest } else { Duration::ZERO };
    changed
}

fn give_back(step: &Step<'_>, cells: &mut [Option<Cell>], untils: &[Tick], settled: &mut Settled) -> bool {
    let (now, mut changed) = (step.now, false);
    settled.allowed = true;
    for (index, (charge, cell)) in step.charges.iter().zip(cells).enumerate() {
        let without = cell.as_ref().and_then(|cell| dated::give_back(charge, cell, now, untils[index]));
        let receipt = without.map(|given| {
            keep(cell, charge.quota, given.state);
            changed = true;
            Receipt { at: now, act: now, cost: given.units, mark: dated::mark(given.sooner) }
        });
        let standing = charge.quota.standing(&current(charge, cell.as_ref(), now), now);
        let decision = Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing };
        settled.lines.push(Settlement { decision, receipt });
    }
    changed
}

fn adjust(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    settled: &mut Settled,
    change: impl Fn(&Quota, &State, usize, Cost) -> Option<State>,
) -> bool {
    let mut changed = false;
    settled.allowed = true;
    for (index, (charge, cell)) in step.charges.iter().zip(cells).enumerate() {
        // A key never seen is full: there is nothing to give back.
        if cell.is_some() {
            let next = change(charge.quota, &current(charge, cell.as_ref(), step.now), index, charge.cost);
            match next {
                Some(next) => keep(cell, charge.quota, next),
                None => *cell = None,
            }
            changed = true;
        }
        let standing = charge.quota.standing(&current(charge, cell.as_ref(), step.now), step.now);
        let decision = Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing };
        settled.lines.push(Settlement { decision, receipt: None });
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_refused_by_its_last_charge_has_spent_none() {
        let (wide, narrow) = (quota(10), quota(1));
        let (now, two) = (Tick::from_secs(1), Cost::new(2).unwrap());
        let charges = [Charge::new(b"a", &wide, two), Charge::new(b"b", &narrow, two)];
        let mut cells = [None, None];
        let (settled, changed) = settle(&Step { now, op: Op::Take, charges: &charges }, &mut cells);
        assert!(!settled.allowed && !changed);
        assert_eq!(cells, [None, None]);
        assert!(settled.lines[0].decision.is_allowed(), "the first alone would have passed");
        assert_eq!(settled.lines[0].decision.standing.remaining, 10, "and has spent nothing");
    }

    #[test]
    fn a_shadow_is_charged_with_the_request_and_never_refuses_it() {
        let (wide, narrow) = (quota(10), quota(1));
        let shadow = Charge { binding: false, ..Charge::new(b"s", &narrow, Cost::ONE) };
        let charges = [Charge::new(b"a", &wide, Cost::ONE), shadow];
        let step = Step { now: Tick::from_secs(1), op: Op::Take, charges: &charges };
        let mut cells = [None, None];
        assert!(settle(&step, &mut cells).0.lines[1].decision.is_allowed());
        let (settled, _) = settle(&step, &mut cells);
        assert!(settled.allowed && !settled.lines[1].decision.is_allowed());
    }

    #[test]
    fn a_changed_quota_keeps_what_was_spent() {
        let (old, new) = (quota(10), quota(5));
        let now = Tick::from_secs(1);
        let mut cells = [None];
        let take = |quota: &Arc<Quota>, cells: &mut [Option<Cell>; 1]| {
            let charges = [Charge::new(b"a", quota, Cost::new(3).unwrap())];
            settle(&Step { now, op: Op::Take, charges: &charges }, cells).0
        };
        assert_eq!(take(&old, &mut cells).lines[0].decision.standing.remaining, 7);
        assert!(!take(&new, &mut cells).allowed, "three of five are spent");
    }

    fn quota(burst: u64) -> Arc<Quota> {
        Arc::new(Quota::per_second(1).burst(burst).gcra().unwrap())
    }
}
