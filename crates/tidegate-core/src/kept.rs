//! What whoever keeps states asks of a limit: how large they get, and what becomes of one whose clock was set back.

use crate::time::{MAX_STEP_BACK, Tick};

/// Questions about the states of one limit that decide nothing.
pub(crate) trait Kept {
    /// What is remembered of one key.
    type State: Clone;

    /// Returns the tick of the last change; `None` where a state does not stand still when the clock steps back.
    fn last_change(_: &Self::State) -> Option<Tick> {
        None
    }

    /// Returns what the state was at its last change, as if that had been at `to`, which is earlier. Of charges made before, nothing
    /// comes back.
    fn set_back(&self, state: &Self::State, _to: Tick) -> Self::State {
        state.clone()
    }

    /// Returns the most bytes that any state is written in, without a header.
    fn largest(&self) -> usize;
}

/// Returns the tick of a state's last change where that is later than [`MAX_STEP_BACK`] after `now`.
#[inline]
pub(crate) fn far_ahead<L: Kept>(_: &L, state: &L::State, now: Tick) -> Option<Tick> {
    let latest = now.after(MAX_STEP_BACK);
    L::last_change(state).filter(|last| *last > latest)
}

/// Sets a state back that was last changed later than [`MAX_STEP_BACK`] after `now`; `None` where it was not.
#[inline]
pub(crate) fn after_step_back<L: Kept>(limit: &L, state: &L::State, now: Tick) -> Option<L::State> {
    let latest = now.after(MAX_STEP_BACK);
    (L::last_change(state)? > latest).then(|| limit.set_back(state, latest))
}
