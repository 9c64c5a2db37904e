//! Settles one step over several cells: the function that every store runs.

use super::breaker;
use super::cell::Cell;
use super::draw::draw;
use super::ending;
use super::step::{Op, Settled, Step};
use super::take::take;

/// Settles a step over its cells, one per charge in the same order; `None` is a key never seen.
///
/// Pure except for `cells`. The second result is whether the cells changed: only then is there anything to write back.
/// A peek changes nothing. A denied take changes nothing either, with one exception: a key that is new, denied by its
/// limit, and starts below full is kept, because it fills up from then on; otherwise every further ask would treat it
/// as new. A cell that becomes `None` has to be forgotten.
///
/// # Panics
/// When there are fewer `cells`, or fewer endings, than charges: a mistake of the store, never of a caller.
pub fn settle(step: &Step<'_>, cells: &mut [Option<Cell>]) -> (Settled, bool) {
    assert!(cells.len() >= step.charges.len(), "a cell for each charge");
    let mut settled = Settled { at: step.now, ..Settled::default() };
    let changed = match step.op {
        Op::Take => take(step, cells, true, &mut settled),
        Op::Draw => draw(step, cells, &mut settled),
        Op::Peek => take(step, cells, false, &mut settled),
        Op::Finish(endings) => ending::finish(step, cells, endings, &mut settled),
        Op::Reset => ending::reset(step, cells, &mut settled),
        Op::Breaker(handling) => breaker::handle(step, cells, handling, &mut settled),
    };
    (settled, changed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Cost, Quota, Tick};

    use super::super::step::Charge;
    use super::*;

    #[test]
    fn a_step_refused_by_its_last_charge_has_spent_none() {
        let (wide, narrow) = (quota(10), quota(1));
        let (now, two) = (Tick::from_secs(1), Cost::new(2).unwrap());
        let charges = [Charge::new(b"a", &wide, two), Charge::new(b"b", &narrow, two)];
        let mut cells = [None, None];
        let (settled, changed) = settle(&Step::new(now, Op::Take, &charges), &mut cells);
        assert!(!settled.allowed && !changed);
        assert_eq!(cells, [None, None]);
        assert!(settled.lines[0].decision.is_allowed(), "the first alone would have passed");
        assert_eq!(settled.lines[0].decision.standing.remaining, 10, "and has spent nothing");
    }

    #[test]
    fn a_shadow_is_charged_with_the_request_and_never_refuses_it() {
        let (wide, narrow) = (quota(10), quota(1));
        let shadow = Charge { binding: false, ..Charge::new(b"s", &narrow, Cost::ONE) };
        let charges = [Charge::new(b"a", &wide, Cost::ONE), shadow];
        let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
        let mut cells = [None, None];
        assert!(settle(&step, &mut cells).0.lines[1].decision.is_allowed());
        let (settled, _) = settle(&step, &mut cells);
        assert!(settled.allowed && !settled.lines[1].decision.is_allowed());
    }

    #[test]
    fn a_changed_quota_keeps_what_was_spent() {
        let (old, new) = (quota(10), quota(5));
        let now = Tick::from_secs(1);
        let mut cells = [None];
        let take = |quota: &Arc<Quota>, cells: &mut [Option<Cell>; 1]| {
            let charges = [Charge::new(b"a", quota, Cost::new(3).unwrap())];
            settle(&Step::new(now, Op::Take, &charges), cells).0
        };
        assert_eq!(take(&old, &mut cells).lines[0].decision.standing.remaining, 7);
        assert!(!take(&new, &mut cells).allowed, "three of five are spent");
    }

    fn quota(burst: u64) -> Arc<Quota> {
        Arc::new(Quota::per_second(1).burst(burst).gcra().unwrap())
    }
}
