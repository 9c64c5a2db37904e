//! A limit that changes its algorithm keeps what was spent, from every kind to every other.

use std::mem::discriminant;
use std::time::Duration;

use tidegate_core::{Algorithm, Ask, Cost, Quota, Receipt, Replace, State, Tick, Transition};

use crate::settling::answers::{cost, differ, few_probes, fuller, left, probes};
use crate::settling::subjects::{Kind, START, Subject, small};

/// Returns every pair of two algorithms.
fn pairs() -> Vec<(Subject, Subject)> {
    let pairs = small().into_iter().flat_map(|old| small().into_iter().map(move |new| (old.clone(), new)));
    pairs.filter(|(old, new)| discriminant(&old.quota) != discriminant(&new.quota)).collect()
}

/// Charges these units at the start, with any wait. Returns the state and the receipts.
fn spent(quota: &Quota, units: &[u64]) -> (State, Vec<Receipt>) {
    let (mut state, mut receipts) = (quota.fresh(START), Vec::new());
    for units in units {
        let ask = Ask::within(START, cost(*units), Duration::MAX);
        if let Transition::Allowed { next, receipt, .. } = quota.decide(&state, ask) {
            state = next;
            receipts.push(receipt);
        }
    }
    (state, receipts)
}

const HISTORIES: [&[u64]; 6] = [&[], &[1], &[1, 1], &[4], &[2, 2, 1], &[4, 2, 1]];

fn is_full(quota: &Quota, state: &State, at: Tick) -> bool {
    let standing = quota.standing(state, at);
    standing.reset_after.is_zero() && standing.remaining == standing.limit
}

#[test]
fn what_was_spent_is_spent_under_the_new_algorithm() {
    for (old, new) in pairs() {
        for history in HISTORIES {
            let (state, _) = spent(&old.quota, history);
            for halves in [0, 1, 2, 5] {
                let now = START.after(Duration::from_nanos(halves * (old.step / 2)));
                for how in [Replace::AsIs, Replace::Proportional, Replace::Reset] {
                    let carried = new.quota.carry(&old.quota, &state, now, how);
                    let place =
                        || format!("{} to {}, {history:?}, {halves} halves, {how:?}", old.name, new.name);
                    keeps(&old.quota, &state, &new, &carried, now, how)
                        .unwrap_or_else(|fault| panic!("{}: {fault}", place()));
                }
            }
        }
    }
}

fn keeps(
    old: &Quota,
    state: &State,
    new: &Subject,
    carried: &State,
    now: Tick,
    how: Replace,
) -> Result<(), String> {
    let (before, after) = (old.standing(state, now), new.quota.standing(carried, now));
    let fresh = new.quota.standing(&new.quota.fresh(now), now);
    if how == Replace::Reset || is_full(old, state, now) {
        let place = differ(new, carried, &new.quota.fresh(now), now, &probes(new, now));
        return place.map_or(Ok(()), |place| Err(format!("as good as fresh, but {place}")));
    }
    let (limit, spent) = (u128::from(before.limit), u128::from(before.limit - before.remaining));
    let (now_limit, remaining) = (u128::from(after.limit), u128::from(after.remaining));
    let stays = match how {
        Replace::AsIs => spent.min(now_limit),
        _ => (spent * now_limit).div_ceil(limit),
    };
    if remaining > now_limit - stays {
        return Err(format!("{before:?} became {after:?}"));
    }
    let linear = matches!(new.kind, Kind::Even | Kind::Window | Kind::Phase { .. });
    if linear && fresh.remaining == fresh.limit {
        let expected = i128::from(after.limit) - stays.cast_signed() - i128::from(before.debt);
        let found = left(&new.quota, carried, now);
        if found != expected {
            return Err(format!("{before:?} became {after:?}, where {expected} should be left"));
        }
    }
    Ok(())
}

/// Leaves out `x-time`: like the real library it gives back any reservation that it is shown, so callers must keep
/// receipts with their limit.
#[test]
fn receipts_of_another_algorithm_give_nothing_back() {
    for (old, new) in pairs().into_iter().filter(|(_, new)| new.kind != Kind::Peer) {
        for history in HISTORIES {
            let (state, receipts) = spent(&old.quota, history);
            let carried = new.quota.carry(&old.quota, &state, START, Replace::AsIs);
            for (receipt, steps) in receipts.iter().flat_map(|receipt| [(receipt, 0), (receipt, 1)]) {
                let now = START.after(Duration::from_nanos(steps * new.step));
                let settled = new.quota.settle(&carried, now, receipt, 0);
                let place = fuller(&new, &settled, &[&carried], 0, &few_probes(&new, now));
                assert_eq!(place, None, "{} to {}, {history:?}", old.name, new.name);
            }
        }
    }
}

#[test]
fn there_and_back_nothing_is_won() {
    for (old, new) in pairs().into_iter().filter(|(old, _)| !old.kind.is_profile()) {
        for history in HISTORIES {
            let (state, _) = spent(&old.quota, history);
            let there = new.quota.carry(&old.quota, &state, START, Replace::Proportional);
            let back = old.quota.carry(&new.quota, &there, START, Replace::Proportional);
            let (has, had) = (left(&old.quota, &back, START), left(&old.quota, &state, START));
            // A library's pacer shows no debt, so a debt beyond its limit is lost.
            assert!(has <= had.max(0), "{} to {} and back: {had} became {has}", old.name, new.name);
        }
    }
}

/// A policy of 5 an hour, fully spent, is edited from `gcra` to `token-bucket`. Regression: five more passed at once
/// without a warning.
#[test]
fn an_edited_algorithm_grants_no_second_burst() {
    let gcra = Quota::per_hour(5).gcra().unwrap();
    let bucket = Quota::per_hour(5).token_bucket().unwrap();
    let (state, receipts) = spent(&gcra, &[1; 5]);
    assert_eq!(receipts.len(), 5);
    let carried = bucket.carry(&gcra, &state, START, Replace::AsIs);
    let answer = bucket.decide(&carried, Ask::allow(START, Cost::ONE));
    let twelve_minutes = tidegate_core::Retry::After(Duration::from_secs(720));
    assert_eq!(answer, Transition::Denied { retry: twelve_minutes });
}

/// When the clock steps back before the last change, changing the algorithm does not give the time in between a second
/// time.
#[test]
fn a_change_counts_from_the_last_change() {
    let gcra = Quota::per_second(1).burst(4).gcra().unwrap();
    let bucket = Quota::per_second(1).burst(4).token_bucket().unwrap();
    let later = START.after(Duration::from_secs(100));
    let Transition::Allowed { next, .. } = gcra.decide(&gcra.fresh(later), Ask::allow(later, cost(4))) else {
        panic!()
    };
    let carried = bucket.carry(&gcra, &next, START, Replace::AsIs);
    assert_eq!(bucket.standing(&carried, later).remaining, 0);
}
