//! Draws units: each charge takes as much of its cost as fits.

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Cost, Tick};

use super::cell::{Cell, current};
use super::step::{Charge, Executed, Step};
use super::take::{KeyState as _, take};

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
    use std::time::Duration;

    use tidegate_core::{Quota, Receipt, Retry};

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
