//! Property tests of reserves: whatever services and callers do, one after another.

use proptest::prelude::*;

use super::super::super::tests::with_a_reserve;
use super::*;

/// How a service and its callers are for a while.
#[derive(Clone, Copy, Debug)]
struct Phase {
    count: u64,
    /// Work takes this long for up to `places` at once.
    millis: u64,
    places: u64,
    /// With more inside, half of the work fails.
    cliff: u64,
    /// How many tenths of the limit are in use.
    tenths: u64,
    /// How long callers wait; every second one may not say so.
    patience: u64,
    says: [bool; 2],
}

fn phase() -> impl Strategy<Value = Phase> {
    let service = (1u64..600, 1u64..60, 1u64..40, prop_oneof![Just(u64::MAX), 0u64..60]);
    let tenths = prop_oneof![4 => Just(10), 1 => 1u64..10];
    let callers = (prop_oneof![3 => Just(500u64), 1 => 0u64..2_000], any::<[bool; 2]>(), any::<bool>());
    (service, tenths, callers).prop_map(|((count, millis, places, cliff), tenths, (patience, says, all))| {
        Phase { count, millis, places, cliff, tenths, patience, says: if all { [true; 2] } else { says } }
    })
}

/// What always holds of a state: its byte form comes back, and a reserve lies above a settled limit whose goodput is known.
fn holds_together(state: &HillClimbState) {
    let mut out = Writer::new(0);
    state.write(&mut out);
    let bytes = out.finish();
    let (_, mut reader) = Reader::open(&bytes).unwrap();
    assert_eq!(HillClimbState::read(&mut reader), Ok(*state));
    if let Some(reserve) = state.reserve {
        assert!(state.known.is_some() && state.limit >= reserve.settled, "{state:?}");
        assert!(state.trial.is_none_or(|trial| trial > state.limit), "{state:?}");
    }
}

/// Runs the phases, and calls `check` after each piece of work.
fn run(law: &HillClimb, state: &mut HillClimbState, phases: &[Phase], check: impl Fn(&HillClimbState)) {
    let mut at = Tick::from_secs(60);
    for phase in phases {
        for number in 0..phase.count {
            let in_flight = (law.limit(state) * phase.tenths / 10).max(1);
            let latency = Duration::from_millis(phase.millis) * in_flight.max(phase.places) as u32
                / phase.places as u32;
            at = at.after(latency / in_flight as u32);
            let fails = in_flight > phase.cliff && number % 2 == 0;
            let outcome = if fails { Outcome::Failure } else { Outcome::Success };
            let time_left = phase.says[number as usize % 2].then_some(Duration::from_millis(phase.patience));
            law.learn(
                state,
                &Sample { at, latency, held: latency, in_flight, places: 1, time_left, outcome },
            );
            let (limit, bounds) = (law.limit(state), law.bounds);
            assert!((bounds.least()..=bounds.most()).contains(&limit), "{limit} is out of bounds");
            check(state);
        }
    }
}

proptest! {
    #[test]
    fn a_reserve_lies_above_its_settled_limit_and_comes_back(phases in prop::collection::vec(phase(), 1..12)) {
        let law = HillClimb::default().bounds(Bounds::known(1, 40));
        for mut state in [law.start(Tick::EPOCH), with_a_reserve()] {
            run(&law, &mut state, &phases, holds_together);
        }
    }

    #[test]
    fn a_law_without_a_reserve_begins_none_and_gives_up_one_that_it_finds(phases in prop::collection::vec(phase(), 1..12)) {
        let law = HillClimb::default().bounds(Bounds::known(1, 40)).without_reserve();
        let none = |state: &HillClimbState| assert_eq!(state.reserve, None);
        run(&law, &mut law.start(Tick::EPOCH), &phases, none);
        let mut found = with_a_reserve();
        assert!(found.reserve.is_some());
        let raised = found.limit;
        run(&law, &mut found, &phases, |state| {
            assert!(state.reserve.is_none() || state.limit == raised, "not raised further: {state:?}");
        });
    }
}

/// Nothing that callers do can keep it: two measurements are enough.
#[test]
fn a_law_without_a_reserve_gives_up_within_two_measurements_what_its_state_holds() {
    let mut service = Service::with_patience([500, 500]);
    (service.state, service.now) = (with_a_reserve(), Tick::from_secs(600));
    let (settled, held) = service.state.reserve.map(|reserve| (reserve.settled, reserve.held)).unwrap();
    service.law = service.law.without_reserve();
    let mut measurements = 0;
    for _ in 0..2_000 {
        service.run(1, |inside| 10.0 * (inside / 4.0).max(1.0), never);
        measurements = service.state.reserve.map_or(measurements, |reserve| reserve.held - held);
    }
    // The second ends it, so only the first is seen.
    assert_eq!((service.state.reserve, measurements), (None, 1));
    assert!(service.limit() as f64 <= settled * LEAP, "{} places, and {settled} settled", service.limit());
}
