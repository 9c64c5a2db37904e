//! A state's answers at later ticks, and the comparison of two states by their answers alone.

use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Retry, State, Tick, Transition};

use crate::settling::subjects::{Kind, Subject};

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// The ticks at which two states are compared: each step and the middle of each step up to the horizon, and a
/// nanosecond around some of them.
pub(crate) fn probes(subject: &Subject, from: Tick) -> Vec<Tick> {
    let mut ticks = Vec::new();
    for half in 0..=2 * subject.horizon {
        let tick = from.as_nanos().saturating_add(half * (subject.step / 2));
        // Far away only every second step.
        if half <= 8 || half % 4 == 0 {
            ticks.push(tick);
        }
        if half == 2 || half == 4 {
            ticks.extend([tick - 1, tick + 1]);
        }
    }
    ticks.push(from.as_nanos().saturating_add(subject.step.saturating_mul(200)));
    ticks.into_iter().map(Tick::from_nanos).collect()
}

/// A few of these ticks, for checks that run very often.
pub(crate) fn few_probes(subject: &Subject, from: Tick) -> Vec<Tick> {
    let after = |halves: u64| from.after(Duration::from_nanos(halves * (subject.step / 2)));
    vec![after(0), after(1), after(2), after(4), after(7), after(2 * subject.horizon)]
}

/// Returns what is left; negative for a debt.
pub(crate) fn left(quota: &Quota, state: &State, at: Tick) -> i128 {
    let standing = quota.standing(state, at);
    i128::from(standing.remaining) - i128::from(standing.debt)
}

/// Returns the wait of a request that accepts any wait; `None` if it is refused even so.
pub(crate) fn wait(quota: &Quota, state: &State, at: Tick, units: u64) -> Option<Duration> {
    match quota.decide(state, Ask::within(at, cost(units), Duration::MAX)) {
        Transition::Allowed { wait, .. } => Some(wait),
        Transition::Denied { .. } => None,
    }
}

/// Charges with any wait.
pub(crate) fn charged(quota: &Quota, state: &State, at: Tick, units: u64) -> Option<(State, Receipt)> {
    match quota.decide(state, Ask::within(at, cost(units), Duration::MAX)) {
        Transition::Allowed { next, receipt, .. } => Some((next, receipt)),
        Transition::Denied { .. } => None,
    }
}

/// One unit, and the largest cost that a limit ever grants at once.
fn costs(quota: &Quota, state: &State, at: Tick) -> [u64; 2] {
    [1, quota.standing(state, at).limit.clamp(1, 1 << 60)]
}

/// Returns where the answers of two states differ from a tick on, including after one more charge.
pub(crate) fn differ(subject: &Subject, a: &State, b: &State, from: Tick, ticks: &[Tick]) -> Option<String> {
    if a == b {
        return None;
    }
    let quota = &subject.quota;
    for at in ticks {
        let (one, two) = (quota.standing(a, *at), quota.standing(b, *at));
        if one != two {
            return Some(format!("at {at:?}: {one:?} instead of {two:?}"));
        }
        for units in costs(quota, a, *at) {
            for max_wait in [Duration::ZERO, Duration::MAX] {
                let ask = |state| brief(&quota.decide(state, Ask::within(*at, cost(units), max_wait)));
                let (one, two) = (ask(a), ask(b));
                if one != two {
                    return Some(format!("{units} at {at:?}: {one:?} instead of {two:?}"));
                }
            }
        }
    }
    // A difference in phase that no answer shows yet shows after the next charge.
    for at in [ticks[0], ticks[1.min(ticks.len() - 1)]] {
        let charge = |state| charged(quota, state, at, 1).map(|(next, _)| next);
        let (Some(one), Some(two)) = (charge(a), charge(b)) else { continue };
        for later in few_probes(subject, from.max(at)) {
            let (one, two) = (quota.standing(&one, later), quota.standing(&two, later));
            if one != two {
                return Some(format!("charged 1 at {at:?}, at {later:?}: {one:?} instead of {two:?}"));
            }
        }
    }
    None
}

fn brief(transition: &Transition<State>) -> Result<(Duration, Tick), Retry> {
    match transition {
        Transition::Allowed { wait, receipt, .. } => Ok((*wait, receipt.act)),
        Transition::Denied { retry } => Err(*retry),
    }
}

/// Returns where a state is fuller than all of the others: it has more left, or allows sooner. Up to `early` more units
/// are accepted.
pub(crate) fn fuller(
    subject: &Subject,
    state: &State,
    bounds: &[&State],
    early: u64,
    ticks: &[Tick],
) -> Option<String> {
    if bounds.contains(&state) {
        return None;
    }
    let quota = &subject.quota;
    for at in ticks {
        // Below empty, windows differ in which window holds a debt; the wait for a request shows the difference.
        let left = |state| match subject.kind {
            Kind::Even => left(quota, state, *at),
            _ => i128::from(quota.standing(state, *at).remaining),
        };
        let has = left(state);
        let most = bounds.iter().map(|bound| left(bound)).max()?;
        if has > most.saturating_add(i128::from(early)) {
            return Some(format!("{has} left at {at:?} where {most} should be the most"));
        }
        if early > 0 {
            continue;
        }
        for units in costs(quota, state, *at) {
            let Some(waits) = wait(quota, state, *at, units) else { continue };
            let least = bounds.iter().filter_map(|bound| wait(quota, bound, *at, units)).min();
            if least.is_none_or(|least| waits < least) {
                return Some(format!(
                    "{units} at {at:?} waits {waits:?} where {least:?} should be the least"
                ));
            }
        }
    }
    None
}
