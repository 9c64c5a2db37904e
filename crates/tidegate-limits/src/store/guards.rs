//! Guards in a step: operators' requests to breakers, to show their state and to force one; and what a step changes of
//! guards, for those who watch: breakers that change their state, and limits that their laws move.

use std::time::Duration;

use tidegate_core::breaker::{Change, CircuitBreakerState, Condition, Forced, Totals, WouldTrip};
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Ask, Decision, Quota, State, Tick};

use super::cell::{Cell, current, keep, met};
use super::step::{ChargeAnswer, Executed, Step};

/// An operator's request to the breakers of a step.
#[derive(Clone, Copy, Debug)]
pub enum Handling<'a> {
    /// Reads the state and changes nothing.
    Look,
    /// Forces them into a state.
    Force(&'a Forced),
    /// Ends the forced state; a breaker that was forced open is then tried by probes.
    Release,
    /// Carries the state over to the limit of the charge, as its next use would, if the key is still under another
    /// limit. Applies to limits of every kind.
    Adopt,
    /// Copies the cells of the keys to [`Executed::cells`], for another store to take over. Changes nothing. A guard's
    /// cell is not copied: its work is not in progress elsewhere.
    Copy,
    /// Takes over the cells that another store has copied, one for each charge, where a key has none.
    TakeOver(&'a [Option<Cell>]),
}

/// The state of a breaker, as reported to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerView {
    /// Its state.
    pub condition: Condition,
    /// The calls in its window, or those of the present step of a half-open breaker.
    pub totals: Totals,
    /// The state that an operator has forced it into, if any.
    pub forced: Option<Forced>,
    /// How often it would have opened since it was forced to measure only.
    pub would_trip: Option<WouldTrip>,
    pub(crate) state: CircuitBreakerState,
}

/// Handles every breaker of a step, and puts the resulting state of the last one into `executed`; returns whether cells
/// changed. For a charge of another kind of limit only the standing is reported.
pub(super) fn handle(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    handling: Handling<'_>,
    executed: &mut Executed,
) -> bool {
    let (now, mut changed) = (step.now, false);
    executed.allowed = true;
    for (at, (charge, cell)) in step.charges.iter().zip(cells).enumerate() {
        match handling {
            Handling::Copy => {
                let copied = met(charge, cell.as_ref(), now).filter(|cell| !cell.quota.is_guard());
                executed.cells.push(copied.cloned());
            }
            Handling::TakeOver(copied) => {
                let copied = copied.get(at).and_then(Option::as_ref).filter(|copied| copied.matters(now));
                if let Some(copied) = copied
                    && !cell.as_ref().is_some_and(|cell| cell.matters(now))
                {
                    *cell = Some(copied.clone());
                    changed = true;
                }
            }
            _ => {}
        }
        let mut state = current(charge, cell.as_ref(), now).into_owned();
        let held = met(charge, cell.as_ref(), now);
        if matches!(handling, Handling::Adopt) && held.is_some_and(|held| !held.is_under(charge)) {
            keep(cell, charge.quota, state.clone(), now);
            changed = true;
        }
        if let (Quota::Breaker(breaker), State::Breaker(state)) = (&**charge.quota, &mut state) {
            let before = state.clone();
            let tell = &mut |change| {
                if step.watched {
                    executed.moved.push(Moved::breaker(charge.key, change));
                }
            };
            match handling {
                Handling::Look | Handling::Adopt | Handling::Copy | Handling::TakeOver(_) => {}
                Handling::Force(forced) => {
                    breaker.force_in_place(state, now, Some(forced.clone()), tell);
                }
                Handling::Release => breaker.force_in_place(state, now, None, tell),
            }
            executed.breaker = Some(Box::new(BreakerView {
                condition: breaker.condition(state, now),
                totals: breaker.totals(state, now),
                forced: breaker.forced(state, now),
                would_trip: breaker.would_trip(state, now),
                state: state.clone(),
            }));
            if *state != before {
                keep(cell, charge.quota, State::Breaker(state.clone()), now);
                changed = true;
            }
        }
        let standing = charge.quota.standing(&state, now);
        let decision = Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing };
        executed.lines.push(ChargeAnswer { decision, receipt: None });
    }
    changed
}

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::breaker::{CircuitBreaker, Force};
    use tidegate_core::{Cost, Replace};

    use super::super::execute::execute;
    use super::super::step::{Charge, ChargeRules, Op};
    use super::*;

    fn view(
        quota: &Arc<Quota>,
        cells: &mut [Option<Cell>],
        secs: u64,
        handling: Handling<'_>,
    ) -> BreakerView {
        let charges = [Charge::new(b"b", quota, Cost::ONE)];
        let (executed, changed) =
            execute(&Step::new(Tick::from_secs(secs), Op::Breaker(handling), &charges), cells);
        assert!(executed.allowed && changed != matches!(handling, Handling::Look));
        *executed.breaker.expect("the limit is a breaker")
    }

    #[test]
    fn a_person_opens_a_breaker_and_it_ends_by_itself() {
        let quota: Arc<Quota> = Arc::new(Quota::Breaker(CircuitBreaker::builder().build().unwrap()));
        let mut cells = [None];
        assert_eq!(view(&quota, &mut cells, 1, Handling::Look).condition, Condition::Closed);
        assert_eq!(cells, [None], "looking keeps nothing");
        let forced = Forced::new(Force::Open, Some(Tick::from_secs(60)), "upgrade");
        let open = view(&quota, &mut cells, 2, Handling::Force(&forced));
        assert_eq!((open.condition.as_str(), open.forced), ("forced-open", Some(forced)));
        let take = |secs, cells: &mut [Option<Cell>; 1]| {
            let charges = [Charge::new(b"b", &quota, Cost::ONE)];
            execute(&Step::new(Tick::from_secs(secs), Op::Take, &charges), cells).0
        };
        assert!(!take(59, &mut cells).allowed);
        assert!(take(60, &mut cells).allowed, "a probe");
        assert_eq!(view(&quota, &mut cells, 61, Handling::Look).condition.as_str(), "half-open");
    }

    #[test]
    fn what_was_forced_is_ended_and_tried_by_probes() {
        let quota: Arc<Quota> = Arc::new(Quota::Breaker(CircuitBreaker::builder().build().unwrap()));
        let mut cells = [None];
        let forced = Forced::new(Force::Open, None, "");
        view(&quota, &mut cells, 1, Handling::Force(&forced));
        let released = view(&quota, &mut cells, 2, Handling::Release);
        assert_eq!((released.condition.as_str(), released.forced), ("open", None));
    }

    /// A limit that resets what was spent does so at the next use of a key. A key that is not used until its limit is
    /// changed back would keep its state, and a breaker would stay open that a reload had closed.
    #[test]
    fn a_state_is_carried_over_to_another_limit_once() {
        let quota = |failures| {
            Arc::new(Quota::Breaker(CircuitBreaker::builder().consecutive(failures).build().unwrap()))
        };
        let (before, after) = (quota(3), quota(4));
        let mut cells = [None];
        view(&before, &mut cells, 1, Handling::Force(&Forced::new(Force::Open, None, "upgrade")));
        let adopt = |quota: &Arc<Quota>, secs, cells: &mut [Option<Cell>]| {
            let rules = ChargeRules { replace: Replace::Reset, ..ChargeRules::new(0) };
            let charge = Charge { rules, ..Charge::new(b"b", quota, Cost::ONE) };
            let step =
                Step::new(Tick::from_secs(secs), Op::Breaker(Handling::Adopt), std::slice::from_ref(&charge));
            let (executed, changed) = execute(&step, cells);
            (executed.breaker.map(|view| view.condition.as_str()), changed)
        };
        assert_eq!(adopt(&before, 2, &mut cells), (Some("forced-open"), false), "under this limit already");
        assert_eq!(adopt(&after, 3, &mut cells), (Some("closed"), true));
        assert_eq!(adopt(&after, 4, &mut cells), (Some("closed"), false));
        assert_eq!(adopt(&before, 5, &mut cells).0, Some("closed"), "nothing is left of the forced state");
        let forced = Forced::new(Force::Open, None, "again");
        view(&after, &mut cells, 6, Handling::Force(&forced));
        assert_eq!(adopt(&after, 7, &mut cells), (Some("forced-open"), false), "forced since the change");
        let rate = Arc::new(Quota::per_second(1).gcra().unwrap());
        assert_eq!(adopt(&rate, 8, &mut cells), (None, true), "a limit of another kind");
        assert_eq!(adopt(&after, 9, &mut cells).0, Some("closed"));
        assert_eq!(adopt(&after, 10, &mut [None]), (Some("closed"), false), "a key that is not known");
    }

    #[test]
    fn a_limit_that_is_no_breaker_is_left_alone() {
        let quota = Arc::new(Quota::per_second(1).gcra().unwrap());
        let charges = [Charge::new(b"b", &quota, Cost::ONE)];
        let forced = Forced::new(Force::Open, None, "");
        let step = Step::new(Tick::from_secs(1), Op::Breaker(Handling::Force(&forced)), &charges);
        let (executed, changed) = execute(&step, &mut [None]);
        assert_eq!(
            (executed.breaker, changed, executed.lines[0].decision.standing.remaining),
            (None, false, 1)
        );
    }
}
