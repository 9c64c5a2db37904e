use super::*;
use crate::decision::Cost;
use crate::time::Rate;

fn per_second(count: u64, capacity: u64) -> Bandwidth {
    Bandwidth::new(Rate::new(count, Duration::from_secs(1)).unwrap(), capacity).unwrap()
}

fn ms(ms: u64) -> Tick {
    Tick::from_nanos(ms * 1_000_000)
}

/// (ms, cost, denied for this many ms, remaining afterwards)
fn timeline(limit: &TokenBucket, rows: &[(u64, u64, Option<u64>, u64)]) {
    let mut state = limit.fresh(ms(0));
    for &(at, cost, denied, remaining) in rows {
        match limit.decide(&state, Ask::allow(ms(at), Cost::new(cost).unwrap())) {
            Transition::Allowed { next, .. } => {
                assert_eq!(denied, None, "at {at}");
                state = next;
            }
            Transition::Denied { retry } => {
                assert_eq!(retry.after(), denied.map(Duration::from_millis), "at {at}");
            }
        }
        assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
    }
}

#[test]
fn a_continuous_timeline() {
    let rows =
        [(0, 3, None, 0), (0, 1, Some(100), 0), (150, 1, None, 0), (199, 1, Some(1), 0), (500, 3, None, 0)];
    timeline(&TokenBucket::new(per_second(10, 3)), &rows);
}

#[test]
fn an_interval_brings_all_at_once_and_starts_with_the_first_use() {
    let rows = [
        (700, 2, None, 1), // the period starts here, not at 0
        (1200, 1, None, 0),
        (1699, 1, Some(1), 0),
        (1700, 1, None, 2),
        (5000, 3, None, 0), // full since 2700: a new period starts
        (5999, 1, Some(1), 0),
        (5300, 1, Some(700), 0),
        (6000, 1, None, 2),
    ];
    timeline(&TokenBucket::new(per_second(3, 3).refill(Refill::Interval)), &rows);
}

#[test]
fn an_aligned_refill_comes_at_the_full_second_however_late_the_first_use() {
    let rows = [
        (700, 3, None, 0), // the period is the clock's
        (999, 1, Some(1), 0),
        (1000, 1, None, 1),
        (1700, 1, None, 0),
        (1900, 3, Some(1100), 0),
        (2000, 2, None, 0),
        (9000, 3, None, 0), // full since 4000
        (9999, 1, Some(1), 0),
        (9300, 1, Some(700), 0),
        (10_000, 1, None, 1),
    ];
    timeline(&TokenBucket::new(per_second(2, 3).refill(Refill::Aligned)), &rows);
}

#[test]
fn an_aligned_start_below_full_is_in_the_clocks_period() {
    let limit = TokenBucket::new(per_second(2, 3).refill(Refill::Aligned).initial(0).unwrap());
    let mut state = limit.fresh(ms(400));
    assert_eq!(limit.standing(&state, ms(999)).remaining, 0);
    assert_eq!(limit.standing(&state, ms(1000)).remaining, 2);
    assert_eq!(limit.full_at(&state), None);
    state = limit.settle(
        &state,
        ms(400),
        &Receipt { at: ms(400), act: ms(400), cost: Cost::ONE, mark: [0; 4] },
        3,
    );
    assert_eq!(limit.standing(&state, ms(1999)).debt, 0);
    assert_eq!(limit.standing(&state, ms(2000)).remaining, 2, "two were owed, and come back first");
}

#[test]
fn several_bandwidths_grant_together_or_not_at_all() {
    let limit = TokenBucket::several([per_second(10, 2), per_second(1, 3)]).unwrap();
    let rows =
        [(0, 2, None, 0), (100, 1, None, 0), (200, 1, Some(800), 0), (1000, 1, None, 0), (9000, 2, None, 0)];
    timeline(&limit, &rows);
}

#[test]
fn an_empty_start_fills_at_the_rate() {
    let limit = TokenBucket::new(per_second(10, 3).initial(0).unwrap());
    timeline(&limit, &[(0, 1, Some(100), 0), (99, 1, Some(1), 0), (100, 1, None, 0), (900, 3, None, 0)]);
    assert_eq!(limit.full_at(&limit.fresh(ms(0))), None);
}

#[test]
fn undoing_gives_back_what_nobody_waits_behind_in_every_bandwidth() {
    let slow = Bandwidth::new(Rate::new(1, Duration::from_secs(1)).unwrap(), 1).unwrap();
    let limit = TokenBucket::several([per_second(10, 5), slow]).unwrap();
    let reserve = |state: &TokenBucketState| {
        let ask = Ask::within(ms(0), Cost::ONE, Duration::from_secs(60));
        let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
            panic!("within a minute")
        };
        (next, receipt)
    };
    let (a, _) = reserve(&limit.fresh(ms(0)));
    let (b, second) = reserve(&a);
    let (c, third) = reserve(&b);
    assert_eq!(limit.standing(&limit.settle(&c, ms(0), &third, 0), ms(0)), limit.standing(&b, ms(0)));
    let behind = limit.settle(&c, ms(0), &second, 0);
    assert_eq!(reserve(&behind).1.act, ms(3000), "the third counts on the second's place");
    let gone = limit.settle(&behind, ms(0), &third, 0);
    assert_eq!(limit.standing(&gone, ms(0)), limit.standing(&a, ms(0)));
}

#[test]
fn a_changed_limit_keeps_what_was_spent() {
    let (old, new) = (TokenBucket::new(per_second(10, 100)), TokenBucket::new(per_second(5, 50)));
    let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
    let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
    let left = |how| new.standing(&new.carry(&old, &spent, ms(0), how), ms(0)).remaining;
    assert_eq!([Replace::AsIs, Replace::Proportional, Replace::Reset].map(left), [10, 30, 50]);
}
