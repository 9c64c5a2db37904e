//! Tests of byte forms of the state: one from before there were reserves, and those that nobody wrote.

use super::super::super::tests::with_a_reserve;
use super::super::reserve::{Reserve, Shares};
use super::*;

/// A form that was written before there were reserves, in hexadecimal: a service of 20 places, of whose work one in fifty
/// failed, while 24 places were tried.
const BEFORE_RESERVES: [&str; 10] = [
    // Format, algorithm, limit, trial, limit in force.
    "010000000000000034400100000000000038400000000000003840",
    // Ticks of the measurement.
    "f6d42d0b01000000766bc60b0100000001f6efe40b010000009623321301000000",
    // Rounds, typical latency.
    "000000000000004000000000d0126341",
    // Counts.
    "f1000000000000000500000000000000f600000000000000000000000000000018000000000000000000000000000000",
    // Sum of latencies.
    "000000600d8ce541",
    // Known goodput.
    "01d9bfbbf31a70c03e00000000d0126341ceca4f88b3f2933f00000000000034400000000000e08240010000",
    // Base, best.
    "00000000d01263417f8df1914c73c03e",
    // Hints.
    "0200000001",
    // Cliff.
    "000000000000f07f00000000c2db7bc7ac9a3f400f0038d5f5ec893f",
    // Rests, rejected.
    "0000000002000000",
];

fn form(state: &HillClimbState) -> Vec<u8> {
    let mut out = Writer::new(0);
    state.write(&mut out);
    out.finish()
}

fn read(form: &[u8]) -> Result<HillClimbState, DecodeError> {
    let (_, mut reader) = Reader::open(form)?;
    let state = HillClimbState::read(&mut reader)?;
    reader.close().map(|()| state)
}

fn with_shares(state: &HillClimbState, shares: Shares) -> HillClimbState {
    let mut state = *state;
    state.epoch.shares = shares;
    state
}

/// Lets a service of four places, whose law may set 2 to 50, go on from a state. Work ends well, then fails, then ends well
/// again, with the limit within its bounds all the time.
fn goes_on(state: HillClimbState) -> Service {
    let law = HillClimb::default().bounds(Bounds::known(2, 50));
    let mut service = Service { law, state, now: Tick::from_secs(600), ..Service::with_patience([500, 500]) };
    for (count, fails) in [(500, false), (200, true), (5_000, false)] {
        for _ in 0..count {
            assert!((2..=50).contains(&service.limit()), "{} after {state:?}", service.limit());
            service.run(1, |inside| 10.0 * (inside / 4.0).max(1.0), |_, _| fails);
        }
    }
    service
}

#[test]
fn a_form_from_before_reserves_reads_as_it_was() {
    let hex = BEFORE_RESERVES.concat();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let old: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let state = read(&old).unwrap();
    assert_eq!((state.limit, state.trial, state.limit_in_force), (20.0, Some(24.0), 24.0));
    assert_eq!((state.rests, state.rejected, state.base), (0, 2, 1e7));
    assert_eq!((state.reserve, state.no_reserve_for, state.epoch.shares), (None, 0, Shares::NONE));
    let known = state.known.unwrap();
    assert_eq!((known.peak, known.good, known.share), (20.0, 604.0, f64::INFINITY));
    assert!((known.rate * 1e9 - 1959.55).abs() < 0.01, "{} a second", known.rate * 1e9);
    assert_eq!(form(&state), old, "nothing is written for reserves until callers say how long they wait");
    assert!(goes_on(state).state.reserve.is_some());
}

#[test]
fn every_form_with_a_reserve_that_ends_early_is_refused() {
    let whole = form(&with_a_reserve());
    assert!(read(&whole).is_ok_and(|state| state.reserve.is_some()));
    for length in 0..whole.len() {
        assert_eq!(read(&whole[..length]), Err(DecodeError::Short), "{length} of {} bytes", whole.len());
    }
    // The mark that a reserve follows, and nothing after it.
    let mut marked = form(&HillClimb::default().start(Tick::EPOCH));
    *marked.last_mut().unwrap() |= 1 << 7;
    assert_eq!(read(&marked), Err(DecodeError::Short));
}

#[test]
fn impossible_numbers_of_a_reserve_are_refused_by_name() {
    let held = with_a_reserve();
    let (known, reserve) = (held.known.unwrap(), held.reserve.unwrap());
    let with_share = |share| HillClimbState { known: Some(Reading { share, ..known }), ..held };
    let with_reserve = |reserve| HillClimbState { reserve: Some(reserve), ..held };
    let counted = held.epoch.shares;
    let of =
        |state: HillClimbState, field| assert_eq!(read(&form(&state)), Err(DecodeError::Value { field }));
    for wrong in [f64::NAN, -0.1, f64::NEG_INFINITY] {
        of(with_share(wrong), "share");
        of(with_reserve(Reserve { rate: wrong, ..reserve }), "settled rate");
        of(with_shares(&held, Shares { sum: wrong, ..counted }), "shares");
        of(with_shares(&held, Shares { squares: wrong, ..counted }), "squares");
    }
    for settled in [0.0, f64::NAN, -1.0, 0.5, Bounds::MOST as f64 + 1.0, f64::INFINITY] {
        of(with_reserve(Reserve { settled, ..reserve }), "settled");
    }
    of(with_shares(&held, Shares { told: (1 << 53) + 1, ..counted }), "told");
    // Flags are the 25th byte of what belongs to the reserve, and the 17th after it.
    let begins = form(&held).len() - HillClimbState::RESERVE_BYTES;
    for (place, wrong, field) in [(24, 2, "holds a reserve"), (24 + 17, 4, "doubtful")] {
        let mut flagged = form(&held);
        assert!(flagged[begins + place] < wrong);
        flagged[begins + place] = wrong;
        assert_eq!(read(&flagged), Err(DecodeError::Value { field }));
    }
}

/// Regression: a reserve below its settled limit was held, and when it was given up the limit went on from there, far above
/// the bounds.
#[test]
fn a_reserve_that_no_law_can_hold_is_dropped() {
    let held = with_a_reserve();
    let above = held.reserve.map(|reserve| Reserve { settled: held.limit + 1.0, ..reserve });
    let far = held.reserve.map(|reserve| Reserve { settled: Bounds::MOST as f64, ..reserve });
    for wrong in [
        HillClimbState { known: None, ..held },
        HillClimbState { reserve: above, ..held },
        HillClimbState { reserve: far, ..held },
    ] {
        let read = read(&form(&wrong)).unwrap();
        assert_eq!(read, HillClimbState { reserve: None, ..wrong });
        assert!(goes_on(read).state.reserve.is_some(), "one is begun anew");
    }
}

/// The limit comes back within its bounds, and a reserve is found again, whatever the numbers were.
#[test]
fn possible_numbers_that_make_no_sense_do_no_lasting_harm() {
    let held = with_a_reserve();
    let (known, reserve, shares) = (held.known.unwrap(), held.reserve.unwrap(), held.epoch.shares);
    let most = Bounds::MOST as f64;
    let reserves = [
        Reserve { settled: held.limit, ..reserve },
        Reserve { settled: 1.0, rate: 0.0, doubtful: true, lowered: true, held: u32::MAX },
        Reserve { rate: f64::MAX, ..reserve },
    ];
    let with_reserve = reserves.map(|reserve| HillClimbState { reserve: Some(reserve), ..held });
    let with_share = [0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY]
        .map(|share| HillClimbState { known: Some(Reading { share, ..known }), ..held });
    let with_shares = [
        Shares { told: 1 << 53, ..shares },
        Shares { told: 0, sum: f64::MAX, squares: f64::MAX },
        Shares { told: 1, sum: f64::MAX, squares: 0.0 },
    ]
    .map(|shares| with_shares(&held, shares));
    let others = [
        HillClimbState { trial: Some(1.0), ..held },
        HillClimbState { trial: Some(most), ..held },
        HillClimbState { known: Some(Reading { rate: 0.0, good: 0.0, ..known }), ..held },
    ];
    for state in with_reserve.iter().chain(&with_share).chain(&with_shares).chain(&others) {
        assert_eq!(read(&form(state)), Ok(*state), "it is possible");
        let service = goes_on(*state);
        assert!(service.state.reserve.is_some(), "{state:?} became {:?}", service.state);
    }
}

/// Regression: a form could hold a rest of 2³² measurements, and no experiment was made for that key until its state was
/// forgotten. The longest wait of the law is 128 measurements.
#[test]
fn no_form_stops_the_experiments_for_longer_than_the_law_does() {
    let held = with_a_reserve();
    for (wait, kept) in [(0, 0), (1, 1), (128, 128), (129, 128), (u32::MAX, 128)] {
        for reserve in [None, held.reserve] {
            let resting = HillClimbState { rests: wait, reserve, ..held };
            assert_eq!(read(&form(&resting)), Ok(HillClimbState { rests: kept, ..resting }));
            let without = HillClimbState { no_reserve_for: wait, reserve, ..held };
            assert_eq!(read(&form(&without)), Ok(HillClimbState { no_reserve_for: kept, ..without }));
        }
    }
}
