//! One step over several cells: the function that every store runs.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Outcome;
use tidegate_core::{Algorithm, Ask, Cost, Decision, Quota, Receipt, Replace, State, Tick, Verdict};

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
    /// Whether an allowed step spends it. `false` looks only: a charge that a later report will make.
    pub spends: bool,
    /// How a changed quota takes over what was spent.
    pub replace: Replace,
}

impl<'a> Charge<'a> {
    /// A binding charge that spends, at once or not at all.
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
    /// Takes back allowed charges that have not acted yet; one receipt per charge.
    Cancel(&'a [Receipt]),
    /// Forgets the keys: their limits are full again.
    Reset,
}

/// A list of charges to settle at one tick.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// When. Each cell treats a tick before its last change as that change's.
    pub now: Tick,
    /// What is done.
    pub op: Op<'a>,
    /// To whom.
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
    /// Needed to cancel; present when the charge was spent.
    pub receipt: Option<Receipt>,
}

/// The answer to a step: one settlement per charge, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
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
/// When `cells` is shorter than the charges, or receipts are: a store's mistake, never an outsider's.
pub fn settle(step: &Step<'_>, cells: &mut [Option<Cell>]) -> (Settled, bool) {
    assert!(cells.len() >= step.charges.len(), "a cell for each charge");
    match step.op {
        Op::Take => take(step, cells, true),
        Op::Peek => take(step, cells, false),
        Op::Refund => {
            adjust(step, cells, |quota, state, _, charge| Some(quota.refund(state, step.now, charge.cost)))
        }
        Op::Cancel(receipts) => adjust(step, cells, |quota, state, index, _| {
            Some(quota.cancel(state, step.now, &receipts[index]))
        }),
        Op::Reset => adjust(step, cells, |_, _, _, _| None),
    }
}

/// Returns the state of a cell as the charge's quota sees it.
fn current(charge: &Charge<'_>, cell: Option<&Cell>, now: Tick) -> State {
    match cell {
        None => charge.quota.fresh(now),
        // The pointer first: policies share one quota among all keys, and comparing quotas field by field costs more.
        Some(cell) if Arc::ptr_eq(&cell.quota, charge.quota) || cell.quota == *charge.quota => {
            cell.state.clone()
        }
        Some(cell) => charge.quota.carry(&cell.quota, &cell.state, now, charge.replace),
    }
}

fn take(step: &Step<'_>, cells: &mut [Option<Cell>], spend: bool) -> (Settled, bool) {
    let now = step.now;
    let mut pending: SmallVec<[(State, Verdict<State>); 4]> = SmallVec::new();
    let (mut allowed, mut wait) = (true, Duration::ZERO);
    for (charge, cell) in step.charges.iter().zip(&*cells) {
        let state = current(charge, cell.as_ref(), now);
        let verdict = charge.quota.decide(&state, Ask::within(now, charge.cost, charge.max_wait));
        match &verdict {
            Verdict::Allowed { wait: own, .. } if charge.binding => wait = wait.max(*own),
            Verdict::Denied { .. } if charge.binding => allowed = false,
            _ => {}
        }
        pending.push((state, verdict));
    }
    let mut changed = false;
    let mut lines = SmallVec::new();
    for ((charge, cell), (state, verdict)) in step.charges.iter().zip(cells).zip(pending) {
        lines.push(match verdict {
            Verdict::Allowed { wait, next, receipt } => {
                let spent = allowed && charge.spends;
                let standing = charge.quota.standing(if spent { &next } else { &state }, now);
                if spent && spend {
                    *cell = Some(Cell { quota: Arc::clone(charge.quota), state: next });
                    changed = true;
                }
                let decision = Decision { outcome: Outcome::Allowed { wait }, standing };
                Settlement { decision, receipt: (spent && spend).then_some(receipt) }
            }
            Verdict::Denied { retry_after } => {
                let standing = charge.quota.standing(&state, now);
                Settlement {
                    decision: Decision { outcome: Outcome::Denied { retry_after }, standing },
                    receipt: None,
                }
            }
        });
    }
    (Settled { allowed, wait: if allowed { wait } else { Duration::ZERO }, lines }, changed)
}

fn adjust(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    change: impl Fn(&Quota, &State, usize, &Charge<'_>) -> Option<State>,
) -> (Settled, bool) {
    let mut changed = false;
    let mut lines = SmallVec::new();
    for (index, (charge, cell)) in step.charges.iter().zip(cells).enumerate() {
        let before = cell.is_some().then(|| current(charge, cell.as_ref(), step.now));
        // A key never seen is full: there is nothing to give back.
        if let Some(before) = before {
            let next = change(charge.quota, &before, index, charge);
            changed = true;
            *cell = next.map(|state| Cell { quota: Arc::clone(charge.quota), state });
        }
        let state = cell.as_ref().map_or_else(|| charge.quota.fresh(step.now), |cell| cell.state.clone());
        let standing = charge.quota.standing(&state, step.now);
        let decision = Decision { outcome: Outcome::Allowed { wait: Duration::ZERO }, standing };
        lines.push(Settlement { decision, receipt: None });
    }
    (Settled { allowed: true, wait: Duration::ZERO, lines }, changed)
}
