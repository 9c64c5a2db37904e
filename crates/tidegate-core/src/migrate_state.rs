//! Converts the state of a limit whose algorithm changes: units spent are carried over to the new algorithm.
//!
//! States of two algorithms have nothing in common, and a conversion for each pair of the thirteen would be too many.
//! But every algorithm reports a standing. So the units spent and the units owed in that standing are charged to a
//! fresh limit of the new algorithm, at the tick of the change, by its own transition. Forgetting them would give
//! every caller a fresh burst with the change.
//!
//! Everything a standing does not hold is lost, always in the strict direction. Parts of a unit count as spent. Units
//! return as the new algorithm returns them, counted from the change, even if a window was about to end. A warm-up
//! starts cold. The tick that a reservation was promised is not part of a standing either. The reservation keeps its
//! time, and its units beyond the limit stay owed. So it is not overtaken where both algorithms return units evenly
//! at one rate; a faster new limit may let others pass before it.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Receipt, Replace, Transition};
use crate::time::{Rate, Tick};

/// Carries the units that `state` has spent under `old` over to `new`, a limit of another algorithm.
///
/// [`Replace::AsIs`] keeps the number of units, at most all of the new limit. [`Replace::Proportional`] keeps the
/// spent share, rounded up. Units owed beyond the limit stay owed. A limit that starts below full starts no fuller
/// than that. Earlier receipts give nothing back.
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
    // Carrying to the same parameters changes no units. It marks the state, so that receipts from before give nothing back.
    new.carry(new, &carried, at, Replace::AsIs)
}

/// Returns `now`, or the tick of the state's last change if that is later. Only the receipt of a decision tells that tick.
fn last_change<L: Algorithm>(old: &L, state: &L::State, now: Tick) -> Tick {
    match old.decide(state, Ask::within(now, Cost::ONE, Duration::MAX)) {
        Transition::Allowed { receipt, .. } => receipt.at.max(now),
        Transition::Denied { .. } => now,
    }
}

/// Takes `charge` units off a fresh limit and books `debt` more, which may take it below empty.
fn spend<L: Algorithm>(limit: &L, fresh: L::State, at: Tick, charge: u64, debt: u64) -> L::State {
    let charged = Cost::new(charge).map(|cost| limit.decide(&fresh, Ask::within(at, cost, Duration::MAX)));
    let (state, receipt, debt) = match charged {
        Some(Transition::Allowed { next, receipt, .. }) => (next, receipt, debt),
        // Nothing to charge, or the limit denies the charge: all of it is owed.
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
