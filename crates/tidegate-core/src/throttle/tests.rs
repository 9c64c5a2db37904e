//! Property tests of the laws stated at [`Throttle`], for every implementation, with any arrivals and ends.

use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::guard::Outcome;
use crate::priority::{Criticality, Priority};
use crate::time::Tick;

/// One event of a throttle.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(Arrival),
    Ends(Tick, Duration, Outcome),
    Stands(Tick, Room),
}

fn outcome() -> impl Strategy<Value = Outcome> {
    use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
    prop::sample::select(vec![Success, CallersFault, Failure, Overloaded, Ignored])
}

fn priority() -> impl Strategy<Value = Priority> {
    let level = prop::sample::select(Criticality::ALL.to_vec());
    (level, 0u8..128).prop_map(|(level, cohort)| Priority::of(level).in_cohort(cohort).unwrap())
}

/// Ticks: mostly some fractions of a second apart, sometimes anywhere, also backwards.
fn ticks() -> impl Strategy<Value = Tick> {
    let near = (0u64..20_000_000_000).prop_map(Tick::from_nanos);
    prop_oneof![9 => near, 1 => any::<u64>().prop_map(Tick::from_nanos)]
}

fn event() -> impl Strategy<Value = Event> {
    let arrival = (ticks(), priority(), any::<u32>());
    let arrives = arrival.prop_map(|(at, priority, draw)| Event::Arrives(Arrival { at, priority, draw }));
    let ends = (ticks(), any::<Duration>(), outcome()).prop_map(|(at, took, how)| Event::Ends(at, took, how));
    let stands = (ticks(), any::<u64>(), any::<u64>());
    let stands = stands.prop_map(|(at, free, waiting)| Event::Stands(at, Room { free, waiting }));
    prop_oneof![6 => arrives, 3 => ends, 1 => stands]
}

fn keeps_the_laws<T: Throttle>(throttle: &T, events: &[Event], pair: (Priority, Priority), draw: u32)
where
    T::State: PartialEq,
{
    let mut state = throttle.start(Tick::EPOCH);
    let mut again = throttle.start(Tick::EPOCH);
    for event in events {
        let (first, second) = match *event {
            Event::Arrives(arrival) => {
                (throttle.admit(&mut state, &arrival), throttle.admit(&mut again, &arrival))
            }
            Event::Ends(at, latency, outcome) => {
                throttle.learn(&mut state, at, latency, outcome);
                throttle.learn(&mut again, at, latency, outcome);
                (true, true)
            }
            Event::Stands(at, room) => {
                throttle.sense(&mut state, at, room);
                throttle.sense(&mut again, at, room);
                (true, true)
            }
        };
        assert_eq!(first, second, "the same calls give the same answers");
        assert!(state == again, "the same calls leave the same state, and no number that is none");
        assert!(throttle.refused_share(&state, Tick::from_secs(20)) < 1_000_000);

        let (low, high) = (pair.0.min(pair.1), pair.0.max(pair.1));
        let at = Tick::from_secs(20);
        let admits = |priority, draw| throttle.admit(&mut state.clone(), &Arrival { at, priority, draw });
        assert!(!admits(low, draw) || admits(high, draw), "{low} passes where {high} does not");
        assert!(admits(low, u32::MAX), "some are always let in");
    }
}

proptest! {
    #[test]
    fn every_throttle_keeps_the_laws(
        events in prop::collection::vec(event(), 1..150),
        pair in (priority(), priority()),
        draw in any::<u32>(),
    ) {
        for throttle in [Sre::default(), Sre::aegis(), Sre::envoy()] {
            keeps_the_laws(&throttle, &events, pair, draw);
        }
        for throttle in [Pid::default(), Pid::default().gains(100.0, 100.0).unwrap()] {
            keeps_the_laws(&throttle, &events, pair, draw);
        }
    }
}

/// The sizes that the documentation of each state gives.
#[test]
fn states_are_as_small_as_documented() {
    assert_eq!((size_of::<SreState>(), size_of::<PidState>()), (88, 120));
}
