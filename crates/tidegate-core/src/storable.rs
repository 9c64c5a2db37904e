//! Properties of a limit's states that stores need: how large they get, and how to treat one after the clock was set
//! back.

use crate::time::{MAX_STEP_BACK, Tick};

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
    let latest = now.after(MAX_STEP_BACK);
    (limit.last_change(state)? > latest).then(|| limit.set_back(state, latest))
}
