//! Settling by example. Each case once created capacity, lost capacity, or let two acts happen in the place of one.

use core::time::Duration;

use tidegate_core::rate::{Bandwidth, Refill, TokenBucket};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, State, Tick, Transition};

use crate::random::Random;

/// One limit of each kind with a continuous refill, at one a second.
fn even(burst: u64) -> Vec<Quota> {
    let one = Quota::per_second(1).burst(burst);
    let band = |count, seconds| {
        Bandwidth::new(Rate::new(count, Duration::from_secs(seconds)).unwrap(), burst).unwrap()
    };
    vec![
        one.gcra().unwrap(),
        one.token_bucket().unwrap(),
        TokenBucket::several([band(2, 1), band(60, 60)]).unwrap().into(),
        one.leaky_bucket().unwrap(),
        one.leaky_queue(1 << 20).unwrap(),
    ]
}

/// The same, and one for each refill at once.
fn all(burst: u64) -> Vec<Quota> {
    let rate = Rate::new(burst, Duration::from_secs(burst)).unwrap();
    let at_once = [Refill::Interval, Refill::Aligned]
        .map(|refill| TokenBucket::new(Bandwidth::new(rate, burst).unwrap().refill(refill)).into());
    even(burst).into_iter().chain(at_once).collect()
}

fn ms(ms: u64) -> Tick {
    Tick::from_nanos((1 << 60) + ms * 1_000_000)
}

fn charge(quota: &Quota, state: &mut State, at: u64, units: u64) -> Receipt {
    let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::MAX);
    let Transition::Allowed { next, receipt, .. } = quota.decide(state, ask) else { panic!("any wait") };
    *state = next;
    receipt
}

fn left(quota: &Quota, state: &State, at: u64) -> (u64, u64) {
    let standing = quota.standing(state, ms(at));
    (standing.remaining, standing.debt)
}

/// Ten of ten are charged, time returns them, ten more are charged, and then the first ten are given back. Regression:
/// ten passed at once, and ten more for each charge that was remembered.
#[test]
fn what_time_has_returned_is_not_given_back_again() {
    for quota in all(10) {
        let mut state = quota.fresh(ms(0));
        let first = charge(&quota, &mut state, 0, 10);
        let second = charge(&quota, &mut state, 10_000, 10);
        state = quota.settle(&state, ms(10_000), &first, 0);
        assert_eq!(left(&quota, &state, 10_000), (0, 0), "{quota:?}");
        state = quota.settle(&state, ms(10_000), &second, 0);
        assert_eq!(left(&quota, &state, 10_000), (10, 0), "{quota:?}");
    }
}

/// A request whose second step failed elsewhere gives everything back, as if it had never been asked. Regression: in
/// six algorithms nothing came back a millisecond after the act.
#[test]
fn undone_at_any_time_all_of_it_comes_back() {
    for quota in all(10) {
        let mut before = quota.fresh(ms(0));
        charge(&quota, &mut before, 0, 4);
        for later in [0, 1, 999, 1000, 2500, 4999, 20_000] {
            let mut state = before.clone();
            let receipt = charge(&quota, &mut state, 100, 5);
            state = quota.settle(&state, ms(100 + later), &receipt, 0);
            let standing = |state| quota.standing(state, ms(100 + later));
            assert_eq!(standing(&state), standing(&before), "{later} ms later: {quota:?}");
        }
    }
}

/// A hundred charges at once are undone in every order, at once and over time, whether they were granted or wait:
/// nothing of them is left.
#[test]
fn a_burst_that_is_undone_comes_back_in_any_order() {
    let mut random = Random::new(21);
    for burst in [1, 50, 100] {
        for quota in all(burst) {
            for order in 0..6 {
                for pause in [0, 7, 1000] {
                    let mut state = quota.fresh(ms(0));
                    let mut open: Vec<Receipt> = (0..100).map(|_| charge(&quota, &mut state, 0, 1)).collect();
                    let mut now = 0;
                    while !open.is_empty() {
                        let newest = open.len() - 1;
                        let nth = match order {
                            0 => newest,
                            1 => 0,
                            2 => newest / 2,
                            // Every second one, and then the rest.
                            3 if newest >= 50 => 99 - newest,
                            _ => random.up_to(newest as u64) as usize,
                        };
                        now += pause;
                        state = quota.settle(&state, ms(now), &open.remove(nth), 0);
                    }
                    assert_eq!(left(&quota, &state, now).1, 0, "order {order}, {pause} ms: {quota:?}");
                    let fresh = quota.standing(&quota.fresh(ms(now)), ms(now));
                    assert_eq!(
                        quota.standing(&state, ms(now)),
                        fresh,
                        "order {order}, {pause} ms: {quota:?}"
                    );
                }
            }
        }
    }
}

/// Parallel calls that each use a part of their estimate: in the end exactly what was used is charged.
#[test]
fn the_sum_charged_is_the_sum_used() {
    let mut random = Random::new(22);
    for quota in all(1000) {
        for _ in 0..20 {
            let mut state = quota.fresh(ms(0));
            let mut open: Vec<Receipt> = (0..40).map(|_| charge(&quota, &mut state, 0, 20)).collect();
            let mut sum = 0;
            while !open.is_empty() {
                let receipt = open.remove(random.up_to(open.len() as u64 - 1) as usize);
                let used = random.up_to(24);
                sum += used;
                state = quota.settle(&state, ms(0), &receipt, used);
            }
            assert_eq!(left(&quota, &state, 0), (1000 - sum, 0), "{quota:?}");
        }
    }
}

/// A call to a language model was estimated at 800 tokens and used 1,300: the excess is booked, and later requests wait
/// for it.
#[test]
fn more_than_was_charged_is_owed() {
    for quota in even(1000) {
        let mut state = quota.fresh(ms(0));
        let receipt = charge(&quota, &mut state, 0, 800);
        state = quota.settle(&state, ms(0), &receipt, 1300);
        assert_eq!(left(&quota, &state, 0), (0, 300), "{quota:?}");
        let next = charge(&quota, &mut state.clone(), 0, 1);
        assert_eq!(next.act, ms(301_000), "{quota:?}");
        for _ in 0..3 {
            state = quota.settle(&state, ms(0), &receipt, u64::MAX);
        }
        assert_eq!(left(&quota, &state, 0), (0, Rate::MAX_COUNT), "{quota:?}");
    }
}

/// One a second, a burst of one: a charge is undone while another waits. Regression: the next one was promised the tick
/// of the one that waits.
#[test]
fn nobody_acts_beside_an_open_reservation() {
    for quota in even(1) {
        let mut state = quota.fresh(ms(0));
        let acted = charge(&quota, &mut state, 0, 1);
        let waits = charge(&quota, &mut state, 0, 1);
        state = quota.settle(&state, ms(0), &acted, 0);
        let next = charge(&quota, &mut state, 0, 1);
        assert_eq!([waits.act, next.act], [ms(1000), ms(2000)], "{quota:?}");
    }
}

/// A burst of five, and two charges of five that wait. Regression: after the first of them was given back, another five
/// could act at the tick of the second.
#[test]
fn a_burst_does_not_act_beside_one_that_waits() {
    for quota in even(5) {
        let mut state = quota.fresh(ms(0));
        charge(&quota, &mut state, 0, 5);
        let gone = charge(&quota, &mut state, 0, 5);
        let waits = charge(&quota, &mut state, 0, 5);
        state = quota.settle(&state, ms(0), &gone, 0);
        let next = charge(&quota, &mut state, 0, 5);
        assert_eq!([waits.act, next.act], [ms(10_000), ms(15_000)], "{quota:?}");
    }
}

/// A charge that has not run out is undone after others were made, and refills in between: no charge moves an end of the
/// clock's periods, so all of it comes back, as with an even refill.
#[test]
fn ends_of_periods_in_between_take_nothing_of_what_is_given_back() {
    let aligned = Quota::per(10, Duration::from_secs(10)).burst(30).aligned_bucket().unwrap();
    let one = Quota::per_second(1).burst(30);
    for quota in [one.gcra().unwrap(), one.token_bucket().unwrap(), aligned] {
        let mut state = quota.fresh(ms(0));
        charge(&quota, &mut state, 0, 20);
        let undone = charge(&quota, &mut state, 0, 10);
        charge(&quota, &mut state, 25_000, 5);
        state = quota.settle(&state, ms(25_000), &undone, 0);
        assert_eq!(left(&quota, &state, 25_000), (25, 0), "{quota:?}");
    }
}

/// Undoing the charge that began a period restarts the period at the next charge.
#[test]
fn a_period_does_not_outlive_the_charge_that_began_it() {
    let ten_seconds = Rate::new(10, Duration::from_secs(10)).unwrap();
    let at_once = Bandwidth::new(ten_seconds, 10).unwrap().refill(Refill::Interval);
    let quota: Quota = TokenBucket::new(at_once).into();
    let mut state = quota.fresh(ms(0));
    let first = charge(&quota, &mut state, 0, 6);
    let second = charge(&quota, &mut state, 4000, 3);
    state = quota.settle(&state, ms(5000), &first, 0);
    assert_eq!(left(&quota, &state, 10_000), (7, 0), "without the first, the period began with the second");
    assert_eq!(left(&quota, &state, 15_000), (10, 0));
    let third = charge(&quota, &mut state, 6000, 1);
    state = quota.settle(&state, ms(7000), &second, 0);
    assert_eq!(left(&quota, &state, 16_999), (9, 0), "the second was there when it began, and is gone too");
    assert_eq!(left(&quota, &state, 17_000), (10, 0));
    state = quota.settle(&state, ms(8000), &third, 0);
    assert_eq!(quota.standing(&state, ms(8000)), quota.standing(&quota.fresh(ms(8000)), ms(8000)));
}

/// Two charges, the first one undone. Two seconds later everything is back, and a third is charged and undone. Then
/// nothing is spent, but with two bandwidths the second charge's receipt is still valid. Regression: it was forgotten
/// together with the third, and then gave back what later callers had charged.
#[test]
fn a_receipt_outlives_a_later_charge_that_was_undone() {
    let band = |count, capacity, refill| {
        let rate = Rate::new(count, Duration::from_secs(2)).unwrap();
        Bandwidth::new(rate, capacity).unwrap().refill(refill)
    };
    let fast = band(2, 4, Refill::Continuous);
    for slow in [band(1, 5, Refill::Continuous), band(6, 6, Refill::Interval), band(6, 6, Refill::Aligned)] {
        let quota: Quota = TokenBucket::several([fast, slow]).unwrap().into();
        let mut state = quota.fresh(ms(0));
        let first = charge(&quota, &mut state, 0, 1);
        let second = charge(&quota, &mut state, 0, 2);
        state = quota.settle(&state, ms(0), &first, 0);
        let third = charge(&quota, &mut state, 2000, 1);
        state = quota.settle(&state, ms(2000), &third, 0);
        let full = quota.full_at(&state).unwrap();
        let mut forgotten = quota.fresh(full);
        for state in [&mut state, &mut forgotten] {
            let at = (full.as_nanos() - ms(0).as_nanos()) / 1_000_000;
            charge(&quota, state, at, 4);
            assert_eq!(left(&quota, &quota.settle(state, full, &second, 0), at), (0, 0), "{quota:?}");
        }
    }
}
