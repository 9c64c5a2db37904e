//! Tests of the places held in reserve; and properties of them, whatever services and callers do, one after another.

use proptest::prelude::*;

use super::super::reserve::Shares;
use super::*;
use crate::concurrency::Adaptive;
use crate::concurrency::tests::with_a_reserve;

/// Work of 10 ms for up to 20 at once.
pub(super) fn knee(inside: f64) -> f64 {
    10.0 * (inside / 20.0).max(1.0)
}

/// The mean latency at the current limit, in milliseconds.
fn latency(service: &Service, millis: impl Fn(f64) -> f64) -> f64 {
    millis(service.limit() as f64)
}

#[test]
fn callers_who_have_time_let_more_places_be_held() {
    let (mut told, mut untold) = (Service::with_patience([500, 500]), Service::new());
    told.run(40_000, knee, never);
    untold.run(40_000, knee, never);
    assert!(untold.limit() <= 30, "{} places where nobody says how long they wait", untold.limit());
    let waits = latency(&told, knee);
    assert!((160.0..=270.0).contains(&waits), "{waits} ms at {} places", told.limit());
    let goodput = told.run(20_000, knee, never);
    assert!(goodput >= 1990.0, "{goodput} a second of 2000: nothing is tried with a reserve");
}

#[test]
fn the_latency_that_a_reserve_adds_follows_callers_up_to_half_a_second() {
    for (patience, most) in [(100, 54.0), (200, 108.0), (500, 270.0), (60_000, 270.0)] {
        let mut service = Service::with_patience([patience, patience]);
        service.run(60_000, knee, never);
        let waits = latency(&service, knee);
        assert!((most * 0.6..=most).contains(&waits), "{waits} ms where callers wait {patience} ms");
    }
}

#[test]
fn a_law_without_a_reserve_keeps_latency_short() {
    let mut service = Service::with_patience([500, 500]);
    service.law = service.law.without_reserve();
    service.run(40_000, knee, never);
    assert!(service.limit() <= 30, "{} places", service.limit());
    for law in [Adaptive::HillClimb(service.law), Adaptive::HillClimb(HillClimb::default())] {
        let mut out = Writer::new(0);
        law.write(&mut out);
        let bytes = out.finish();
        let (_, mut reader) = Reader::open(&bytes).unwrap();
        assert_eq!(Adaptive::read(&mut reader), Ok(law));
    }
}

/// The dependency takes 100 ms more, so 220 places are needed where 20 were.
#[test]
fn a_dependency_that_becomes_slower_finds_the_places_that_it_needs() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let slower = |inside: f64| 110.0 * (inside / 220.0).max(1.0);
    let goodput = service.run(2_000, slower, never);
    assert!(goodput >= 1900.0, "{goodput} of 2000 in the first second, {} places", service.limit());
}

#[test]
fn places_that_cost_goodput_are_not_kept_in_reserve() {
    for each in [0.02, 0.1, 0.3] {
        let contended = |inside: f64| knee(inside) * (1.0 + each * (inside - 20.0).max(0.0));
        let mut service = Service::with_patience([500, 500]);
        service.run(40_000, contended, never);
        let goodput = service.run(40_000, contended, never);
        assert!(goodput >= 2000.0 * 0.85, "{goodput} of 2000, {} places", service.limit());
    }
}

#[test]
fn places_at_which_work_fails_are_not_kept_in_reserve() {
    let mut service = Service::with_patience([500, 500]);
    let fails = |inside: f64, served: u64| (served as f64 * 0.618).fract() < (inside - 40.0) / 40.0;
    service.run(40_000, knee, fails);
    let goodput = service.run(20_000, knee, fails);
    assert!(goodput >= 2000.0 * 0.9, "{goodput} of 2000, {} places", service.limit());
}

/// The service becomes four times slower: with the places in reserve all answers would come too late.
#[test]
fn a_reserve_is_given_up_when_the_capacity_falls() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let before = service.limit();
    let slow = |inside: f64| 4.0 * knee(inside);
    service.run(2_000, slow, never);
    assert!(service.limit() < before / 2, "{} places of {before}", service.limit());
    let goodput = service.run(10_000, slow, never);
    assert!(goodput >= 450.0, "{goodput} a second of 500");
}

/// The service becomes slower by a factor of 1.7. With the same places latency would come close to what callers wait for; with
/// fewer, nothing is lost, and nothing has to be found out anew.
#[test]
fn a_reserve_becomes_smaller_when_the_capacity_falls_by_less() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let (before, settled) = (service.limit(), service.state.reserve.unwrap().settled);
    let slow = |inside: f64| 1.7 * knee(inside);
    service.run(2_000, slow, never);
    let mut least = service.limit();
    for _ in 0..10_000 {
        service.run(1, slow, never);
        least = least.min(service.limit());
        assert_eq!(service.state.reserve.map(|reserve| reserve.settled), Some(settled));
    }
    assert!((before * 2 / 5..before * 2 / 3).contains(&least), "{least} places of {before}");
    let waits = latency(&service, slow);
    assert!((200.0..=290.0).contains(&waits), "{waits} ms with {} places", service.limit());
    // And grows again.
    service.run(20_000, knee, never);
    assert!(service.limit() * 10 >= before * 8, "{} places of {before}", service.limit());
}

/// What a measurement with fewer places says of the reserve.
#[test]
fn goodput_with_fewer_places_decides_whether_a_reserve_is_kept() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let (bounds, held) = (service.law.bounds, service.state);
    let usual = held.known.unwrap();
    // Nearly all work takes its caller's whole time, so 54 % of the places are tried.
    let mut lowered = held;
    lowered.measured_reserve(&bounds, Reading { share: 1.0, ..usual });
    assert!(lowered.reserve.is_some_and(|reserve| reserve.lowered));
    assert_eq!(lowered.limit, (held.limit * 0.54).round());
    for (change, kept) in [(0.6, false), (0.76, false), (0.78, true), (1.0, true), (1.14, true), (1.2, false)]
    {
        let mut state = lowered;
        state.measured_reserve(&bounds, Reading { rate: usual.rate * change, share: 0.5, ..usual });
        assert_eq!(state.reserve.is_some_and(|reserve| !reserve.lowered), kept, "{change}");
        let expected = if kept { lowered.limit } else { held.reserve.unwrap().settled };
        assert_eq!(state.limit, expected, "{change}");
    }
    // Fewer than the settled limit are not tried here.
    let mut state = held;
    let far_too_long = Reading { share: 0.54 * held.limit / held.reserve.unwrap().settled, ..usual };
    state.measured_reserve(&bounds, far_too_long);
    assert_eq!((state.reserve, state.limit), (None, held.reserve.unwrap().settled));
}

/// Every tenth caller leaves no time at all.
#[test]
fn callers_who_leave_no_time_do_not_end_a_reserve() {
    let mut service = Service::with_patience([500, 500]);
    let mut held = 0;
    for number in 0..60_000_u64 {
        service.patience = [Some(Duration::from_millis(if number % 10 == 0 { 0 } else { 500 })); 2];
        service.run(1, knee, never);
        held += u32::from(number >= 20_000 && service.state.reserve.is_some());
    }
    assert!(held >= 38_000, "with a reserve for {held} of 40000 pieces of work");
}

/// A reserve is held while nine in ten callers say how long they wait, and given up when fewer do.
#[test]
fn a_few_callers_need_not_say_how_long_they_wait() {
    for (one_in, holds) in [(12, true), (6, false)] {
        let mut service = Service::with_patience([500, 500]);
        service.run(40_000, knee, never);
        let before = service.limit();
        for number in 0..20_000_u64 {
            let says = number % one_in != 0;
            service.patience = [says.then_some(Duration::from_millis(500)); 2];
            service.run(1, knee, never);
        }
        assert_eq!(service.state.reserve.is_some(), holds, "one in {one_in}");
        assert_eq!(service.limit() * 2 > before, holds, "one in {one_in}: {} of {before}", service.limit());
    }
}

/// A few callers wait 50 or 15 ms, and the others 500 ms. One in fifty and one in a hundred get late answers, and nobody
/// else does. One in ten is too many to come too late.
#[test]
fn a_few_callers_with_far_less_time_make_a_reserve_smaller_and_do_not_end_it() {
    for (one_in, patience, range, late) in
        [(50, 50, 50.0..108.0, 800), (10, 50, 20.0..50.0, 0), (100, 15, 20.0..200.0, 400)]
    {
        let mut service = Service::with_patience([500, 500]);
        service.run(40_000, knee, never);
        let (mut held, mut in_time) = (0, 0);
        for number in 0..60_000_u64 {
            let (hurries, counts) = (number % one_in == 0, number >= 20_000);
            service.patience = [Some(Duration::from_millis(if hurries { patience } else { 500 })); 2];
            in_time += u32::from(counts && (!hurries || latency(&service, knee) < patience as f64));
            service.run(1, knee, never);
            held += u32::from(counts && service.state.reserve.is_some());
        }
        let waits = latency(&service, knee);
        assert!(range.contains(&waits), "{waits} ms where one in {one_in} waits {patience} ms");
        assert_eq!(held, 40_000, "pieces of work with a reserve, one in {one_in}");
        assert!(in_time >= 40_000 - late, "{in_time} of 40000 in time, one in {one_in}");
    }
}

/// A download: the head of the answer comes after 20 ms, however many share the line.
#[test]
fn places_that_only_make_streams_longer_are_not_held() {
    let mut service = Service::new();
    for _ in 0..60_000 {
        let inside = service.limit();
        let held = Duration::from_secs_f64((inside as f64 / 20.0).max(1.0) * 0.02);
        service.now = service.now.after(held / inside as u32);
        let (at, latency, time_left) =
            (service.now, Duration::from_millis(20), Some(Duration::from_millis(500)));
        let outcome = Outcome::Success;
        let sample = Sample { at, latency, held, in_flight: inside, places: 1, time_left, outcome };
        service.law.learn(&mut service.state, &sample);
    }
    assert!(service.limit() <= 280, "{} places, each held for {} ms", service.limit(), service.limit());
}

#[test]
fn one_strange_measurement_keeps_a_reserve_and_two_end_it() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let (bounds, held) = (service.law.bounds, service.state);
    let usual = held.known.unwrap();
    for strange in [
        Reading { rate: usual.rate * 0.3, ..usual },
        Reading { share: f64::INFINITY, ..usual },
        Reading { failed: 0.12, ..usual },
    ] {
        let mut state = held;
        state.measured_reserve(&bounds, strange);
        assert!(state.reserve.is_some_and(|reserve| reserve.doubtful), "{strange:?}");
        state.measured_reserve(&bounds, usual);
        assert!(state.reserve.is_some_and(|reserve| !reserve.doubtful), "{strange:?}");
        state.measured_reserve(&bounds, strange);
        state.measured_reserve(&bounds, strange);
        assert_eq!(state.reserve, None, "{strange:?}");
        assert_eq!(state.limit, held.reserve.unwrap().settled, "{strange:?}");
    }
}

#[test]
fn a_reserve_ends_after_a_thousand_measurements() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let mut state = service.state;
    let usual = state.known.unwrap();
    let mut measurements = 0;
    while state.reserve.is_some() && measurements < 2_000 {
        state.trial = None;
        state.measured_reserve(&service.law.bounds, usual);
        measurements += 1;
    }
    assert!((900..=1024).contains(&measurements), "{measurements}");
}

/// All work comes too late, or none ends well.
#[test]
fn a_limit_that_falls_falls_below_the_one_without_a_reserve() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let settled = service.state.reserve.unwrap().settled;
    let mut late = service.state;
    late.shrink(&service.law.bounds, &late.known.unwrap());
    assert!(late.limit <= settled && late.reserve.is_none(), "{}", late.limit);
    service.run(2_000, |_| 300.0, |_, _| true);
    assert!(service.state.limit <= settled && service.state.reserve.is_none(), "{}", service.limit());
}

#[test]
fn other_bounds_apply_to_the_limit_without_a_reserve_too() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let bounds = Bounds::known(100, 1_000);
    let moved = service.state.bounded(&bounds);
    assert_eq!((moved.limit, moved.reserve), (100.0, None));
    assert_eq!(service.state.bounded(&Bounds::known(1, 1_000)), service.state);
}

#[test]
fn a_load_below_the_limit_gives_the_reserve_up() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let before = service.limit();
    assert!(service.state.reserve.is_some());
    for _ in 0..2_000 {
        // 10 inside, far below the limit.
        service.now = service.now.after(Duration::from_millis(1));
        let held = Duration::from_millis(10);
        let (at, time_left, outcome) = (service.now, Some(Duration::from_millis(500)), Outcome::Success);
        let sample = Sample { at, latency: held, held, in_flight: 10, places: 1, time_left, outcome };
        service.law.learn(&mut service.state, &sample);
    }
    assert_eq!(service.state.reserve, None);
    assert!(service.limit() * 10 <= before, "{} places of {before}", service.limit());
}

#[test]
fn the_share_of_nearly_all_is_the_mean_and_two_deviations() {
    let sample = |latency: u64, time_left: Option<u64>| Sample {
        at: Tick::EPOCH,
        latency: Duration::from_millis(latency),
        held: Duration::from_millis(latency),
        in_flight: 1,
        places: 1,
        time_left: time_left.map(Duration::from_millis),
        outcome: Outcome::Success,
    };
    let mut shares = Shares::NONE;
    assert_eq!(shares.nearly_all(0), f64::INFINITY);
    for latency in [20, 60] {
        shares.count(&sample(latency, Some(200)));
    }
    // Shares 0.1 and 0.3: mean 0.2, deviation 0.1.
    assert!((shares.nearly_all(2) - 0.4).abs() < 1e-9);
    // One in three does not say how long it waits.
    assert_eq!(shares.nearly_all(3), f64::INFINITY);
    // No time at all, and centuries.
    shares.count(&sample(u64::MAX / 2_000_000, Some(0)));
    assert!(shares.nearly_all(3).is_finite());
}

#[test]
fn a_state_with_a_reserve_comes_back_and_one_without_is_as_short_as_before() {
    let form = |state: &HillClimbState| {
        let mut out = Writer::new(0);
        state.write(&mut out);
        out.finish()
    };
    let (mut told, mut untold) = (Service::with_patience([500, 500]), Service::new());
    let mut reserved = 0;
    for _ in 0..400 {
        told.run(97, knee, never);
        reserved += u32::from(told.state.reserve.is_some());
        let bytes = form(&told.state);
        let (_, mut reader) = Reader::open(&bytes).unwrap();
        assert_eq!(HillClimbState::read(&mut reader), Ok(told.state));
    }
    assert!(reserved > 100, "{reserved} of 400");
    untold.run(40_000, knee, never);
    assert_eq!(form(&told.state).len(), form(&untold.state).len() + HillClimbState::RESERVE_BYTES);
}

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
