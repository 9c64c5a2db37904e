use super::*;
use crate::priority::Priority;

fn at(millis: u64) -> Tick {
    Tick::EPOCH.after(Duration::from_millis(millis))
}

fn arrival(millis: u64, draw: u32) -> Arrival {
    Arrival { at: at(millis), priority: Priority::default(), draw }
}

/// Admits `let_in` arrivals at the start of a period, and ends it with a report of the places; returns the share in
/// millionths.
fn period(throttle: &Pid, state: &mut PidState, number: u64, let_in: u64, room: Room) -> u32 {
    for _ in 0..let_in {
        assert!(throttle.admit(state, &arrival(number * 500, u32::MAX)));
    }
    throttle.sense(state, at(number * 500 + 500), room);
    throttle.refused_share(state, at(number * 500 + 500))
}

/// P = (let in − begun − free)/begun; share = 0.1·P + 1.4·∫P.
#[test]
fn the_published_arithmetic() {
    let throttle = Pid::default();
    let mut state = throttle.start(Tick::EPOCH);
    // Of 120, 100 were begun: P = 0.2, and 0.1·0.2 + 1.4·0.2·0.5 s.
    assert_eq!(period(&throttle, &mut state, 0, 120, Room { free: 0, waiting: 20 }), 160_000);
    // The queue does not change: P = 0, and the integral stays.
    assert_eq!(period(&throttle, &mut state, 1, 100, Room { free: 0, waiting: 20 }), 140_000);
    // The queue is gone and ten places are free: begun 100 of 80, P = −0.3.
    assert_eq!(period(&throttle, &mut state, 2, 80, Room { free: 10, waiting: 0 }), 0);
}

#[test]
fn the_share_and_its_integral_stay_in_bounds_so_that_recovery_is_not_late() {
    let throttle = Pid::default();
    let mut state = throttle.start(Tick::EPOCH);
    for number in 0..100 {
        let room = Room { free: 0, waiting: (number + 1) * 1000 };
        assert!(period(&throttle, &mut state, number, 1000, room) <= 999_000);
    }
    // Two periods of rest after fifty seconds of overload.
    for number in 100..102 {
        period(&throttle, &mut state, number, 10, Room { free: 100, waiting: 0 });
    }
    assert_eq!(throttle.refused_share(&state, at(51_000)), 0);
}

#[test]
fn without_news_of_the_places_the_share_rises_with_what_does_not_end_and_fades_by_itself() {
    let throttle = Pid::default();
    let mut state = throttle.start(Tick::EPOCH);
    for number in 0..120 {
        assert!(throttle.admit(&mut state, &arrival(number, u32::MAX)));
        if number < 100 {
            throttle.learn(&mut state, at(number), Duration::ZERO, Outcome::Success);
        }
    }
    throttle.admit(&mut state, &arrival(500, u32::MAX));
    assert_eq!(throttle.refused_share(&state, at(500)), 160_000);
    for number in 2..400 {
        throttle.learn(&mut state, at(number * 500 - 1), Duration::ZERO, Outcome::Success);
        throttle.admit(&mut state, &arrival(number * 500, u32::MAX));
    }
    assert_eq!(throttle.refused_share(&state, at(200_000)), 0);
}

/// Regression: a twentieth faded with each arrival after a rest, however long the rest was.
#[test]
fn after_an_hour_of_rest_nothing_is_refused() {
    let throttle = Pid::default();
    let mut state = throttle.start(Tick::EPOCH);
    for number in 0..100 {
        period(&throttle, &mut state, number, 1000, Room { free: 0, waiting: (number + 1) * 1000 });
    }
    assert!(throttle.refused_share(&state, at(50_000)) > 900_000);
    throttle.admit(&mut state, &arrival(3_650_000, u32::MAX));
    assert_eq!(throttle.refused_share(&state, at(3_650_000)), 0);
}

/// 200 arrive in a second at places that do 100, so half has to be refused. The excess admitted waits, for two
/// periods at most.
#[test]
fn under_twice_the_load_half_is_refused_and_the_line_stays_short() {
    let throttle = Pid::default();
    let mut state = throttle.start(Tick::EPOCH);
    let (mut waiting, mut draw, mut longest, mut shares) = (0u64, 0u32, 0, Vec::new());
    for number in 0..200 {
        for request in 0..100 {
            draw = draw.wrapping_add(0x9E37_79B9);
            waiting += u64::from(throttle.admit(&mut state, &arrival(number * 500 + request * 5, draw)));
        }
        let begun = waiting.min(50);
        waiting -= begun;
        throttle.sense(&mut state, at(number * 500 + 499), Room { free: 50 - begun, waiting });
        if number >= 100 {
            longest = longest.max(waiting);
            shares.push(state.share);
        }
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!((0.45..=0.55).contains(&mean), "a mean share of {mean}");
    assert!(longest <= 100, "{longest} waited");
}

#[test]
fn knobs_out_of_range_are_refused() {
    let throttle = Pid::default();
    assert!(throttle.gains(-1.0, 0.0).is_err() && throttle.gains(0.0, f64::NAN).is_err());
    let text = throttle.gains(0.0, 101.0).unwrap_err().to_string();
    assert_eq!(text, "integral 101.0 is not a gain; use 0 to 100");
    assert!(throttle.period(Duration::ZERO).is_err() && throttle.most(1.0).is_err());
}
