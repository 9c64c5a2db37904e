//! A limit whose algorithm changes: what was spent goes over to the new one.
//!
//! States of two algorithms have nothing in common, and thirteen algorithms would want as many ways into each. What all of them say alike
//! is their standing, so that is what goes over: units spent and units owed are charged to a fresh limit of the new algorithm at
//! the tick of the change, by its own transition. Forgetting them instead would hand every caller a fresh burst with the change.
//!
//! What a standing does not say is lost, always on the careful side: parts of a unit count as spent; units come back as the new
//! algorithm brings them back, counted from the change, though a window may have been about to end; a warm-up starts cold. The
//! tick that a reservation was promised is not among it either. It keeps its time, and what it holds beyond the limit stays owed, so that
//! it is not overtaken where both algorithms bring units back evenly at one rate; a faster new limit may let others pass before it.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Receipt, Replace, Transition};
use crate::time::{Rate, Tick};

/// Carries what `state` says was spent under `old` over to `new`, a limit of another algorithm.
///
/// [`Replace::AsIs`] keeps units, at most all of the new limit, [`Replace::Proportional`] the spent share, rounded up; what is owed
/// beyond the limit stays owed in units. A limit that starts below full starts no fuller than that. Receipts of before give nothing
/// back.
pub(crate) fn carry<L: Algorithm>(new: &L, old: &L, state: &L::State, now: Tick, how: Replace) -> L::State {
    let at = last_change(old, state, now);
    let fresh = new.fresh(at);
    if how == Replace::Reset {
        return fresh;
    }
    let (before, full) = (old.standing(state, at), new.standing(&fresh, at));
    let spent = before.limit.saturating_sub(before.remaining);
    let spent = match how {
        Replace::Proportional => {
            let share = u128::from(spent) * u128::from(full.limit);
            u64::try_from(share.div_ceil(u128::from(before.limit.max(1)))).unwrap_or(u64::MAX)
        }
        Replace::AsIs | Replace::Reset => spent,
    };
    let missing = full.limit.saturating_sub(full.remaining);
    let charge = spent.min(full.limit).saturating_sub(missing);
    let carried = spend(new, fresh, at, charge, before.debt.min(Rate::MAX_COUNT));
    // Under its own parameters: nothing changes, but from here on receipts of before are known for what they are.
    new.carry(new, &carried, at, Replace::AsIs)
}

/// The tick that `now` counts as: no earlier than the last change of the state, which only its receipts tell.
fn last_change<L: Algorithm>(old: &L, state: &L::State, now: Tick) -> Tick {
    match old.decide(state, Ask::within(now, Cost::ONE, Duration::MAX)) {
        Transition::Allowed { receipt, .. } => receipt.at.max(now),
        Transition::Denied { .. } => now,
    }
}

/// Takes `charge` units off a fresh limit and `debt` more, which may take it below empty.
fn spend<L: Algorithm>(limit: &L, fresh: L::State, at: Tick, charge: u64, debt: u64) -> L::State {
    let charged = Cost::new(charge).map(|cost| limit.decide(&fresh, Ask::within(at, cost, Duration::MAX)));
    let (state, receipt, debt) = match charged {
        Some(Transition::Allowed { next, receipt, .. }) => (next, receipt, debt),
        // Nothing to charge, or not to be had at once: all of it is owed.
        _ => {
            let receipt = Receipt { at, act: at, cost: Cost::ONE, mark: [0; 4] };
            (fresh, receipt, debt.saturating_add(charge))
        }
    };
    if debt == 0 {
        return state;
    }
    limit.settle(&state, at, &receipt, receipt.cost.units().saturating_add(debt))
}
