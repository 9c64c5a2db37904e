//! Executes one step over several cells: the function that every store runs.

use std::time::Duration;

use super::cell::Cell;
use super::step::{Charge, Executed, Op, Step};
use super::take::{draw, take};
use super::{ending, guards};

/// Executes a step over its cells, one per charge in the same order; `None` is a key never seen.
///
/// Pure except for `cells`. The second result is whether the cells changed: only then is there anything to write back.
/// A peek changes nothing. A denied take changes nothing either, with one exception: a key that is new, denied by its
/// limit, and starts below full is kept, because it fills up from then on; otherwise every further ask would treat it
/// as new. A cell that becomes `None` has to be forgotten.
///
/// # Panics
/// When there are fewer `cells`, or fewer endings, than charges: a mistake of the store, never of a caller.
pub fn execute(step: &Step<'_>, cells: &mut [Option<Cell>]) -> (Executed, bool) {
    assert!(cells.len() >= step.charges.len(), "a cell for each charge");
    let mut executed = Executed { at: step.now, ..Executed::default() };
    let changed = match step.op {
        Op::Take => take(step, cells, true, &mut executed),
        Op::Draw => draw(step, cells, &mut executed),
        Op::Peek => take(step, cells, false, &mut executed),
        Op::Finish(endings) => ending::finish(step, cells, endings, &mut executed),
        Op::Reset => ending::reset(step, cells, &mut executed),
        Op::Breaker(handling) => guards::handle(step, cells, handling, &mut executed),
    };
    (executed, changed)
}

/// Executes a step like [`execute`], for a store that takes cells of at most `largest` bytes.
///
/// A charge that would wait, and whose promise would make its cell larger, does not wait: it is refused until it can act
/// at once. Promises that were made are kept, since one that is forgotten could not be undone. A settlement is never
/// refused: where it leaves a cell too large, the oldest gaps between the promises of a bucket are forgotten.
pub fn execute_within(
    step: &Step<'_>,
    cells: &mut [Option<Cell>],
    largest: Option<usize>,
) -> (Executed, bool) {
    let promises = matches!(step.op, Op::Take | Op::Draw)
        && step.charges.iter().any(|charge| !charge.max_wait.is_zero());
    let Some(most) = largest else { return execute(step, cells) };
    if !promises {
        let answer = execute(step, cells);
        for cell in cells.iter_mut().flatten() {
            if let Some(shorter) = cell.quota.shortened(&cell.state).filter(|_| cell.encode().len() > most) {
                cell.state = shorter;
            }
        }
        return answer;
    }
    let before = cells.to_vec();
    let answer = execute(step, cells);
    let large = |cell: &Option<Cell>| cell.as_ref().is_some_and(|cell| cell.encode().len() > most);
    if !answer.1 || !cells.iter().any(large) {
        return answer;
    }
    let at_once = |(charge, cell): (&Charge<'_>, &Option<Cell>)| -> Duration {
        if large(cell) { Duration::ZERO } else { charge.max_wait }
    };
    let waits: Vec<Duration> = step.charges.iter().zip(&*cells).map(at_once).collect();
    let charges: Vec<Charge<'_>> =
        step.charges.iter().zip(waits).map(|(charge, max_wait)| Charge { max_wait, ..*charge }).collect();
    cells.clone_from_slice(&before);
    execute(&Step { charges: &charges, ..*step }, cells)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Cost, Finish, Quota, Retry, Tick};

    use super::super::step::Ending;
    use super::*;

    #[test]
    fn a_step_refused_by_its_last_charge_has_spent_none() {
        let (wide, narrow) = (quota(10), quota(1));
        let (now, two) = (Tick::from_secs(1), Cost::new(2).unwrap());
        let charges = [Charge::new(b"a", &wide, two), Charge::new(b"b", &narrow, two)];
        let mut cells = [None, None];
        let (executed, changed) = execute(&Step::new(now, Op::Take, &charges), &mut cells);
        assert!(!executed.allowed && !changed);
        assert_eq!(cells, [None, None]);
        assert!(executed.lines[0].decision.is_allowed(), "the first alone would have passed");
        assert_eq!(executed.lines[0].decision.standing.remaining, 10, "and has spent nothing");
    }

    #[test]
    fn a_shadow_is_charged_with_the_request_and_never_refuses_it() {
        let (wide, narrow) = (quota(10), quota(1));
        let shadow = Charge { binding: false, ..Charge::new(b"s", &narrow, Cost::ONE) };
        let charges = [Charge::new(b"a", &wide, Cost::ONE), shadow];
        let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
        let mut cells = [None, None];
        assert!(execute(&step, &mut cells).0.lines[1].decision.is_allowed());
        let (executed, _) = execute(&step, &mut cells);
        assert!(executed.allowed && !executed.lines[1].decision.is_allowed());
    }

    #[test]
    fn a_changed_quota_keeps_what_was_spent() {
        let (old, new) = (quota(10), quota(5));
        let now = Tick::from_secs(1);
        let mut cells = [None];
        let take = |quota: &Arc<Quota>, cells: &mut [Option<Cell>; 1]| {
            let charges = [Charge::new(b"a", quota, Cost::new(3).unwrap())];
            execute(&Step::new(now, Op::Take, &charges), cells).0
        };
        assert_eq!(take(&old, &mut cells).lines[0].decision.standing.remaining, 7);
        assert!(!take(&new, &mut cells).allowed, "three of five are spent");
    }

    /// A hundred callers wait for a log in an engine that takes small cells. Regression: the log forgot the first of
    /// them, and stayed closed when all had gone.
    #[test]
    fn a_promise_that_a_cell_has_no_room_for_is_refused() {
        let log = Arc::new(Quota::per_minute(1).sliding_log().unwrap());
        let at = |now| Step::new(Tick::from_secs(now), Op::Take, &[]);
        let charges = [Charge { max_wait: Duration::MAX, ..Charge::new(b"a", &log, Cost::ONE) }];
        let mut cells = [None];
        let mut receipts = Vec::new();
        let refused = loop {
            let (executed, changed) =
                execute_within(&Step { charges: &charges, ..at(0) }, &mut cells, Some(1000));
            assert!(cells[0].as_ref().unwrap().encode().len() <= 1000 && changed == executed.allowed);
            match executed.lines[0].receipt {
                Some(receipt) => receipts.push(receipt),
                None => break executed,
            }
        };
        let promised = receipts.len() as u64;
        assert!((40..64).contains(&promised), "{promised}");
        assert_eq!(refused.lines[0].decision.retry(), Retry::After(Duration::from_secs(60 * promised)));
        for receipt in receipts {
            let endings = [Ending::new(receipt, Finish::UNDONE)];
            execute_within(
                &Step { charges: &charges, ..Step::new(Tick::EPOCH, Op::Finish(&endings), &[]) },
                &mut cells,
                Some(1000),
            );
        }
        assert!(
            execute(&Step { charges: &[Charge::new(b"a", &log, Cost::ONE)], ..at(1) }, &mut cells).0.allowed
        );
    }

    /// A thousand callers wait for a bucket in memory, and every second one goes away. An engine that takes the cell
    /// over keeps what it has room for.
    #[test]
    fn a_settlement_that_a_cell_has_no_room_for_forgets_gaps() {
        let bucket = Arc::new(Quota::per_second(1).token_bucket().unwrap());
        let now = Tick::from_secs(1);
        let charges = [Charge { max_wait: Duration::MAX, ..Charge::new(b"a", &bucket, Cost::ONE) }];
        let mut cells = [None];
        let made: Vec<_> = (0..1000)
            .map(|_| execute(&Step::new(now, Op::Take, &charges), &mut cells).0.lines[0].receipt.unwrap())
            .collect();
        for receipt in made.into_iter().step_by(2) {
            let endings = [Ending::new(receipt, Finish::UNDONE)];
            let step = Step::new(now, Op::Finish(&endings), &charges);
            execute_within(&step, &mut cells, Some(4096));
            let cell = cells[0].as_ref().unwrap();
            assert!(cell.encode().len() <= 4096);
            assert_eq!(Cell::decode(&cell.encode()).as_ref(), Ok(cell));
        }
    }

    fn quota(burst: u64) -> Arc<Quota> {
        Arc::new(Quota::per_second(1).burst(burst).gcra().unwrap())
    }
}
