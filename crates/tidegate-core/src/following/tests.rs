use proptest::prelude::*;

use super::*;

fn rate(count: u64) -> Rate {
    Rate::new(count, Duration::from_secs(1)).unwrap()
}

/// 1000 a second up to 1024 bytes, 100 a second from 2048 bytes on.
fn sentinel() -> Following {
    Following::sentinel(rate(100)..=rate(1000), 1024.0..=2048.0).unwrap()
}

/// Returns the rates after readings, each a number of milliseconds after the one before.
fn rates(law: &Following, readings: &[(u64, f64)]) -> Vec<u64> {
    let (mut now, mut state) = (Tick::EPOCH, law.start(Tick::EPOCH));
    let sense = |&(millis, signal): &(u64, f64)| {
        now = now.after(Duration::from_millis(millis));
        law.sense(&mut state, now, signal);
        law.rate(&state).count()
    };
    readings.iter().map(sense).collect()
}

#[test]
fn sentinels_line_is_straight_and_has_no_memory() {
    let readings = [0.0, 1024.0, 1280.0, 1536.0, 2048.0, 1e300, 1536.0, 0.0].map(|signal| (0, signal));
    assert_eq!(rates(&sentinel(), &readings), [1000, 1000, 775, 550, 100, 100, 550, 1000]);
}

/// The straight line of Envoy's scaled triggers, in its example of a timer from 600 s down to 2 s between 85 % and 95 %:
/// at 92 %, 2 + 598·0.3 = 181.4 s. In tenths, since a rate counts in whole numbers.
#[test]
fn the_line_is_that_of_envoys_scaled_triggers() {
    let law = Following::sentinel(rate(20)..=rate(6000), 85.0..=95.0).unwrap();
    let readings = [84.0, 85.0, 92.0, 95.0, 96.0].map(|percent| (0, percent));
    assert_eq!(rates(&law, &readings), [6000, 6000, 1814, 20, 20]);
}

#[test]
fn a_signal_that_trembles_within_the_band_moves_the_rate_once() -> Result<(), QuotaError> {
    let law = sentinel().band(256.0)?;
    let readings = [(0, 1536.0), (150, 1300.0), (150, 1536.0), (150, 1280.0), (150, 1279.0), (150, 700.0)];
    assert_eq!(rates(&law, &readings), [550, 550, 550, 550, 552, 1000]);
    assert_eq!(rates(&law, &[(0, 1536.0), (1, 1537.0)]), [550, 549], "0.88 fewer, to the nearest");
    assert_eq!(rates(&law, &[(0, 1536.0), (1, 1600.0)]), [550, 494], "a rise counts at once");
    Ok(())
}

/// Regression: a queue that is empty never falls below its low mark by a band, so the rate stayed at 910 for good.
#[test]
fn a_signal_that_rests_at_the_low_mark_has_the_ceiling() {
    for law in
        [Following::new(rate(100)..=rate(1000), 0.0..=1000.0).unwrap(), sentinel().band(1024.0).unwrap()]
    {
        let mut readings = vec![(0, 5000.0); 10];
        readings.extend([(200, law.low); 100]);
        let rates = rates(&law, &readings);
        assert_eq!((rates[9], rates[109]), (100, 1000), "{law:?}");
    }
}

#[test]
fn the_rate_falls_at_once_and_climbs_in_its_time() -> Result<(), QuotaError> {
    let law = sentinel().climb(Duration::from_secs(10))?;
    let readings = [(0, 9000.0), (1000, 0.0), (4000, 0.0), (0, 0.0), (5000, 0.0), (1, 0.0)];
    assert_eq!(rates(&law, &readings), [100, 190, 550, 550, 1000, 1000]);
    Ok(())
}

#[test]
fn what_is_not_a_number_is_no_reading_and_what_is_infinite_is_the_mark() {
    let law = Following::new(rate(100)..=rate(1000), 0.0..=100.0).unwrap().climb(Duration::ZERO).unwrap();
    assert_eq!(rates(&law, &[(0, f64::NAN)]), [1000]);
    let readings = [(0, f64::INFINITY), (1, f64::NAN), (1, f64::NEG_INFINITY)];
    let after = rates(&law, &readings);
    assert_eq!(after[..2], [100, 100]);
    assert!(after[2] > 100);
}

#[test]
fn the_ends_are_exact_for_counts_that_no_float_can_hold() {
    let most = Rate::MAX_COUNT;
    let law = Following::sentinel(rate(3)..=rate(most - 1), 0.0..=1.0).unwrap();
    assert_eq!(rates(&law, &[(0, 0.0), (0, 1.0)]), [most - 1, 3]);
}

#[test]
fn knobs_out_of_range_are_refused() {
    let text = |floor, ceiling, marks| Following::new(floor..=ceiling, marks).unwrap_err().to_string();
    assert_eq!(text(rate(5), rate(4), 0.0..=1.0), "floor 5 is not a floor; use 1 to the ceiling");
    let minute = Rate::new(1, Duration::from_secs(60)).unwrap();
    let want = "period of the floor 60s is not that of the ceiling; use one period for both";
    assert_eq!(text(minute, rate(4), 0.0..=1.0), want);
    let want = "marks 1.0 and 1.0 are not a band; use a low and a higher one";
    assert_eq!(text(rate(1), rate(4), 1.0..=1.0), want);
    for marks in [f64::NAN..=1.0, 0.0..=f64::INFINITY, -f64::MAX..=f64::MAX, 0.0..=1e-320] {
        assert!(Following::new(rate(1)..=rate(4), marks).is_err());
    }
    assert!(sentinel().band(-1.0).is_err() && sentinel().band(1025.0).is_err());
    assert!(sentinel().smoothing(1.0).is_err() && sentinel().climb(Duration::MAX).is_err());
}

fn any_law() -> impl Strategy<Value = Following> {
    let rates = (1u64..1000, 0u64..Rate::MAX_COUNT / 2);
    let marks = (-1e6f64..1e6, 1e-3f64..1e6);
    (rates, marks, 0.0f64..0.99, 0.0f64..=1.0, 0u64..20).prop_map(|(rates, marks, kept, band, climb)| {
        let (floor, ceiling) = (rate(rates.0), rate(rates.0 + rates.1));
        let law = Following::new(floor..=ceiling, marks.0..=marks.0 + marks.1).unwrap();
        let band = band * (law.high - law.low);
        law.smoothing(kept).unwrap().band(band).unwrap().climb(Duration::from_secs(climb)).unwrap()
    })
}

fn signals() -> impl Strategy<Value = f64> {
    prop_oneof![4 => -2e6f64..2e6, 1 => any::<f64>()]
}

proptest! {
    #[test]
    fn the_rate_stays_between_floor_and_ceiling(
        law in any_law(),
        readings in prop::collection::vec((any::<u64>(), signals()), 1..50),
    ) {
        let mut state = law.start(Tick::EPOCH);
        for (at, signal) in readings {
            law.sense(&mut state, Tick::from_nanos(at), signal);
            let count = law.rate(&state).count();
            prop_assert!((law.floor.count()..=law.ceiling.count()).contains(&count));
        }
    }

    #[test]
    fn a_signal_that_is_nowhere_lower_gives_no_higher_rate(
        law in any_law(),
        readings in prop::collection::vec((0u64..5_000_000_000, -2e6f64..2e6, 0f64..1e5), 1..50),
    ) {
        let (mut now, mut lower) = (Tick::EPOCH, law.start(Tick::EPOCH));
        let mut higher = lower;
        for (nanos, signal, more) in readings {
            now = now.after(Duration::from_nanos(nanos));
            law.sense(&mut lower, now, signal);
            law.sense(&mut higher, now, signal + more);
            prop_assert!(law.rate(&higher).count() <= law.rate(&lower).count());
        }
    }
}

/// The size that the documentation gives.
#[test]
fn the_state_is_as_small_as_documented() {
    assert_eq!(size_of::<FollowingState>(), 32);
}
