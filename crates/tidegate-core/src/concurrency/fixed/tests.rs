use super::*;
use crate::decision::Cost;

fn secs(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

fn entered(guard: &Concurrency, state: &ConcurrencyState, at: u64, cost: u64) -> (ConcurrencyState, Receipt) {
    match guard.enter(state, Ask::allow(secs(at), Cost::new(cost).unwrap())) {
        Transition::Allowed { next, receipt, wait: Duration::ZERO } => (next, receipt),
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn a_busy_bulkhead_does_not_know_when_and_a_small_one_says_never() {
    let guard = Concurrency::new(2).unwrap();
    let (busy, _) = entered(&guard, &guard.fresh(secs(0)), 0, 2);
    let ask = |cost| Ask::within(secs(1), Cost::new(cost).unwrap(), Duration::MAX);
    assert_eq!(guard.enter(&busy, ask(1)), Transition::Denied { retry: Retry::Unknown });
    assert_eq!(guard.enter(&busy, ask(3)), Transition::NEVER);
}

#[test]
fn a_place_that_lapsed_is_left_without_a_trace() {
    let guard = Concurrency::new(1).unwrap().ttl(Duration::from_secs(5)).unwrap();
    let (first, lost) = entered(&guard, &guard.fresh(secs(0)), 0, 1);
    let (second, _) = entered(&guard, &first, 5, 1);
    assert_eq!(guard.leave(&second, secs(6), &lost, Outcome::Success), second);
    assert_eq!(guard.standing(&second, secs(6)).reset_after, Duration::from_secs(4));
}

#[test]
fn without_a_time_to_live_the_state_is_one_number() {
    let guard = Concurrency::new(9).unwrap();
    let mut state = guard.fresh(secs(0));
    for at in 0..9 {
        state = entered(&guard, &state, at, 1).0;
    }
    assert_eq!(state.taken[..], [Taken { until: Tick::MAX, places: 9 }]);
    let standing = guard.standing(&state, Tick::MAX);
    assert_eq!((standing.remaining, standing.reset_after), (0, Duration::MAX), "never is never");
    assert_eq!(guard.full_at(&state), None);
}

#[test]
fn places_that_lapse_together_need_no_heap() {
    let forever = Concurrency::new(3).unwrap();
    for guard in [forever, forever.ttl(Duration::from_secs(60)).unwrap()] {
        let (one, first) = entered(&guard, &guard.fresh(secs(0)), 0, 1);
        let (two, _) = entered(&guard, &one, 0, 2);
        let left = guard.leave(&two, secs(0), &first, Outcome::Success);
        assert!([one, two, left].iter().all(|state| !state.taken.spilled()));
    }
}

#[test]
fn many_in_flight_share_few_ticks() {
    for ttl in [1_000, 2_000, 4_999_999, 60_000_000_000, nanos(Rate::MAX_PERIOD)] {
        let guard = Concurrency::new(10_000).unwrap().ttl(Duration::from_nanos(ttl)).unwrap();
        let mut state = guard.fresh(secs(0));
        for nth in 0..10_000u64 {
            let at = Tick::from_nanos((u128::from(ttl) * u128::from(nth) / 10_000) as u64);
            let ask = Ask::allow(at, Cost::ONE);
            let Transition::Allowed { next, .. } = guard.enter(&state, ask) else { panic!("{nth}") };
            state = next;
        }
        assert!(state.taken.len() <= 2_501, "{} of {ttl}", state.taken.len());
    }
}

#[test]
fn a_place_lapses_less_than_a_thousandth_late_and_never_early() {
    let lapses = |ttl, at| {
        let guard = Concurrency::new(1).unwrap().ttl(Duration::from_nanos(ttl)).unwrap();
        guard.lapses(Tick::from_nanos(at)).as_nanos()
    };
    for digits in 0..18 {
        for ttl in [1, 2, 3, 5, 7, 9].map(|first| first * 10u64.pow(digits)) {
            for ttl in [ttl.max(2) - 1, ttl, ttl + 1].map(|ttl| ttl.min(nanos(Rate::MAX_PERIOD))) {
                for at in [0, 1, ttl / 2, 1_600_000_000_123_456_789] {
                    let late = lapses(ttl, at) - (at + ttl);
                    assert!(u128::from(late) * 1000 < u128::from(ttl), "{late} of {ttl} at {at}");
                }
            }
        }
    }
    assert_eq!(lapses(30_000_000_000, 7_000_000_000), 37_000_000_000, "whole seconds stay whole");
    assert_eq!(lapses(30_000_000_000, 7_000_000_001), 37_020_000_000);
    assert_eq!(lapses(30_000_000_000, u64::MAX - 1), u64::MAX);
}

#[test]
fn a_lowered_limit_waits_until_enough_have_left() {
    let (old, new) = (Concurrency::new(3).unwrap(), Concurrency::new(1).unwrap());
    let (state, all) = entered(&old, &old.fresh(secs(0)), 0, 3);
    let carried = new.carry(&old, &state, secs(1), Replace::Proportional);
    let standing = new.standing(&carried, secs(1));
    assert_eq!((standing.remaining, standing.debt), (0, 2));
    let left = new.leave(&carried, secs(1), &all, Outcome::Failure);
    assert_eq!(new.standing(&left, secs(1)).remaining, 1);
}

#[test]
fn who_was_forgotten_takes_nobodys_place_back() {
    let guard = Concurrency::new(1).unwrap();
    let (busy, forgotten) = entered(&guard, &guard.fresh(secs(1)), 1, 1);
    let reset = guard.carry(&guard, &busy, secs(1), Replace::Reset);
    let (next, own) = entered(&guard, &reset, 1, 1);
    assert_eq!(guard.leave(&next, secs(1), &forgotten, Outcome::Success), next);
    assert_eq!(guard.standing(&guard.leave(&next, secs(1), &own, Outcome::Success), secs(1)).remaining, 1);
}

/// A place is held from now on, and never for less than it was; the receipt that held it before finds none.
#[test]
fn places_are_held_longer_and_only_by_their_own_receipt() {
    let (long, short) = (Concurrency::new(3).unwrap(), Concurrency::new(3).unwrap());
    let (long, short) =
        (long.ttl(Duration::from_secs(30)).unwrap(), short.ttl(Duration::from_secs(10)).unwrap());
    let (state, receipt) = entered(&long, &long.fresh(secs(0)), 0, 2);
    let (held, next) = long.extend(&state, secs(29), &receipt).unwrap();
    assert_eq!((next.at, next.act, next.cost), (receipt.at, receipt.act, receipt.cost));
    let in_use = |state: &ConcurrencyState, now| 3 - long.standing(state, secs(now)).remaining;
    assert_eq!([30, 58, 59].map(|now| in_use(&held, now)), [2, 2, 0]);
    assert_eq!(long.extend(&held, secs(29), &receipt), None);
    assert_eq!(long.leave(&held, secs(29), &receipt, Outcome::Success), held);
    assert_eq!(in_use(&long.leave(&held, secs(29), &next, Outcome::Success), 29), 0);
    assert_eq!(long.extend(&held, secs(59), &next), None, "they have lapsed");

    let (sooner, kept) = short.extend(&state, secs(1), &receipt).unwrap();
    assert_eq!(
        (kept, in_use(&sooner, 29), in_use(&sooner, 30)),
        (receipt, 2, 0),
        "a time to live that was shortened"
    );
    // As much as the receipt holds, or nothing: fewer places at its tick are those of others.
    let others = Receipt { cost: Cost::new(3).unwrap(), ..receipt };
    assert_eq!(long.extend(&state, secs(1), &others), None);

    let forever = Concurrency::new(1).unwrap();
    let (state, receipt) = entered(&forever, &forever.fresh(secs(0)), 0, 1);
    assert_eq!(
        forever.extend(&state, secs(5), &receipt).map(|(_, next)| next),
        Some(receipt),
        "it never lapses"
    );
}

#[test]
fn what_is_out_of_range_is_named() {
    let max = |max| Concurrency::new(max).map_err(|error| error.to_string());
    assert_eq!(max(0), Err("max 0 is not a number of places; use 1 to 65536".to_owned()));
    assert!(max(Concurrency::MAX_PLACES).is_ok() && max(Concurrency::MAX_PLACES + 1).is_err());
    let ttl = Concurrency::new(1).unwrap().ttl(Duration::ZERO).map_err(|error| error.to_string());
    assert_eq!(ttl, Err("ttl 0ns is not a time to live; use 1 ns to 146 years".to_owned()));
}
