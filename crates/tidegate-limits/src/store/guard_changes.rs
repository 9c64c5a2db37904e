//! What a step changes of guards, for those who watch: breakers that change their state, and limits that their laws
//! move.

use tidegate_core::breaker::Change;
use tidegate_core::{Algorithm, Ask, Quota, State, Tick};

/// A guard that a [watched](crate::store::Step::watched) step has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The key of the charge.
    pub key: Box<[u8]>,
    /// What has changed.
    pub change: GuardChange,
}

/// A change of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardChange {
    /// A breaker has changed its state.
    Breaker(Change),
    /// A law has moved the number of places.
    Limit {
        /// When, by the clock that decided.
        at: Tick,
        /// The number of places before.
        from: u64,
        /// The number of places after.
        to: u64,
    },
}

impl Moved {
    pub(super) fn breaker(key: &[u8], change: Change) -> Self {
        Self { key: key.into(), change: GuardChange::Breaker(change) }
    }
}

/// Adds the changes of a breaker that a call enters which is let in. A law does not move a limit when work enters.
pub(super) fn by_entry(key: &[u8], quota: &Quota, before: &State, ask: Ask, moved: &mut Vec<Moved>) {
    if let (Quota::Breaker(breaker), State::Breaker(state)) = (quota, before) {
        // Entered once more, in a copy: the usual entry tells nobody, and only steps that are watched come here.
        let _ = breaker.enter_in_place(&mut state.clone(), ask, &mut |change| {
            moved.push(Moved::breaker(key, change));
        });
    }
}

pub(super) fn by_exit(
    key: &[u8],
    quota: &Quota,
    before: &State,
    after: &State,
    now: Tick,
    moved: &mut Vec<Moved>,
) {
    if !matches!(quota, Quota::Adaptive(_)) {
        return;
    }
    let limit = |state| quota.standing(state, now).limit;
    let (from, to) = (limit(before), limit(after));
    if from != to {
        moved.push(Moved { key: key.into(), change: GuardChange::Limit { at: now, from, to } });
    }
}
