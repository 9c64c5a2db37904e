//! Ends charges: books the units really spent against the present state of the key.
//!
//! Core does the arithmetic ([`Quota::finish`]): a limit never ends up fuller than if only the units really spent had
//! been charged. A store adds the cases that a state does not show: the key's cell is gone, the key was reset, or it is
//! now under another limit. In each of these cases nothing comes back, but units spent beyond the charge are still
//! booked. A cell under another limit stays under that limit: carrying it to the charge's limit and back would round it
//! twice. A place of a guard is found by its receipt and released, whatever the guard's limit is by now.
//!
//! One exception: the note that a key was reset, or had another limit, is stored in its cell. If a full store evicts
//! that cell and the key then comes again, charges from before can be given back out of later charges, at most as many
//! units as they had charged. A store that evicts nothing ([`super::Occupancy::evicted`]) has no such exception.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::Change;
use tidegate_core::decision::Ruling;
use tidegate_core::{
    Algorithm, Cost, Decision, Finish, Quota, Receipt, Replace, Retry, Standing, State, Tick,
};

use super::cell::{Cell, Forgotten, keep, met};
use super::guards::{self, Moved};
use super::step::{Charge, ChargeAnswer, Ending, Executed, Step};
use super::take::KeyState as _;

/// Ends every charge, or none if a binding [`Ending::Once`] or [`Ending::Extend`] is refused; returns whether cells
/// changed.
pub(super) fn finish(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    endings: &[Ending],
    executed: &mut Executed,
) -> bool {
    assert!(endings.len() >= step.charges.len(), "an ending for each charge");
    let (now, mut changed) = (step.now, false);
    // Keys are distinct: one ending does not affect another.
    let refused =
        step.charges.iter().zip(&*cells).zip(endings).any(|((charge, cell), ending)| match ending {
            Ending::Once => charge.binding && cell.decide(&at_once(charge), now).1.is_none(),
            Ending::Extend { receipt } => {
                charge.binding && extended(charge, cell.as_ref(), receipt, now).is_none()
            }
            Ending::Finish { .. } | Ending::Forget => false,
        });
    executed.allowed = !refused;
    for ((charge, cell), ending) in step.charges.iter().zip(cells).zip(endings) {
        // A cell counts if it was met, or if this step has written it, even where it is equivalent to no cell
        // afterwards.
        let mut counts = met(charge, cell.as_ref(), now).is_some();
        let stands = |cell: &Option<Cell>, counts| standing(charge, cell.as_ref().filter(|_| counts), now);
        let before = stands(cell, counts);
        let (mut ruling, mut receipt) = (Ruling::Allowed { wait: Duration::ZERO }, None);
        match ending {
            Ending::Once => {
                let decided = cell.decide(&at_once(charge), now);
                ruling = decided.0;
                if let Some((next, made)) = decided.1.filter(|_| !refused) {
                    keep(cell, charge.quota, next, now);
                    (receipt, changed, counts) = (Some(made), true, true);
                }
            }
            Ending::Extend { receipt: made } => match extended(charge, cell.as_ref(), made, now) {
                None => ruling = Ruling::Denied { retry: Retry::Never },
                Some((quota, next, extended)) if !refused => {
                    keep(cell, &quota, next, now);
                    (receipt, changed, counts) = (Some(extended), true, true);
                }
                Some(_) => {}
            },
            _ if refused => {}
            Ending::Forget => {
                changed |= forget(charge, cell, now);
                counts = true;
            }
            Ending::Finish { receipt: made, finish, renew } => {
                let found = cell.as_ref().filter(|_| counts);
                let mut counted = false;
                let mut told = Vec::new();
                let tell = &mut |change| {
                    if step.watched {
                        told.push(Moved::breaker(charge.key, change));
                    }
                };
                let next = match charge.quota.is_guard() || found.is_some_and(|cell| cell.quota.is_guard()) {
                    true => leave(charge, found, made, *finish, now, &mut counted, tell),
                    false => next(charge, found, made, *finish, *renew, now),
                };
                executed.moved.append(&mut told);
                if let Some((quota, next)) = next {
                    if let (true, Some(quota), Some(cell)) = (step.watched, quota, &*cell) {
                        let moved = &mut executed.moved;
                        guards::by_exit(charge.key, quota, &cell.state, &next, now, moved);
                    }
                    let quota = quota.cloned().unwrap_or_else(|| charge.quota.clone());
                    keep(cell, &quota, next, now);
                    (changed, counts) = (true, true);
                }
                // A breaker has no units that could come back: a call that counts has come back.
                receipt = match counted {
                    true => Some(*made),
                    false => came_back(&before, &stands(cell, counts), made),
                };
            }
        }
        let standing = stands(cell, counts);
        executed.lines.push(ChargeAnswer { decision: Decision { ruling, standing }, receipt });
    }
    changed
}

const fn at_once<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { max_wait: Duration::ZERO, kept_back: 0, ..*charge }
}

/// Returns the state after a place of a guard was left, and the guard's quota; `None` where nothing changes. Sets
/// `counted` if a breaker counts the call.
fn leave<'c>(
    charge: &Charge<'_>,
    cell: Option<&'c Cell>,
    receipt: &Receipt,
    finish: Finish,
    now: Tick,
    counted: &mut bool,
    tell: &mut dyn FnMut(Change),
) -> Option<(Option<&'c Arc<Quota>>, State)> {
    // A place is released where it was taken, however many places there are by now; if the place is gone, there is
    // nothing to do.
    let Cell { quota, state, .. } =
        cell.filter(|cell| !cell.is_void(receipt, now) && cell.quota.is_guard() && charge.quota.is_guard())?;
    let next = match (&**quota, state) {
        (Quota::Breaker(breaker), State::Breaker(state)) => {
            let mut next = state.clone();
            *counted = breaker.leave_in_place(&mut next, now, receipt, None, finish.outcome, tell);
            State::Breaker(next)
        }
        _ => quota.finish(state, now, receipt, finish),
    };
    (next != *state).then_some((Some(quota), next))
}

/// Returns the state after one ending of a charge that is on no guard, and the quota that it is under if the cell has
/// one; `None` where nothing changes.
fn next<'c>(
    charge: &Charge<'_>,
    cell: Option<&'c Cell>,
    receipt: &Receipt,
    mut finish: Finish,
    renew: Option<Tick>,
    now: Tick,
) -> Option<(Option<&'c Arc<Quota>>, State)> {
    let void = cell.is_none_or(|cell| cell.is_void(receipt, now));
    let quota = cell.map(|cell| &cell.quota);
    if void && renew.is_some_and(|until| now < until) {
        // All that was spent is booked as a debt: it has been spent, whether there is room or not.
        finish.used = finish.used.saturating_add(receipt.cost.units());
    }
    let foreign = quota.is_some_and(|quota| **quota != **charge.quota);
    if (void || foreign) && finish.used <= receipt.cost.units() {
        return None;
    }
    let (by, state) = match cell {
        None => (&**charge.quota, charge.quota.fresh(now)),
        Some(cell) => (&*cell.quota, cell.state.clone()),
    };
    let next = by.finish(&state, now, receipt, finish);
    (cell.is_none() || next != state).then_some((quota, next))
}

/// Returns the quota of a cell, its state after places are held longer, and their new receipt; `None` if the places are
/// not there.
fn extended(
    charge: &Charge<'_>,
    cell: Option<&Cell>,
    receipt: &Receipt,
    now: Tick,
) -> Option<(Arc<Quota>, State, Receipt)> {
    let cell = met(charge, cell, now)?;
    if cell.is_void(receipt, now) || !charge.quota.is_guard() {
        return None;
    }
    let (next, extended) = cell.quota.extend(&cell.state, now, receipt)?;
    Some((Arc::clone(&cell.quota), next, extended))
}

impl Cell {
    /// Returns whether a charge is void: the key was reset, or its limit changed to another kind, since it was made.
    fn is_void(&self, receipt: &Receipt, now: Tick) -> bool {
        self.forgotten.as_ref().is_some_and(|forgotten| now < forgotten.until && receipt.at <= forgotten.at)
    }
}

/// Returns the receipt of a charge. Its cost becomes the number of units that came back; `None` where none came back.
fn came_back(before: &Standing, after: &Standing, receipt: &Receipt) -> Option<Receipt> {
    // Compares what is in use, not what is left: the size of an adaptive limit may differ before and after.
    let in_use = |standing: &Standing| {
        i128::from(standing.limit) - i128::from(standing.remaining) + i128::from(standing.debt)
    };
    let units = (in_use(before) - in_use(after)).clamp(0, i128::from(receipt.cost.units()));
    // The cast is exact: at most a cost, which has 64 bits.
    let cost = Cost::new(units as u64)?;
    Some(Receipt { cost, ..*receipt })
}

/// Returns the standing of a cell under its own limit; without a cell, that of a new key under the charge's limit.
fn standing(charge: &Charge<'_>, cell: Option<&Cell>, now: Tick) -> Standing {
    match cell {
        Some(cell) => cell.quota.standing(&cell.state, now),
        None => charge.quota.standing(&charge.quota.fresh(now), now),
    }
}

pub(super) fn reset(step: &Step<'_>, cells: &mut [Option<Cell>], executed: &mut Executed) -> bool {
    let (now, mut changed) = (step.now, false);
    executed.allowed = true;
    for (charge, cell) in step.charges.iter().zip(cells) {
        changed |= forget(charge, cell, now);
        let standing = standing(charge, cell.as_ref(), now);
        let decision = Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing };
        executed.lines.push(ChargeAnswer { decision, receipt: None });
    }
    changed
}

/// Resets a key; returns whether its cell changed.
///
/// A state that a person has forced a breaker into is not a counter, and stays. A key that holds charges is not dropped:
/// if one of these charges were undone later, it would give back what others have charged since. So the key starts anew
/// a nanosecond after the reset, and charges made up to the reset are void until the refill would have returned them.
fn forget(charge: &Charge<'_>, cell: &mut Option<Cell>, now: Tick) -> bool {
    let Some(held) = cell.take() else { return false };
    let until = held.full_at().unwrap_or(Tick::MAX);
    if until > now {
        let at = now.after(Duration::from_nanos(1));
        let state = match (&**charge.quota, &held.state) {
            (Quota::Breaker(breaker), State::Breaker(state))
                if charge.rules.replace != Replace::Reset || held.is_under(charge) =>
            {
                State::Breaker(breaker.reset(state, at))
            }
            _ => charge.quota.fresh(at),
        };
        let forgotten = Some(Box::new(Forgotten { at: now, until }));
        *cell = Some(Cell { quota: charge.quota.clone(), state, forgotten });
    }
    true
}
