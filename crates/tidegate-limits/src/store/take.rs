//! Takes the charges of one step, all or nothing: each limit decides its own charge, and either all charges are kept or
//! none is. A draw takes as much of each cost as fits.
//!
//! Works on a key's state in both forms that a store keeps: a [`Cell`], or a word of a table.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Ask, Cost, Decision, Receipt, Retry, Standing, State, Tick, Transition};

use super::cell::{self, Cell, current, keep, met};
use super::guards::{self, Moved};
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
        guards::by_entry(charge.key, charge.quota, &state, ask, moved);
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

/// Finds how much of each charge fits, and takes that amount of all charges or of none; returns whether cells changed.
pub(super) fn draw(step: &Step<'_>, cells: &mut [Option<Cell>], executed: &mut Executed) -> bool {
    let fitting = |(charge, cell): (&Charge<'_>, &Option<Cell>)| {
        Cost::new(most(charge, cell, step.now)).unwrap_or(Cost::ONE)
    };
    let costs: SmallVec<[Cost; 4]> = step.charges.iter().zip(&*cells).map(fitting).collect();
    let charges: SmallVec<[Charge<'_>; 4]> =
        step.charges.iter().zip(costs).map(|(charge, cost)| Charge { cost, ..*charge }).collect();
    take(&Step { charges: &charges, ..*step }, cells, true, executed)
}

/// Returns the most units of a charge that its limit allows; 1 where it allows none.
///
/// Limits are monotone: one that allows a cost allows every lower one. So the largest allowed cost is found by
/// bisection, in as many decisions as the cost has bits. First the units that are left at once are tried, which without
/// a wait are nearly always the answer: two or three decisions.
fn most(charge: &Charge<'_>, cell: &Option<Cell>, now: Tick) -> u64 {
    let fits = |units: u64| {
        let cost = Cost::new(units).unwrap_or(Cost::ONE);
        matches!(cell.decide(&Charge { cost, ..*charge }, now).0, Ruling::Allowed { .. })
    };
    // From here on, `low` is known to fit and `high` is known not to.
    let (mut low, mut high) = (1, charge.cost.units());
    if high == 1 || fits(high) {
        return high;
    }
    if !fits(low) {
        return low;
    }
    let left = charge.quota.standing(&current(charge, cell.as_ref(), now), now).remaining;
    let guess = left.saturating_sub(charge.kept_back);
    for units in [guess, guess.saturating_add(1)] {
        if low < units && units < high {
            if fits(units) { low = units } else { high = units }
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Quota;

    use super::super::conformance::{Random, quotas};
    use super::super::execute::execute;
    use super::super::step::Op;
    use super::*;

    /// The slow reference: tries each cost, from the highest down.
    fn by_trying(charge: &Charge<'_>, cell: &Option<Cell>, now: Tick) -> u64 {
        let allowed = |units: &u64| {
            let charge = Charge { cost: Cost::new(*units).unwrap(), ..*charge };
            matches!(cell.decide(&charge, now).0, Ruling::Allowed { .. })
        };
        (1..=charge.cost.units()).rev().find(allowed).unwrap_or(1)
    }

    #[test]
    fn a_draw_takes_the_most_that_any_limit_allows() {
        let mut random = Random::seeded(9);
        for quota in quotas() {
            let (mut now, mut cells) = (Tick::from_secs(1_600_000_000), [None]);
            for _ in 0..200 {
                now = now.after(Duration::from_millis(random.below(400)));
                let charge = Charge {
                    kept_back: [0, 0, 1, 3][random.below(4) as usize],
                    max_wait: Duration::from_millis([0, 0, 90, 3000][random.below(4) as usize]),
                    ..Charge::new(b"k", &quota, Cost::new(1 + random.below(40)).unwrap())
                };
                let expected = by_trying(&charge, &cells[0], now);
                let (executed, _) = execute(&Step::new(now, Op::Draw, &[charge]), &mut cells);
                if executed.allowed {
                    let receipt = executed.lines[0].receipt.expect("a draw has a receipt");
                    assert_eq!(receipt.cost.units(), expected, "{quota:?}");
                } else {
                    assert_eq!(expected, 1, "{quota:?}");
                }
            }
        }
    }

    #[test]
    fn where_nothing_fits_the_wait_is_that_for_one_unit_and_nobody_takes() {
        let (wide, narrow) = (quota(10), quota(1));
        let charges = [draw_of(b"a", &wide, 7), draw_of(b"b", &narrow, 7)];
        let mut cells = [None, None];
        let step = Step::new(Tick::from_secs(5), Op::Draw, &charges);
        let first = execute(&step, &mut cells).0;
        let taken = |executed: &Executed| -> Vec<u64> {
            executed
                .lines
                .iter()
                .filter_map(|line| line.receipt)
                .map(|made: Receipt| made.cost.units())
                .collect()
        };
        assert_eq!(taken(&first), [7, 1], "each takes what fits");
        let second = execute(&step, &mut cells).0;
        assert!(!second.allowed && taken(&second).is_empty(), "all or none");
        let retry = second.lines[1].decision.retry();
        assert_eq!(retry, Retry::After(Duration::from_secs(1)));
        assert_eq!(second.lines[0].decision.standing.remaining, 3, "and the other has lost nothing");
    }

    #[test]
    fn places_are_drawn_together_and_left_together() {
        let guard = Arc::new(Quota::concurrency(5, Duration::from_secs(9)).unwrap());
        let mut cells = [None];
        let now = Tick::from_secs(1);
        let charges = [draw_of(b"g", &guard, 8)];
        let drawn = execute(&Step::new(now, Op::Draw, &charges), &mut cells).0;
        assert_eq!(drawn.lines[0].receipt.unwrap().cost.units(), 5);
        assert_eq!(drawn.lines[0].decision.standing.remaining, 0);
        let lapsed = execute(&Step::new(now.after(Duration::from_secs(9)), Op::Draw, &charges), &mut cells).0;
        assert_eq!(lapsed.lines[0].receipt.unwrap().cost.units(), 5, "places free themselves");
    }

    fn quota(burst: u64) -> Arc<Quota> {
        Arc::new(Quota::per_second(1).burst(burst).gcra().unwrap())
    }

    fn draw_of<'a>(key: &'a [u8], quota: &'a Arc<Quota>, units: u64) -> Charge<'a> {
        Charge::new(key, quota, Cost::new(units).unwrap())
    }
}
