//! Gives back a charge that was made before, as of when it was made.
//!
//! A refund that is not dated can leave a limit fuller than if the charge had never been made: charge ten of ten, wait until they
//! have returned, charge ten again and refund the first, and ten more pass at once. What a charge still holds is bounded by
//! one tick that is known when it is made: when the limit would be full again if nothing followed. From then on the charge
//! holds nothing, and before it no more than what time returns until then.
//!
//! A rolling window stays where it is: one that was opened by the charge ends as it would have, though without the charge it would
//! have been opened by the next. Nor are the profiles of other libraries covered, whose refunds are theirs, nor promises that lie
//! in the future.
//!
//! That tick is too late where something was given back in between, for the limit would then have been full earlier. Whoever gives
//! back has to move it by as much, as `gate/marks.rs` does.

use std::time::Duration;

use tidegate_core::{Algorithm, Cost, Quota, Rate, State, Tick};

use super::{Cell, Charge};

/// What giving a charge back came to.
pub(super) struct GivenBack {
    pub(super) state: State,
    /// How much, rounded up to whole units.
    pub(super) units: Cost,
    /// By how much sooner the limit is full; zero where units leave at ticks of their own.
    pub(super) sooner: Duration,
}

/// Gives a charge back; `None` where it holds nothing any more.
///
/// A cell of another limit is left alone: to carry it to the charge's and back would round, and could create capacity. GCRA gives back
/// parts of a unit. Of other limits that refill evenly units are whole, rounded down where others were charged since.
pub(super) fn give_back(charge: &Charge<'_>, cell: &Cell, now: Tick, until: Tick) -> Option<GivenBack> {
    let (quota, state) = (&*cell.quota, &cell.state);
    let left = until.since(now);
    if quota != &**charge.quota || left.is_zero() {
        return None;
    }
    let alone = quota.standing(state, now).reset_after <= left;
    if let (Quota::Gcra(limit), State::Gcra(state), false) = (quota, state, alone) {
        let (next, sooner) = limit.refund_until(state, now, charge.cost, until);
        // Rounded up: a nanosecond less lies below a whole number of units, where it is one.
        let units = units_in(limit.rate(), sooner.checked_sub(Duration::from_nanos(1))?).saturating_add(1);
        let units = units.min(charge.cost.units());
        return Some(GivenBack { state: State::Gcra(next), units: Cost::new(units)?, sooner });
    }
    let most = if alone { u64::MAX } else { returns(quota, state, now, until) };
    let units = Cost::new(charge.cost.units().min(most))?;
    Some(GivenBack { state: quota.refund(state, now, units), units, sooner: time_of(quota, units) })
}

/// Returns how many units of a limit time gives back until a tick at which it is not full yet; too few rather than too many.
fn returns(quota: &Quota, state: &State, now: Tick, until: Tick) -> u64 {
    let left = |at| quota.standing(state, at).remaining;
    match quota {
        Quota::LeakyBucket(limit) => units_in(limit.rate(), until.since(now)),
        Quota::LeakyQueue(limit) => units_in(limit.rate(), until.since(now)),
        // Whole units leave these at ticks of their own.
        Quota::FixedWindow(_) | Quota::SlidingWindow(_) | Quota::SlidingLog(_) => {
            left(until).saturating_sub(left(now))
        }
        // Something was charged in a later window, from which a refund would be taken.
        Quota::SlidingCounter(_) => 0,
        // Both are rounded down, so that their difference may be one too many.
        _ => left(until).saturating_sub(left(now)).saturating_sub(1),
    }
}

/// Puts by how much sooner a limit is full into the mark of a receipt.
pub(super) fn mark(sooner: Duration) -> [u64; 4] {
    [0, 0, 0, u64::try_from(sooner.as_nanos()).unwrap_or(u64::MAX)]
}

fn units_in(rate: Rate, span: Duration) -> u64 {
    let (count, period) = rate.reduced();
    // A span of ticks is below 2^64 ns and a count at most 2^60.
    let units = span.as_nanos() * u128::from(count) / u128::from(period);
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// Returns by how much sooner a limit is full when units are given back.
fn time_of(quota: &Quota, units: Cost) -> Duration {
    let at = |rate: Rate| {
        let (count, period) = rate.reduced();
        // Below 2^126: units of a charge are at most a burst of 2^60, and a period 2^62.
        let nanos = (u128::from(units.units()) * u128::from(period)).div_ceil(u128::from(count));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    };
    match quota {
        Quota::Gcra(limit) => at(limit.rate()),
        Quota::LeakyBucket(limit) => at(limit.rate()),
        Quota::LeakyQueue(limit) => at(limit.rate()),
        Quota::TokenBucket(limit) => {
            limit.bandwidths().iter().map(|one| at(one.rate())).max().unwrap_or_default()
        }
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tidegate_core::rate::CalendarUnit;
    use tidegate_core::{Ask, Replace};

    use super::super::{Op, Step, settle};
    use super::*;
    use tidegate_core::decision::Ruling;

    const START: Tick = Tick::from_secs(1_000_000);

    /// What happens to one key, one after the other.
    #[derive(Clone, Debug)]
    enum Event {
        Wait(u64),
        Charge(u64),
        /// Of the charges made so far, one that is still there.
        GiveBack(usize),
    }

    #[derive(Clone, Copy)]
    struct Made {
        at: usize,
        cost: Cost,
        full_at: Tick,
        returned: Duration,
    }

    /// Runs a history; charges in `never` are left out. Returns the state at its end, which charges were allowed and which were
    /// given back.
    fn run(
        quota: &Arc<Quota>,
        events: &[Event],
        never: &[usize],
        gives: bool,
    ) -> (Cell, Tick, Vec<Made>, Vec<usize>) {
        let mut now = START;
        let mut cells = [Some(Cell { quota: Arc::clone(quota), state: quota.fresh(now) })];
        let (mut made, mut back, mut returned) = (Vec::<Made>::new(), Vec::new(), Duration::ZERO);
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Wait(millis) => now = now.after(Duration::from_millis(*millis)),
                Event::Charge(units) if !never.contains(&at) => {
                    let cost = Cost::new(*units).unwrap();
                    let charges = [Charge::new(b"k", quota, cost)];
                    let (settled, _) = settle(&Step { now, op: Op::Take, charges: &charges }, &mut cells);
                    if settled.allowed {
                        let full_at = now.after(settled.lines[0].decision.standing.reset_after);
                        made.push(Made { at, cost, full_at, returned });
                    }
                }
                Event::Charge(_) => {}
                Event::GiveBack(which) if gives && !made.is_empty() => {
                    let one = made[which % made.len()];
                    if back.contains(&one.at) {
                        continue;
                    }
                    back.push(one.at);
                    let charges = [Charge::new(b"k", quota, one.cost)];
                    let until = Tick::from_nanos(
                        one.full_at.as_nanos()
                            - u64::try_from((returned - one.returned).as_nanos())
                                .unwrap()
                                .min(one.full_at.as_nanos()),
                    );
                    let step = Step { now, op: Op::GiveBack(&[until]), charges: &charges };
                    let (settled, _) = settle(&step, &mut cells);
                    if let Some(receipt) = settled.lines[0].receipt {
                        assert!(receipt.cost <= one.cost);
                        returned += Duration::from_nanos(receipt.mark[3]);
                    }
                }
                Event::GiveBack(_) => {}
            }
        }
        (
            cells[0].take().unwrap_or_else(|| Cell { quota: Arc::clone(quota), state: quota.fresh(now) }),
            now,
            made,
            back,
        )
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            2 => (0..4000u64).prop_map(Event::Wait),
            3 => (1..6u64).prop_map(Event::Charge),
            2 => (0..8usize).prop_map(Event::GiveBack),
        ];
        proptest::collection::vec(event, 1..24)
    }

    fn quotas() -> Vec<Quota> {
        [
            Quota::per_second(1).burst(10).gcra(),
            Quota::per_second(7).burst(5).gcra(),
            Quota::per_second(3).burst(10).token_bucket(),
            Quota::per_second(2).burst(10).leaky_bucket(),
            Quota::per_day(10).calendar_window(CalendarUnit::Day, "UTC"),
            Quota::per(10, Duration::from_secs(5)).sliding_log(),
            Quota::per(10, Duration::from_secs(5)).sliding_window(5),
        ]
        .map(Result::unwrap)
        .into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        /// The law of giving back: no limit is fuller than if the charges that were given back had never been made. Histories in
        /// which a charge that was refused would then have been allowed are no comparison, and are left out.
        #[test]
        fn a_limit_is_never_fuller_than_if_the_charge_had_never_been_made(events in events(), which in 0..7usize) {
            let quota = Arc::new(quotas().swap_remove(which));
            let (with, now, made, back) = run(&quota, &events, &[], true);
            let refused: Vec<_> = events
                .iter()
                .enumerate()
                .filter(|(at, event)| matches!(event, Event::Charge(_)) && !made.iter().any(|one| one.at == *at))
                .map(|(at, _)| at)
                .collect();
            let never: Vec<usize> = back.iter().chain(&refused).copied().collect();
            let (without, _, made_without, _) = run(&quota, &events, &never, false);
            prop_assert_eq!(made_without.len() + back.len(), made.len());
            for later in [0, 1, 500, 1500, 4000] {
                let at = now.after(Duration::from_millis(later));
                let left = |cell: &Cell| quota.standing(&cell.state, at).remaining;
                prop_assert!(left(&with) <= left(&without), "{} > {} after {later} ms, {:?}", left(&with), left(&without), quota);
            }
        }
    }

    #[test]
    fn a_charge_that_time_has_returned_holds_nothing() {
        let quota = Arc::new(Quota::per_second(1).burst(10).gcra().unwrap());
        let mut cells = [None];
        let ten = Cost::new(10).unwrap();
        let charges = [Charge::new(b"k", &quota, ten)];
        let take = |now, cells: &mut _| settle(&Step { now, op: Op::Take, charges: &charges }, cells).0;
        let later = START.after(Duration::from_secs(10));
        assert!(take(START, &mut cells).allowed && take(later, &mut cells).allowed);
        let mut step = Step { now: later, op: Op::GiveBack(&[later]), charges: &charges };
        assert_eq!(settle(&step, &mut cells).0.lines[0].receipt, None);
        assert!(!take(later, &mut cells).allowed);
        // The second is given back whole.
        let until = [later.after(Duration::from_secs(10))];
        step.op = Op::GiveBack(&until);
        assert_eq!(settle(&step, &mut cells).0.lines[0].receipt.unwrap().cost, ten);
        assert!(take(later, &mut cells).allowed);
    }

    #[test]
    fn a_cell_of_another_limit_is_left_alone() {
        let quota = |burst| Arc::new(Quota::per_second(1).burst(burst).gcra().unwrap());
        let (old, new) = (quota(10), quota(100));
        let spend = |quota: &Arc<Quota>, units| {
            let Ok(cost) = Cost::new(units).ok_or(()) else { panic!() };
            quota.decide(&quota.fresh(START), Ask::allow(START, cost)).map(|state| state)
        };
        let tidegate_core::Transition::Allowed { next, .. } = spend(&new, 60) else { panic!() };
        let cell = Cell { quota: Arc::clone(&new), state: next };
        let mut cells = [Some(cell.clone())];
        let charge = Charge { replace: Replace::AsIs, ..Charge::new(b"k", &old, Cost::new(5).unwrap()) };
        let until = [START.after(Duration::from_secs(10))];
        let step = Step { now: START, op: Op::GiveBack(&until), charges: &[charge] };
        let (settled, changed) = settle(&step, &mut cells);
        assert!(!changed && settled.lines[0].receipt.is_none());
        assert_eq!(cells, [Some(cell)]);
        assert_eq!(settled.lines[0].decision.ruling, Ruling::Allowed { wait: Duration::ZERO });
    }
}
