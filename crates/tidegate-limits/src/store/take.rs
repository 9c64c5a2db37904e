//! Takes the charges of one step, all or nothing: each limit decides its own charge, and either all charges are kept or
//! none is.
//!
//! Works on a key's state in both forms that a store keeps: a [`Cell`], or a word of a table.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Ask, Decision, Receipt, Retry, Standing, State, Tick, Transition};

use super::cell::{self, Cell, current, keep, met};
use super::guard_changes::{self, Moved};
use super::kept_back;
use super::step::{Charge, ChargeAnswer, Executed, Step};

type ChargeRuling<H> = (Ruling, Option<(<H as KeyState>::Next, Receipt)>);

pub(super) trait KeyState {
    type Next;

    /// Decides one charge by itself, ignoring what is kept back from it.
    fn decide_cost(&self, charge: &Charge<'_>, now: Tick) -> (Ruling, Option<(Self::Next, Receipt)>);

    /// Decides one charge by itself, including what is kept back from it. This is the only place where a reserve
    /// refuses, besides the fast path for words (`memory/word_path.rs`).
    fn decide(&self, charge: &Charge<'_>, now: Tick) -> (Ruling, Option<(Self::Next, Receipt)>) {
        if let Some(with_kept_back) = self.with_kept_back(charge, now)
            && let (denied @ Ruling::Denied { .. }, _) = self.decide_cost(&with_kept_back, now)
        {
            return (denied, None);
        }
        self.decide_cost(charge, now)
    }

    /// Returns the charge that has to be allowed for this one to be allowed; `None` where nothing is kept back.
    #[inline]
    fn with_kept_back<'c>(&self, charge: &Charge<'c>, _now: Tick) -> Option<Charge<'c>> {
        charge.with_kept_back()
    }

    /// Returns when a refused charge is worth repeating: `ruled` by its limit, or a corrected time where the key is
    /// still under another limit.
    #[inline]
    fn retry(&self, _charge: &Charge<'_>, _now: Tick, ruled: Retry) -> Retry {
        ruled
    }

    /// Returns the standing of the limit in the state `next`, or in the present one if that is `None`.
    fn standing(&self, charge: &Charge<'_>, next: Option<&Self::Next>, now: Tick) -> Standing;

    fn keep(&mut self, charge: &Charge<'_>, next: Self::Next, now: Tick);

    /// Adds to `moved` what the charge changes of a guard, before it is kept. Words have no guards.
    fn watch(&self, _charge: &Charge<'_>, _now: Tick, _moved: &mut Vec<Moved>) {}

    /// Updates a key that was denied if it is new and fills up from now on, or its state was written by a clock that
    /// runs ahead. Returns whether the state changed.
    fn meet(&mut self, _charge: &Charge<'_>, _now: Tick) -> bool {
        false
    }
}

impl KeyState for Option<Cell> {
    type Next = State;

    fn decide_cost(&self, charge: &Charge<'_>, now: Tick) -> (Ruling, Option<(State, Receipt)>) {
        let state = current(charge, self.as_ref(), now);
        match charge.quota.decide(&state, Ask::within(now, charge.cost, charge.max_wait)) {
            Transition::Allowed { wait, next, receipt } => (Ruling::Allowed { wait }, Some((next, receipt))),
            Transition::Denied { retry } => (Ruling::Denied { retry }, None),
        }
    }

    #[inline]
    fn with_kept_back<'c>(&self, charge: &Charge<'c>, now: Tick) -> Option<Charge<'c>> {
        if charge.kept_back == 0 { None } else { with_share(self, charge, now) }
    }

    fn retry(&self, charge: &Charge<'_>, now: Tick, ruled: Retry) -> Retry {
        cell::retry(self.with_kept_back(charge, now).as_ref().unwrap_or(charge), self.as_ref(), now, ruled)
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

    fn watch(&self, charge: &Charge<'_>, now: Tick, moved: &mut Vec<Moved>) {
        let (state, ask) = (current(charge, self.as_ref(), now), Ask::allow(now, charge.cost));
        guard_changes::by_entry(charge.key, charge.quota, &state, ask, moved);
    }

    fn meet(&mut self, charge: &Charge<'_>, now: Tick) -> bool {
        if met(charge, self.as_ref(), now).is_some()
            && let Some(cell) = self
        {
            // Set back now: otherwise a denied key would stand still until the tick that the fast clock had written.
            let quota = if cell.is_under(charge) { charge.quota } else { &cell.quota };
            let Some(state) = quota.set_back(&cell.state, now) else { return false };
            cell.state = state;
            return true;
        }
        let fresh = charge.quota.fresh(now);
        // Most limits start full, and a full limit need not be kept: so keys that are refused when first seen take no
        // room.
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

/// Returns the charge plus what is kept back from it; for an adaptive limit, that share is of its present size.
#[cold]
fn with_share<'c>(cell: &Option<Cell>, charge: &Charge<'c>, now: Tick) -> Option<Charge<'c>> {
    if !kept_back::moves(charge.quota) {
        return charge.with_kept_back();
    }
    let limit = cell.standing(charge, None, now).limit;
    let kept_back = kept_back::in_places(charge.quota, charge.kept_back, limit, charge.cost);
    Charge { kept_back, ..*charge }.with_kept_back()
}

/// Decides each charge by itself, and keeps the next states only if no binding charge was refused; returns whether any
/// state changed.
pub(super) fn take<H: KeyState>(
    step: &Step<'_>,
    states: &mut [H],
    spend: bool,
    executed: &mut Executed,
) -> bool {
    let now = step.now;
    // As many as a plan holds without allocating. Unused room costs nothing.
    let mut decided: SmallVec<[ChargeRuling<H>; 16]> = SmallVec::new();
    let (mut allowed, mut longest) = (true, Duration::ZERO);
    for (charge, state) in step.charges.iter().zip(&*states) {
        let (mut ruling, next) = state.decide(charge, now);
        match &mut ruling {
            Ruling::Allowed { wait } if charge.binding => longest = longest.max(*wait),
            Ruling::Allowed { .. } => {}
            Ruling::Denied { retry } => {
                *retry = state.retry(charge, now, *retry);
                allowed &= !charge.binding;
            }
        }
        decided.push((ruling, next));
    }
    let mut changed = false;
    executed.moved.clear();
    executed.lines.clear();
    executed.lines.reserve_exact(decided.len());
    // `drain`, not `into_iter`: that would move the whole list first.
    for ((charge, state), (ruling, next)) in step.charges.iter().zip(states).zip(decided.drain(..)) {
        // A peek returns what is there, not what would be left.
        let spent = next.filter(|_| allowed && spend);
        let standing = state.standing(charge, spent.as_ref().map(|(next, _)| next), now);
        let receipt = spent.map(|(next, receipt)| {
            if step.watched {
                state.watch(charge, now, &mut executed.moved);
            }
            state.keep(charge, next, now);
            changed = true;
            receipt
        });
        if spend && matches!(ruling, Ruling::Denied { retry } if retry != Retry::Never) {
            changed |= state.meet(charge, now);
        }
        executed.lines.push(ChargeAnswer { decision: Decision { ruling, standing }, receipt });
    }
    (executed.allowed, executed.at) = (allowed, step.now);
    executed.wait = if allowed { longest } else { Duration::ZERO };
    changed
}
