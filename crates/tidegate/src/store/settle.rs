//! One step over several cells: the function that every store runs.

use std::borrow::Cow;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{
    Algorithm, Ask, Cost, Decision, Quota, Receipt, Replace, Retry, Standing, State, Tick, Transition,
};

use super::ending::{self, Ending};

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
        Self { key, quota, cost, max_wait: Duration::ZERO, binding: true, replace: Replace::AsIs, owner: 0 }
    }
}

/// What a step does with its charges.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Spends every charge if all binding ones are allowed.
    Take,
    /// Decides like `Take` and changes nothing.
    Peek,
    /// Settles, one [`Ending`] for each charge of the step, all or nothing. Of charges made before, what was not spent comes back, and
    /// what was spent beyond the charge is booked as a debt; the quota of such a charge is the one it was made under, and its cost
    /// what was charged. It is refused only by an [`Ending::Once`]. Whether a charge binds and how it waits say nothing here.
    Finish(&'a [Ending]),
    /// Forgets the keys: their limits are full again, and of charges made before nothing comes back, unless a full store gives up the
    /// note of that.
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
    /// That the key was reset, or came under a limit of another kind, for as long as charges from before might still be ended.
    pub(super) forgotten: Option<Box<Forgotten>>,
}

/// When a key was reset, or its limit's kind changed. Charges made at or before that tick are void: nothing of them comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forgotten {
    pub(super) at: Tick,
    /// From here on time has returned all that was charged before.
    pub(super) until: Tick,
}

impl Cell {
    /// Makes a cell of a key that was never reset, and whose limit never changed its kind.
    #[must_use]
    pub const fn new(quota: Arc<Quota>, state: State) -> Self {
        Self { quota, state, forgotten: None }
    }

    /// Returns the tick from which the cell is as good as none; `None` when it never is by itself.
    pub(super) fn full_at(&self) -> Option<Tick> {
        let full = self.quota.full_at(&self.state)?;
        Some(self.forgotten.as_ref().map_or(full, |forgotten| full.max(forgotten.until)))
    }
}

/// The answer to one charge of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What this limit by itself decided, and how it stands after the step.
    pub decision: Decision,
    /// Needed to settle the charge; present when it was spent, unless the step was settled for good. Of [`Op::Finish`] it is the receipt of the charge, with the units
    /// that came back for its cost; absent where none did.
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
/// Pure but for `cells`. Returns whether they changed: only then is there anything to write back. A peek changes nothing. Nor does a
/// denied take, except that a key met for the first time is kept where its limit denied it and starts below full: it fills from
/// then on, and would otherwise be met for the first time by every ask. An emptied cell is to be forgotten.
///
/// # Panics
/// When `cells` is shorter than the charges, or endings are: a store's mistake, never an outsider's.
pub fn settle(step: &Step<'_>, cells: &mut [Option<Cell>]) -> (Settled, bool) {
    assert!(cells.len() >= step.charges.len(), "a cell for each charge");
    let mut settled = Settled::default();
    let changed = match step.op {
        Op::Take => take(step, cells, true, &mut settled),
        Op::Peek => take(step, cells, false, &mut settled),
        Op::Finish(endings) => ending::finish(step, cells, endings, &mut settled),
        Op::Reset => ending::reset(step, cells, &mut settled),
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
    fn keep(&mut self, charge: &Charge<'_>, next: Self::Next, now: Tick);

    /// Takes note of a key that was denied when it was met for the first time, where it will fill from then on; returns whether it
    /// did.
    fn meet(&mut self, _charge: &Charge<'_>, _now: Tick) -> bool {
        false
    }
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

    fn keep(&mut self, charge: &Charge<'_>, next: State, now: Tick) {
        keep(self, charge.quota, next, now);
    }

    fn meet(&mut self, charge: &Charge<'_>, now: Tick) -> bool {
        if self.is_some() {
            return false;
        }
        let fresh = charge.quota.fresh(now);
        // Most limits start full, and a full one is as good as forgotten: refused strangers take no room.
        let fills = charge.quota.full_at(&fresh).is_none_or(|full| full > now) && {
            let standing = charge.quota.standing(&fresh, now);
            standing.remaining < standing.limit
        };
        if fills {
            keep(self, charge.quota, fresh, now);
        }
        fills
    }
}

/// Returns the state of a cell as the charge's quota sees it.
pub(super) fn current<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Cow<'c, State> {
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
pub(super) fn keep(cell: &mut Option<Cell>, quota: &Arc<Quota>, state: State, now: Tick) {
    let forgotten = match cell {
        Some(cell) if Arc::ptr_eq(&cell.quota, quota) && cell.forgotten.is_none() => {
            cell.state = state;
            return;
        }
        Some(cell) if discriminant(&*cell.quota) != discriminant(&**quota) => other_kind(cell, quota, now),
        Some(cell) => cell.forgotten.take().filter(|forgotten| forgotten.until > now),
        None => None,
    };
    *cell = Some(Cell { quota: Arc::clone(quota), state, forgotten });
}

/// Returns what is void of a cell that comes under a limit of another kind.
///
/// Receipts name the state of the limit they were made under. A state that was carried to another kind and back is another one, which may
/// have been full meanwhile: a charge from before is not to be found in it, and would give back what came later. Places of guards
/// are found by their own receipts.
fn other_kind(cell: &Cell, quota: &Quota, now: Tick) -> Option<Box<Forgotten>> {
    let until = cell.full_at().unwrap_or(Tick::MAX);
    if cell.quota.is_guard() || quota.is_guard() || until <= now {
        return None;
    }
    // What this very step charges is not void, so the nanosecond before counts; unless the kind changes twice in one.
    let before = Tick::from_nanos(now.as_nanos().saturating_sub(1));
    let twice = cell.forgotten.as_ref().is_some_and(|forgotten| forgotten.at >= before);
    Some(Box::new(Forgotten { at: if twice { now } else { before }, until }))
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
        let spent = next.filter(|_| allowed && spend);
        let standing = hand.standing(charge, spent.as_ref().map(|(next, _)| next), now);
        let receipt = spent.map(|(next, receipt)| {
            hand.keep(charge, next, now);
            changed = true;
            receipt
        });
        if spend && matches!(ruling, Ruling::Denied { retry } if retry != Retry::Never) {
            changed |= hand.meet(charge, now);
        }
        settled.lines.push(Settlement { decision: Decision { ruling, standing }, receipt });
    }
    settled.allowed = allowed;
    settled.wait = if allowed { longest } else { Duration::ZERO };
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
