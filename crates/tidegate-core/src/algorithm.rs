//! The trait of every rate limit: parameters that turn a state and a request into a decision and the next state.

use core::fmt::Debug;
use core::time::Duration;

use crate::bytes::Bytes;
use crate::decision::{Ask, Cost, Receipt, Replace, Standing, Transition};
use crate::time::{MAX_STEP_BACK, Rate, Tick};

/// A rate-limit law: parameters that turn `(state, now, cost, max_wait)` into a decision and the next state.
///
/// A *charge* is a cost that was allowed. It *acts* when its wait is over; a *promise* is the act of a charge that still waits.
///
/// # Laws
/// Every implementation keeps these; tests compare each with a slow model in rational numbers:
/// * *Time never gives capacity twice.* A state carries the tick of its last change; an earlier `now` counts as that tick.
/// * *Denial changes nothing*: [`Transition::Denied`] has no state to store.
/// * *The retry time is exact*: the same request is allowed after that wait and denied a nanosecond earlier, if
///   nobody else asks and the state is kept meanwhile. The wait counts from `now`, or from the last change of the
///   state if that is later. Profiles of other libraries round as those libraries do, and say so.
/// * *First come, first served*: a promised time does not move, whatever is asked later.
/// * *Settling never creates capacity*: no limit ends up fuller than if the units really used had been charged in the
///   first place.
pub trait Algorithm: Clone + Debug + Eq + Bytes {
    /// The state of one key.
    type State: Clone + Debug + Eq + Bytes;

    /// Returns the state of a key never seen before: a full limit, first met at `now`.
    fn fresh(&self, now: Tick) -> Self::State;

    /// Decides one request. On the hot path: no allocation unless the state grows.
    fn decide(&self, state: &Self::State, ask: Ask) -> Transition<Self::State>;

    /// Returns the standing of the limit at `now`; changes nothing.
    fn standing(&self, state: &Self::State, now: Tick) -> Standing;

    /// Settles an allowed charge with the units really used: 0 undoes the charge, fewer than charged give the difference
    /// back, and more are booked as a debt, which is never refused. The caller must settle a receipt at most once.
    ///
    /// * *Never fuller*: at no later tick is the limit fuller than if only `used` had been charged at the time of the
    ///   charge, so work, including work still to come, never bunches beyond the limit. If nobody has charged since,
    ///   it is exactly as full. If others have, it may give back less, never more; each algorithm says when.
    /// * *Promises stay*: every reservation keeps its time, and a promised time is not granted twice.
    /// * *More than charged* is charged at `now`, after everything promised. The limit then stands below empty, by at
    ///   most [`Rate::MAX_COUNT`] units, and later requests wait until the debt is paid off.
    /// * A charge made before the last [`carry`](Algorithm::carry) gives nothing back; more than charged is booked
    ///   all the same.
    fn settle(&self, state: &Self::State, now: Tick, receipt: &Receipt, used: u64) -> Self::State;

    /// Converts a state made under the parameters `old` to these. Unless `how` is [`Replace::Reset`], at least as
    /// much is spent after that as before, up to the new limit.
    fn carry(&self, old: &Self, state: &Self::State, now: Tick, how: Replace) -> Self::State;

    /// Returns the tick from which the state is equivalent to a fresh one, so that forgetting it gives nobody any
    /// capacity; `None` if there is no such tick.
    fn full_at(&self, state: &Self::State) -> Option<Tick>;
}

/// Carries the units that `state` has spent under `old` over to `new`, a limit of another algorithm: the units spent and
/// owed in its standing are charged to a fresh limit, at the tick of the change. Forgetting them would give every
/// caller a fresh burst, and a conversion for each pair of algorithms would be too many.
///
/// What a standing does not hold is lost in the strict direction: parts of a unit count as spent, units return counted
/// from the change, a warm-up starts cold. A reservation keeps its time; a faster new limit may let others pass before it.
/// A limit that starts below full starts no fuller than that. Earlier receipts give nothing back.
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
    // Marks the state, so that receipts from before give nothing back.
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

/// Properties of the states of one limit that do not affect decisions.
pub(crate) trait Storable {
    /// The state of one key.
    type State: Clone;

    /// Returns the tick of the last change; `None` for a state that does not stand still when the clock steps back.
    fn last_change(&self, _: &Self::State) -> Option<Tick> {
        None
    }

    /// Returns the state as it was at its last change, as if that had been at `to`, an earlier tick. Charges made
    /// before give nothing back.
    fn set_back(&self, state: &Self::State, _to: Tick) -> Self::State {
        state.clone()
    }

    /// Returns the state with the fewer gaps that an engine has room for; `None` if it has no more than those.
    fn shortened(&self, _: &Self::State) -> Option<Self::State> {
        None
    }

    /// Returns the largest byte form of a state that is not to be shortened, in bytes, without the header.
    fn largest(&self) -> usize;
}

/// Returns the tick of a state's last change if that is later than [`MAX_STEP_BACK`] after `now`.
#[inline]
pub(crate) fn far_ahead<L: Storable>(limit: &L, state: &L::State, now: Tick) -> Option<Tick> {
    let latest = now.after(MAX_STEP_BACK);
    limit.last_change(state).filter(|last| *last > latest)
}

/// Sets a state back whose last change is later than [`MAX_STEP_BACK`] after `now`; `None` for any other state.
#[inline]
pub(crate) fn after_step_back<L: Storable>(limit: &L, state: &L::State, now: Tick) -> Option<L::State> {
    far_ahead(limit, state, now).map(|_| limit.set_back(state, now.after(MAX_STEP_BACK)))
}
