use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Tick {
    Tick::EPOCH.after(Duration::from_millis(millis))
}

/// Takes turns, each a time in milliseconds and a wait in milliseconds; returns the result of each.
fn turns(codel: &Codel, state: &mut CodelState, turns: &[(u64, u64)]) -> Vec<Turn> {
    turns.iter().map(|&(now, waited)| codel.take(state, at(now), Duration::from_millis(waited))).collect()
}

use Turn::{Drop, Serve};

/// An interval of 100 ms, overload above a least wait of 5 ms, and drops above 10 ms.
#[test]
fn the_published_numbers() {
    let codel = Codel::default();
    let mut state = codel.start(at(0));
    // The very first turn, and then an interval in which something waited no longer than the target.
    assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50), (50, 5), (102, 50)]), [Serve; 4]);
    assert_eq!(turns(&codel, &mut state, &[(103, 50), (104, 6), (202, 50)]), [Serve, Serve, Serve]);
    assert!(!codel.overloaded(&state), "the interval to 102 ms had a wait of 5 ms");
    // The interval that ended at 202 ms had no wait below 6 ms.
    assert_eq!(
        turns(&codel, &mut state, &[(203, 50)]),
        [Serve],
        "the first turn of an interval is never dropped"
    );
    assert!(codel.overloaded(&state));
    let next = turns(&codel, &mut state, &[(204, 50), (205, 10), (206, 11), (303, 7)]);
    assert_eq!(next, [Drop, Serve, Drop, Serve]);
    // Still overloaded by its least wait of 7 ms; the next interval, with 5 ms, ends it.
    let next = turns(&codel, &mut state, &[(304, 50), (305, 50), (306, 5), (404, 50), (405, 50), (406, 50)]);
    assert_eq!(next, [Serve, Drop, Serve, Drop, Serve, Serve]);
}

#[test]
fn a_line_that_stands_is_served_from_its_newest_end_until_it_empties() {
    let codel = Codel::default();
    let mut state = codel.start(at(0));
    for (emptied, now, end, longest) in [
        (0, 100, End::Oldest, 100),
        (0, 101, End::Newest, 5),
        (150, 250, End::Oldest, 100),
        (150, 251, End::Newest, 5),
    ] {
        codel.emptied(&mut state, at(emptied));
        assert_eq!(codel.end(&state, at(now)), end, "at {now} ms");
        assert_eq!(codel.longest_wait(&state, at(now)), Duration::from_millis(longest), "at {now} ms");
    }
}

/// The newest wait for a millisecond each, so nothing is overloaded; the oldest are passed over for ever.
#[test]
fn those_who_are_passed_over_are_given_up_after_an_interval() {
    let codel = Codel::default();
    let mut state = codel.start(at(0));
    assert_eq!(turns(&codel, &mut state, &[(1, 1), (102, 1), (150, 1)]), [Serve; 3]);
    let given_up = |now, waited| codel.given_up(&state, at(now), Duration::from_millis(waited));
    assert!(!codel.overloaded(&state) && given_up(150, 101));
    assert!(
        !given_up(150, 100) && !given_up(100, 101),
        "within an interval, and in a line that was empty lately"
    );

    let mut state = codel.start(at(0));
    assert_eq!(turns(&codel, &mut state, &[(1, 20), (50, 20), (102, 20)]), [Serve; 3]);
    codel.emptied(&mut state, at(102));
    assert!(!codel.given_up(&state, at(103), Duration::from_millis(20)));
}

/// Overloaded before a night without work: the first turn in the morning, after a slow start, is not judged by
/// yesterday's overload.
#[test]
fn an_empty_line_ends_the_overload() {
    let codel = Codel::default();
    let mut state = codel.start(at(0));
    assert_eq!(
        turns(&codel, &mut state, &[(1, 50), (2, 50), (103, 50), (104, 50)]),
        [Serve, Serve, Serve, Drop]
    );
    codel.emptied(&mut state, at(105));
    assert_eq!(turns(&codel, &mut state, &[(120, 50)]), [Serve]);

    // Regression: the waits of the evening, which had not made an interval yet, were the least wait of the night.
    let mut state = codel.start(at(0));
    assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50)]), [Serve; 2]);
    let morning = 36_000_000;
    codel.emptied(&mut state, at(3));
    codel.emptied(&mut state, at(morning));
    assert_eq!(turns(&codel, &mut state, &[(morning + 15, 15), (morning + 16, 11)]), [Serve; 2]);
    assert!(!codel.overloaded(&state));
}

#[test]
fn a_clock_that_steps_far_back_does_not_stop_the_intervals() {
    let codel = Codel::default();
    let mut state = codel.start(at(100_000));
    assert_eq!(turns(&codel, &mut state, &[(100_001, 50), (100_002, 50), (0, 50)]), [Serve; 3]);
    assert_eq!(turns(&codel, &mut state, &[(1, 50), (2, 50)]), [Serve, Drop]);
    assert_eq!((codel.end(&state, at(100)), codel.end(&state, at(101))), (End::Oldest, End::Newest));
}

#[test]
fn knobs_out_of_range_are_refused() {
    let text = Codel::default().target(Duration::ZERO).unwrap_err().to_string();
    assert_eq!(text, "target 0ns is not a time to wait; use 1 ns to 1 h");
    assert!(Codel::default().interval(Duration::MAX).is_err());
}

proptest! {
    #[test]
    fn nobody_is_dropped_who_waited_little_and_the_first_of_an_interval_never(
        steps in prop::collection::vec((0u64..200_000_000, any::<Duration>(), any::<bool>(), any::<bool>()), 1..200),
    ) {
        let codel = Codel::default();
        let (mut now, mut state) = (Tick::EPOCH, codel.start(Tick::EPOCH));
        let mut served = None;
        for (nanos, waited, short, empty) in steps {
            now = now.after(Duration::from_nanos(nanos));
            let waited = if short { Duration::from_nanos(waited.as_nanos() as u64 % 20_000_000) } else { waited };
            if empty {
                codel.emptied(&mut state, now);
            }
            let turn = codel.take(&mut state, now, waited);
            if turn == Drop {
                prop_assert!(waited > Duration::from_millis(10));
                prop_assert!(served.is_some_and(|served| now.since(served) <= Duration::from_millis(100)));
            } else {
                served = Some(now);
            }
        }
    }
}

/// What the documentation says of its size.
#[test]
fn the_state_is_as_small_as_documented() {
    assert_eq!(size_of::<CodelState>(), 48);
}
