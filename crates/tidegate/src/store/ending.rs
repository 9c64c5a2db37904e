//! The second half of a charge: the units really spent are booked against the state that stands now.
//!
//! The arithmetic is core's ([`Quota::finish`]): no limit ends up fuller than if only what was spent had been charged. A store adds what a
//! state cannot know: that the key is gone, that it was reset, that it is now under another limit. In each of these cases nothing comes
//! back, and what was spent beyond the charge is booked all the same. A cell under another limit stays under it: carried to the charge's
//! limit and back it would be rounded twice. A place of a guard is found by its receipt, whatever the guard's number is by now, and left
//! there.
//!
//! One bound: that a key was reset, or had another limit, is remembered in its cell. Where a store that is full gave the cell up, and the
//! key came again, charges from before can be given back out of those that followed, at most what they were. A store that evicts nothing
//! ([`super::Occupancy::evicted`]) keeps the promise whole.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Cost, Decision, Finish, Quota, Receipt, Standing, State, Tick};

use super::cell::{Cell, Forgotten, keep, met};
use super::step::{Charge, Ending, Settled, Settlement, Step};
use super::take::Hand as _;

/// Ends every charge of a step, or none where a charge that is made once ([`Ending::Once`]) is refused; returns whether cells changed.
pub(super) fn finish(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    endings: &[Ending],
    settled: &mut Settled,
) -> bool {
    assert!(endings.len() >= step.charges.len(), "an ending for each charge");
    let (now, mut changed) = (step.now, false);
    // Keys are distinct: what one ending does changes nothing for another.
    let refused = step.charges.iter().zip(&*cells).zip(endings).any(|((charge, cell), ending)| {
        matches!(ending, Ending::Once) && cell.decide(&at_once(charge), now).1.is_none()
    });
    settled.allowed = !refused;
    for ((charge, cell), ending) in step.charges.iter().zip(cells).zip(endings) {
        // A cell counts that was met, or that this step has written: also where it is as good as none afterwards.
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
            _ if refused => {}
            Ending::Forget => {
                changed |= forget(charge, cell, now);
                counts = true;
            }
            Ending::Finish { receipt: made, finish, renew } => {
                let found = cell.as_ref().filter(|_| counts);
                if let Some((quota, next)) = next(charge, found, (made, *finish, *renew), now) {
                    let quota = quota.cloned().unwrap_or_else(|| charge.quota.clone());
                    keep(cell, &quota, next, now);
                    (changed, counts) = (true, true);
                }
                receipt = came_back(&before, &stands(cell, counts), made);
            }
        }
        let standing = stands(cell, counts);
        settled.lines.push(Settlement { decision: Decision { ruling, standing }, receipt });
    }
    changed
}

/// Returns a charge that does not wait, and from which nothing is kept back.
const fn at_once<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { max_wait: Duration::ZERO, kept_back: 0, ..*charge }
}

/// Returns the state after one ending and, if that differs from the charge's quota, the quota it is under; `None` where nothing changes.
fn next<'c>(
    charge: &Charge<'_>,
    cell: Option<&'c Cell>,
    (receipt, mut finish, renew): (&Receipt, Finish, Option<Tick>),
    now: Tick,
) -> Option<(Option<&'c Arc<Quota>>, State)> {
    let void = cell.is_none_or(|cell| cell.is_void(receipt, now));
    let quota = cell.map(|cell| &cell.quota);
    if charge.quota.is_guard() || quota.is_some_and(|quota| quota.is_guard()) {
        // A place is left where it was taken, however many there are by now; a place that is gone leaves nothing to do.
        let quota = quota.filter(|quota| !void && quota.is_guard() && charge.quota.is_guard())?;
        let state = &cell?.state;
        let next = quota.finish(state, now, receipt, finish);
        return (next != *state).then_some((Some(quota), next));
    }
    if void && renew.is_some_and(|until| now < until) {
        // Booked as a debt of all that was spent: it has happened, whether there is room or not.
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

impl Cell {
    /// Says whether the key was reset, or its limit changed its kind, since a charge was made.
    fn is_void(&self, receipt: &Receipt, now: Tick) -> bool {
        self.forgotten.as_ref().is_some_and(|forgotten| now < forgotten.until && receipt.at <= forgotten.at)
    }
}

/// Returns the receipt of a charge with the units that came back as its cost; `None` where none did.
fn came_back(before: &Standing, after: &Standing, receipt: &Receipt) -> Option<Receipt> {
    // What is in use, and not what is left: a limit that a law moves is another one before and after.
    let in_use = |standing: &Standing| {
        i128::from(standing.limit) - i128::from(standing.remaining) + i128::from(standing.debt)
    };
    let units = (in_use(before) - in_use(after)).clamp(0, i128::from(receipt.cost.units()));
    // Fits 64 bits: at most a cost.
    let cost = Cost::new(units as u64)?;
    Some(Receipt { cost, ..*receipt })
}

/// Returns how a cell stands under its own limit.
fn standing(charge: &Charge<'_>, cell: Option<&Cell>, now: Tick) -> Standing {
    match cell {
        Some(cell) => cell.quota.standing(&cell.state, now),
        None => charge.quota.standing(&charge.quota.fresh(now), now),
    }
}

/// Forgets what was spent by every key of a step; returns whether cells changed.
pub(super) fn reset(step: &Step<'_>, cells: &mut [Option<Cell>], settled: &mut Settled) -> bool {
    let (now, mut changed) = (step.now, false);
    settled.allowed = true;
    for (charge, cell) in step.charges.iter().zip(cells) {
        changed |= forget(charge, cell, now);
        let standing = standing(charge, cell.as_ref(), now);
        let decision = Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing };
        settled.lines.push(Settlement { decision, receipt: None });
    }
    changed
}

/// Forgets what was spent by a key; returns whether its cell changed.
///
/// A key that holds charges is not dropped: were one of them undone later, it would give back what others have charged since. So it
/// starts anew a nanosecond after the reset, and what was charged up to then is void until time would have returned it.
fn forget(charge: &Charge<'_>, cell: &mut Option<Cell>, now: Tick) -> bool {
    let Some(held) = cell.take() else { return false };
    let until = held.full_at().unwrap_or(Tick::MAX);
    if until > now {
        let state = charge.quota.fresh(now.after(Duration::from_nanos(1)));
        let forgotten = Some(Box::new(Forgotten { at: now, until }));
        *cell = Some(Cell { quota: charge.quota.clone(), state, forgotten });
    }
    true
}
