//! The laws of settling, checked from outside: by a limit's answers, and by running the same history a second time.
//!
//! *Never fuller.* A history is compared with its counterfactual, in which each charge costs what was used from the
//! start and debts are booked when they were. For kinds in which charging less never leaves less later
//! ([`Kind::is_monotone`]), this holds at each step, and the counterfactual can take every charge at least as early.
//! For the other kinds it cannot hold: without the undone charge, the rolling window that it opened would have opened
//! later, and a unit granted in the window after it might not have been available. There each settlement is checked by
//! itself. The state after it is no fuller than the fullest of three states: the state before it, the counterfactual,
//! and the history in which only this charge costs what was used and the others are settled as they were. If neither
//! history was full since the first charge and no charge waited, both have the same window, and the state is no fuller
//! than the counterfactual alone.

use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Quota, Rate, Receipt, Replace, Retry, State, Tick, Transition};

use crate::settling::answers::{charged, cost, differ, few_probes, fuller, left, probes};
use crate::settling::history::{Charge, Counterfactual, Op, Run};
use crate::settling::subjects::{Kind, Subject};

/// The description of a broken law.
pub(crate) type Broken = String;

/// After any operation: never fuller than the counterfactual, and equal to it if time returned nothing that was used.
pub(crate) fn against_counterfactual(subject: &Subject, run: &Run<'_>) -> Result<(), Broken> {
    if !subject.kind.is_monotone() || !(run.gave_back || run.booked) {
        return Ok(());
    }
    let found = Counterfactual::run(&subject.quota, run, |_, charge| charge.owed());
    let would = match found {
        Ok(Counterfactual { late: Some(charge), .. }) | Err(charge) => {
            return Err(format!("never fuller: charged what was used, {charge}"));
        }
        Ok(would) => would,
    };
    let ticks = probes(subject, run.clock);
    if let Some(place) = fuller(subject, &run.state, &[&would.state], 0, &ticks) {
        return Err(format!("never fuller: {place}"));
    }
    sums(subject, run, &would)
}

/// *The sum charged equals the sum used*: both histories end alike if neither was full and no charge waited.
fn sums(subject: &Subject, run: &Run<'_>, would: &Counterfactual) -> Result<(), Broken> {
    let by_window = subject.kind == Kind::Window && (run.was_in_debt || would.was_in_debt);
    if run.waited || would.waited || by_window {
        return Ok(());
    }
    if subject.kind == Kind::Even && !never_full(subject, run) {
        return Ok(());
    }
    match differ(subject, &run.state, &would.state, run.clock, &probes(subject, run.clock)) {
        Some(place) => Err(format!("sum charged equals sum used: {place}")),
        None => Ok(()),
    }
}

/// Says whether neither history of any part of the limit was full at an operation after the first charge, nor would
/// have been full at a settlement if nothing had been charged after the settled charge.
fn never_full(subject: &Subject, run: &Run<'_>) -> bool {
    subject.parts.iter().all(|part| {
        let full = |owed: fn(&Charge) -> u64| {
            Counterfactual::run(part, run, |_, charge| owed(charge)).is_ok_and(|run| !run.was_full)
        };
        full(Charge::units) && full(Charge::owed) && outlived(part, run)
    })
}

/// At each settlement of less, some of what this charge and those before it used has not come back yet.
fn outlived(part: &Quota, run: &Run<'_>) -> bool {
    run.ops.iter().all(|op| match *op {
        Op::Settle { now, nth, used } if used < run.charges[nth].units() => {
            let mut alone = run.clone();
            alone.ops.retain(|op| matches!(op, Op::Charge { .. }));
            let up_to = |other: usize, charge: &Charge| if other <= nth { charge.owed() } else { 0 };
            Counterfactual::run(part, &alone, up_to)
                .is_ok_and(|would| !part.standing(&would.state, now).reset_after.is_zero())
        }
        _ => true,
    })
}

/// Checks one settlement. `run` is the history including it, `before` the state before it.
pub(crate) fn settlement(
    subject: &Subject,
    before: &State,
    run: &Run<'_>,
    receipt: &Receipt,
    used: u64,
) -> Result<(), Broken> {
    let (units, at) = (receipt.cost.units(), run.clock);
    if used == units {
        return match differ(subject, &run.state, before, at, &probes(subject, at)) {
            Some(place) => Err(format!("settled with what was charged: {place}")),
            None => Ok(()),
        };
    }
    if used > units {
        return debt(subject, before, &run.state, run.last, used - units, run.waited);
    }
    if subject.kind.is_monotone() {
        return Ok(());
    }
    let ticks = probes(subject, at);
    let early = match subject.kind {
        Kind::Pacer => {
            // Undoing the last charge is exact; that is checked when the charge is made.
            let others = run.charges.iter().rev().take_while(|charge| charge.receipt != *receipt);
            let broken = if others.filter(|charge| charge.owed() > 0).count() > 0 {
                fuller(subject, &run.state, &[before], 0, &ticks)
            } else {
                None
            };
            return broken.map_or(Ok(()), |place| Err(format!("never fuller: {place}")));
        }
        Kind::Peer => {
            // The library subtracts what was reserved since from what it gives back, and measures that by the act of
            // the last charge. After a charge was undone, the last charge may act sooner than an earlier one: what was
            // reserved since is then negative, and the library gives back more than was charged. The profile does the
            // same, so only the first settlement is checked.
            if run.charges.iter().filter(|charge| charge.owed() < charge.units()).count() > 1 {
                return Ok(());
            }
            let broken = fuller_by(subject, &run.state, before, at, units - used);
            return broken.map_or(Ok(()), |place| Err(format!("never fuller: {place}")));
        }
        Kind::Phase { early } => early,
        _ => 0,
    };
    let nth = (0..run.charges.len()).find(|nth| is_last(run, *nth));
    let all = Counterfactual::run(&subject.quota, run, |_, charge| charge.owed());
    // Here only this charge is made for what it used; the others are charged and settled as they were.
    let this = Counterfactual::run(&subject.quota, run, |other, charge| {
        if Some(other) == nth { charge.owed() } else { charge.units() }
    });
    let same_window =
        matches!(subject.kind, Kind::Phase { .. }) && !run.was_full && !run.waited && !run.booked;
    let broken = match &all {
        Ok(all) if same_window && !all.was_full => fuller(subject, &run.state, &[&all.state], early, &ticks),
        _ => {
            let would = [&all, &this].into_iter().flatten().map(|would| &would.state);
            let bounds: Vec<&State> = would.chain([before]).collect();
            fuller(subject, &run.state, &bounds, early, &ticks)
        }
    };
    broken.map_or(Ok(()), |place| Err(format!("never fuller: {place}")))
}

/// Says whether the last operation settled this charge.
fn is_last(run: &Run<'_>, nth: usize) -> bool {
    matches!(run.ops.last(), Some(Op::Settle { nth: last, .. }) if *last == nth)
}

/// For a profile: returns where more is left than there was before plus what was given back.
fn fuller_by(subject: &Subject, state: &State, before: &State, at: Tick, back: u64) -> Option<String> {
    let (has, had) = (left(&subject.quota, state, at), left(&subject.quota, before, at));
    // A pacer shows one more place as soon as it has no debt.
    (has > had.max(0) + i128::from(back) + 1)
        .then(|| format!("{has} left where {had} were and {back} came back"))
}

/// *Debts*: what was used beyond the charge is subtracted, whatever is left.
pub(crate) fn debt(
    subject: &Subject,
    before: &State,
    after: &State,
    at: Tick,
    more: u64,
    waited: bool,
) -> Result<(), Broken> {
    let quota = &subject.quota;
    let (had, has) = (left(quota, before, at), left(quota, after, at));
    let expected = had - i128::from(more.min(Rate::MAX_COUNT));
    let exact = match subject.kind {
        Kind::Even => true,
        Kind::Window | Kind::Phase { .. } => !waited,
        Kind::Slope | Kind::Pacer | Kind::Peer => false,
    };
    let standing = quota.standing(after, at);
    if (exact && has != expected) || has > had {
        return Err(format!("debts: {had} left and {more} more used leave {has}"));
    }
    if standing.remaining > 0 && standing.debt > 0 {
        return Err(format!("debts: {standing:?} has something left and owes"));
    }
    if subject.kind.is_profile() {
        return Ok(());
    }
    if let Some(place) = fuller(subject, after, &[before], 0, &few_probes(subject, at)) {
        return Err(format!("debts: {place}"));
    }
    Ok(())
}

/// *Undone is exact*: a charge that is undone at any later tick, with no operation in between, leaves no trace.
pub(crate) fn undone(
    subject: &Subject,
    before: &State,
    after: &State,
    receipt: &Receipt,
) -> Result<(), Broken> {
    let quota = &subject.quota;
    let (at, act) = (receipt.at, receipt.act);
    let half = Duration::from_nanos(subject.step / 2);
    let mut ticks = vec![at, at.after(Duration::from_nanos(1)), at.after(half)];
    ticks.extend([Tick::from_nanos(act.as_nanos() - 1), act, act.after(Duration::from_nanos(1))]);
    ticks.extend((1..=6).map(|steps| at.after(half * 2 * steps)));
    for now in ticks.into_iter().filter(|now| *now >= at) {
        let undone = quota.settle(after, now, receipt, 0);
        if subject.kind == Kind::Peer {
            if let Some(place) = fuller_by(subject, &undone, after, now, receipt.cost.units()) {
                return Err(format!("undone at {now:?}: {place}"));
            }
            continue;
        }
        if let Some(place) = differ(subject, &undone, before, now, &few_probes(subject, now)) {
            return Err(format!("undone is exact: undone at {now:?}, {place}"));
        }
    }
    Ok(())
}

/// *Retry*: a refused request is allowed after the wait of the refusal, and not a nanosecond before.
pub(crate) fn retry(subject: &Subject, state: &State, now: Tick) -> Result<(), Broken> {
    if subject.kind.is_profile() {
        return Ok(());
    }
    let quota = &subject.quota;
    let limit = quota.standing(state, now).limit;
    for units in [1, limit] {
        for max_wait in [0, subject.step] {
            let ask =
                |now| quota.decide(state, Ask::within(now, cost(units), Duration::from_nanos(max_wait)));
            match ask(now) {
                Transition::Denied { retry: Retry::After(wait) } => {
                    let then = now.after(wait);
                    if then == Tick::MAX || wait.is_zero() {
                        return Err(format!("retry: {units} at {now:?} told {wait:?}"));
                    }
                    if !matches!(ask(then), Transition::Allowed { .. }) {
                        return Err(format!("retry: {units} at {now:?} told {wait:?}, then {:?}", ask(then)));
                    }
                    if matches!(ask(Tick::from_nanos(then.as_nanos() - 1)), Transition::Allowed { .. }) {
                        return Err(format!("retry: {units} at {now:?} told {wait:?}, sooner was enough"));
                    }
                }
                Transition::Denied { retry } => {
                    return Err(format!("retry: {units} of {limit} at {now:?} is refused: {retry:?}"));
                }
                Transition::Allowed { .. } => {}
            }
        }
    }
    Ok(())
}

/// *Forgetting*: once full, a state is as good as a fresh one, also for receipts issued before. After a change of the
/// limit, such receipts give nothing back.
pub(crate) fn forgetting(subject: &Subject, run: &Run<'_>) -> Result<(), Broken> {
    let quota = &subject.quota;
    if let Some(full) = quota.full_at(&run.state) {
        let then = full.max(run.last);
        let fresh = quota.fresh(then);
        if let Some(place) = differ(subject, &run.state, &fresh, then, &few_probes(subject, then)) {
            return Err(format!("forgetting: full at {full:?}, but {place}"));
        }
        for state in [&fresh, &run.state] {
            nothing_back(subject, run, state, then).map_err(|place| format!("forgetting: {place}"))?;
        }
    }
    for how in [Replace::AsIs, Replace::Proportional, Replace::Reset] {
        let there = subject.other.carry(quota, &run.state, run.last, how);
        let back = quota.carry(&subject.other, &there, run.last, how);
        let same = quota.carry(quota, &run.state, run.last, how);
        if how == Replace::AsIs {
            let (has, had) = (left(quota, &same, run.last), left(quota, &run.state, run.last));
            let place = fuller(subject, &same, &[&run.state], 0, &few_probes(subject, run.last));
            if let Some(place) = place.or_else(|| (has > had).then(|| format!("{has} left of {had}"))) {
                return Err(format!("carried to itself: {place}"));
            }
            if subject.kind == Kind::Peer {
                continue;
            }
        }
        for (state, name) in [(&back, "there and back"), (&same, "to itself")] {
            nothing_back(subject, run, state, run.last)
                .map_err(|place| format!("carried {name}, {how:?}: {place}"))?;
        }
        for (_, charge) in run.open() {
            let settled = subject.other.settle(&there, run.last, &charge.receipt, 0);
            let (has, had) =
                (left(&subject.other, &settled, run.last), left(&subject.other, &there, run.last));
            if has > had {
                return Err(format!("carried, {how:?}: {had} left, {has} after an old charge was undone"));
            }
        }
    }
    Ok(())
}

/// No open receipt of `run` gives anything back to `state`, also after new charges; an excess is booked.
fn nothing_back(subject: &Subject, run: &Run<'_>, state: &State, from: Tick) -> Result<(), Broken> {
    let quota = &subject.quota;
    let limit = quota.standing(state, from).limit.clamp(1, 1 << 60);
    let mut states = vec![(0, state.clone())];
    for units in [1, limit] {
        states.extend(charged(quota, state, from, units).map(|(next, _)| (units, next)));
    }
    for (nth, charge) in run.open() {
        for (units, state) in &states {
            for now in [from, from.after(Duration::from_nanos(subject.step))] {
                let settled = quota.settle(state, now, &charge.receipt, 0);
                if let Some(place) = fuller(subject, &settled, &[state], 0, &few_probes(subject, now)) {
                    return Err(format!("charged {units} since {from:?}, #{nth} undone at {now:?}: {place}"));
                }
                let more = quota.settle(state, now, &charge.receipt, charge.units() + 2);
                let (had, has) = (left(quota, state, now), left(quota, &more, now));
                if has > had || (subject.kind == Kind::Even && has != had - 2) {
                    return Err(format!(
                        "charged {units} since {from:?}, #{nth} used 2 more at {now:?}: {had} became {has}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// *Acts never bunch*: the acts of a history without debts keep the kind's bound.
pub(crate) fn acts(subject: &Subject, run: &Run<'_>) -> Result<(), Broken> {
    if run.booked {
        return Ok(());
    }
    let acts: Vec<_> =
        run.charges.iter().map(|charge| (charge.receipt.act.as_nanos(), charge.owed())).collect();
    match subject.envelope.broken(&acts, run.waited) {
        Some(place) => Err(format!("acts never bunch: {place}")),
        None => Ok(()),
    }
}

/// A clock that stepped back stands still at the last change.
pub(crate) fn stands_still(subject: &Subject, run: &Run<'_>, earlier: Tick) -> Result<(), Broken> {
    let (quota, state, last) = (&subject.quota, &run.state, run.last);
    let same = quota.standing(state, earlier) == quota.standing(state, last)
        && run.open().all(|(_, charge)| {
            [0, charge.units() / 2, charge.units() + 2].into_iter().all(|used| {
                let settle = |now| quota.settle(state, now, &charge.receipt, used);
                differ(subject, &settle(earlier), &settle(last), last, &few_probes(subject, last)).is_none()
            })
        })
        && [Duration::ZERO, Duration::MAX].into_iter().all(|max_wait| {
            let ask = |now| quota.decide(state, Ask::within(now, cost(1), max_wait));
            ask(earlier) == ask(last)
        });
    if same { Ok(()) } else { Err(format!("at {earlier:?} it answers otherwise than at {last:?}")) }
}
