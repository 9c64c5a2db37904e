use core::time::Duration;

use super::*;
use crate::decision::Cost;
use crate::rate::timeline;

fn ms(ms: u64) -> Tick {
    Tick::from_nanos(ms * 1_000_000)
}

#[test]
fn a_timeline() {
    let limit = SlidingCounter::new(Rate::new(10, Duration::from_secs(1)).unwrap());
    let rows = [
        (600, 8, 0, Ok(0), 2),
        (600, 3, 0, Err(525), 2), // at 1125 the 8 have faded to 7
        (1000, 2, 0, Ok(0), 0),
        (1000, 1, 0, Err(125), 0),
        (500, 1, 0, Err(125), 0), // a step back stands still at 1000
        (1124, 1, 0, Err(1), 0),
        (1125, 1, 0, Ok(0), 0),
        (1125, 10, 1874, Err(1), 0), // not before the 3 of this window are gone, at 3000
        (1125, 1, 125, Ok(125), 0),
        (1300, 1, 0, Err(75), 0), // 4 and 8 · 0.7
        (1500, 2, 0, Ok(0), 0),
        (2000, 5, 0, Err(167), 4), // 6 fade to 5 in a sixth of a second
    ];
    timeline::holds(&limit, &rows);
}

#[test]
fn cancelling_the_opener_brings_the_window_before_back() {
    let limit = SlidingCounter::new(Rate::new(5, Duration::from_secs(1)).unwrap());
    let ask = |cost| Ask::within(ms(500), Cost::new(cost).unwrap(), Duration::from_secs(60));
    let Transition::Allowed { next: three, .. } = limit.decide(&limit.fresh(ms(500)), ask(3)) else {
        panic!()
    };
    let Transition::Allowed { next: ahead, receipt, .. } = limit.decide(&three, ask(4)) else { panic!() };
    assert!(receipt.act > ms(1000));
    assert_eq!(limit.standing(&ahead, ms(501)).remaining, 0);
    assert_eq!(limit.settle(&ahead, ms(500), &receipt, 0), three);
}

#[test]
fn a_charge_of_the_window_before_gives_back_there() {
    let limit = SlidingCounter::new(Rate::new(10, Duration::from_secs(1)).unwrap());
    let charge = |state: &SlidingCounterState, at, units| {
        let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::from_secs(60));
        let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("any wait") };
        (next, receipt)
    };
    let (one, first) = charge(&limit.fresh(ms(0)), 600, 8);
    let (two, second) = charge(&one, 1500, 2);
    let left = |state: &SlidingCounterState, at| limit.standing(state, ms(at)).remaining;
    assert_eq!(left(&two, 1500), 4, "8 · 0.5 and 2");
    assert_eq!(left(&limit.settle(&two, ms(1500), &first, 0), 1500), 8);
    assert_eq!(left(&limit.settle(&two, ms(1500), &first, 4), 1500), 6);
    assert_eq!(left(&limit.settle(&two, ms(2000), &first, 0), 2000), 8, "of two windows ago nothing");
    // Seven more units than charged: above the limit in this window, and they fade through the next.
    let debt = limit.settle(&two, ms(1500), &second, 9);
    assert_eq!((left(&debt, 1500), limit.standing(&debt, ms(1500)).debt), (0, 3));
    assert_eq!(left(&debt, 2500), 5);
    assert_eq!(charge(&debt, 1500, 10).1.act, ms(3000));
}

#[test]
fn two_hundred_promises_are_undone_one_by_one() {
    let limit = SlidingCounter::new(Rate::new(1000, Duration::from_secs(1)).unwrap());
    let mut state = limit.fresh(ms(0));
    let mut receipts = Vec::new();
    for units in [1000; 2].into_iter().chain([1; 200]) {
        let ask = Ask::within(ms(0), Cost::new(units).unwrap(), Duration::MAX);
        let Transition::Allowed { next, receipt, .. } = limit.decide(&state, ask) else { panic!("any wait") };
        (state, _) = (next, receipts.push(receipt));
    }
    for receipt in receipts.iter().rev() {
        state = limit.settle(&state, ms(0), receipt, 0);
    }
    assert_eq!(limit.standing(&state, ms(0)).remaining, 1000);
}

#[test]
fn a_span_of_one_window_sees_nearly_twice_the_limit_and_never_more() {
    let limit = SlidingCounter::new(Rate::new(100, Duration::from_secs(1)).unwrap());
    let ask = Ask::allow(ms(999), Cost::new(100).unwrap());
    let Transition::Allowed { next: mut state, .. } = limit.decide(&limit.fresh(ms(0)), ask) else {
        panic!("it is empty")
    };
    let mut spent = 100;
    for at in 1000..1999 {
        if let Transition::Allowed { next, .. } = limit.decide(&state, Ask::allow(ms(at), Cost::ONE)) {
            (state, spent) = (next, spent + 1);
        }
    }
    assert_eq!(spent, 199);
}
