//! A charge divided into parts settles like its parts charged one after the other.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::rate::{Bandwidth, TokenBucket};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, State, Tick, Transition};

fn quotas(count: u64, burst: u64) -> Vec<Quota> {
    let rate = || Quota::per(count, Duration::from_nanos(7_919)).burst(burst);
    let window = || Quota::per(burst, Duration::from_nanos(5_000));
    vec![
        rate().gcra().unwrap(),
        rate().leaky_bucket().unwrap(),
        rate().token_bucket().unwrap(),
        window().fixed_window().unwrap(),
    ]
}

fn charge(quota: &Quota, state: &mut State, now: Tick, units: u64, max_wait: Duration) -> Option<Receipt> {
    match quota.decide(state, Ask::within(now, Cost::new(units)?, max_wait)) {
        Transition::Allowed { next, receipt, .. } => {
            *state = next;
            Some(receipt)
        }
        Transition::Denied { .. } => None,
    }
}

proptest! {
    /// Two histories: in one the units are charged together and the charge is divided, in the other the parts are
    /// charged one by one. Whatever else is charged and given back, both have the same standing. With a wait, or after
    /// charges settled out of order, the divided one is never fuller.
    #[test]
    fn parts_are_settled_as_charges_of_their_own(
        count in 1..60_u64,
        burst in 4..40_u64,
        parts in prop::collection::vec(1..6_u64, 2..5),
        used in prop::collection::vec(0..8_u64, 5),
        order in any::<u64>(),
        before in prop::collection::vec((1..5_u64, 0..700_u64, any::<bool>()), 0..4),
        between in prop::collection::vec((1..4_u64, 0..900_u64), 0..4),
        wait in prop_oneof![3 => Just(0), 1 => 0..20_000_u64],
    ) {
        for quota in quotas(count, burst) {
            let mut now = Tick::from_secs(3);
            let mut state = quota.fresh(now);
            for (units, later, undo) in &before {
                let made = charge(&quota, &mut state, now, *units, Duration::ZERO);
                now = now.after(Duration::from_nanos(*later));
                if let (Some(receipt), true) = (made, undo) {
                    state = quota.settle(&state, now, &receipt, 0);
                }
            }
            let (wait, whole) = (Duration::from_nanos(wait), parts.iter().sum());
            let (mut together, mut apart) = (state.clone(), state.clone());
            let Some(mut rest) = charge(&quota, &mut together, now, whole, wait) else { continue };
            let mut of_whole = Vec::new();
            for part in &parts[..parts.len() - 1] {
                let (first, left) = quota.split(&rest, Cost::new(*part).unwrap()).unwrap();
                of_whole.push(first);
                rest = left;
            }
            of_whole.push(rest);
            let own: Option<Vec<_>> = parts.iter().map(|part| charge(&quota, &mut apart, now, *part, wait)).collect();
            let own = own.expect("what fits together fits in parts");
            for (units, later) in &between {
                now = now.after(Duration::from_nanos(*later));
                let one = charge(&quota, &mut together, now, *units, Duration::ZERO);
                prop_assert_eq!(one.is_some(), charge(&quota, &mut apart, now, *units, Duration::ZERO).is_some());
            }
            let mut left: Vec<usize> = (0..parts.len()).collect();
            let mut chance = order;
            while !left.is_empty() {
                let at = left.swap_remove((chance % left.len() as u64) as usize);
                chance /= 7;
                together = quota.settle(&together, now, &of_whole[at], used[at]);
                apart = quota.settle(&apart, now, &own[at], used[at]);
                now = now.after(Duration::from_nanos(137));
                let (ours, theirs) = (quota.standing(&together, now), quota.standing(&apart, now));
                let exact = wait.is_zero() && before.iter().all(|(.., undo)| !undo);
                if exact {
                    prop_assert_eq!(ours, theirs, "{:?}", quota);
                } else {
                    prop_assert!(ours.remaining <= theirs.remaining, "{:?}: {:?} {:?}", quota, ours, theirs);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_divided_says_so() {
    let now = Tick::from_secs(1);
    let log = Quota::per_second(9).sliding_log().unwrap();
    let mut state = log.fresh(now);
    let receipt = charge(&log, &mut state, now, 4, Duration::ZERO).unwrap();
    assert_eq!(log.split(&receipt, Cost::ONE), None);
    let gcra = Quota::per_second(9).gcra().unwrap();
    let mut state = gcra.fresh(now);
    let receipt = charge(&gcra, &mut state, now, 4, Duration::ZERO).unwrap();
    for whole in [4, 5] {
        assert_eq!(gcra.split(&receipt, Cost::new(whole).unwrap()), None);
    }
}

#[test]
fn a_limit_with_less_burst_is_the_same_otherwise() {
    for quota in &quotas(10, 20)[..3] {
        let less = quota.with_less_burst(15).unwrap();
        assert_eq!(less.flow(), quota.flow().map(|(rate, _)| (rate, 15)));
        assert_eq!(std::mem::discriminant(&less), std::mem::discriminant(quota));
        assert_eq!((quota.with_less_burst(0), quota.with_less_burst(21)), (None, None));
    }
    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let empty: Quota = TokenBucket::new(Bandwidth::new(rate, 9).unwrap().initial(2).unwrap()).into();
    let less = empty.with_less_burst(5).unwrap();
    let now = Tick::from_secs(1);
    assert_eq!(less.standing(&less.fresh(now), now).remaining, 2, "it starts with what it started with");
    let both =
        TokenBucket::several([Bandwidth::new(rate, 9).unwrap(), Bandwidth::new(rate, 8).unwrap()]).unwrap();
    assert_eq!(Quota::from(both).flow(), None);
}
