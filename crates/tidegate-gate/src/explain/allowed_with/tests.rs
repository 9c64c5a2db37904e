use proptest::prelude::*;
use tidegate_core::rate::{ColdFactor, GuavaBursty, GuavaWarming, UberPacer, XTime};
use tidegate_core::{Algorithm as _, Ask, Cost, State, Tick, Transition};

use super::*;

/// One limit of each kind that takes a `max_wait`, with some that never find a longer delay enough.
fn quotas() -> Vec<Quota> {
    let rate = || Quota::per_second(7);
    vec![
        rate().burst(5).gcra().unwrap(),
        rate().burst(5).token_bucket().unwrap(),
        rate().burst(5).interval_bucket().unwrap(),
        rate().burst(5).aligned_bucket().unwrap(),
        rate().leaky_queue(4).unwrap(),
        rate().burst(3).leaky_queue(2).unwrap(),
        rate().warm_up(Duration::from_secs(2), ColdFactor::THREE).unwrap(),
        XTime::new(7.0, 5).unwrap().into(),
        UberPacer::new(Rate::new(7, Duration::from_secs(1)).unwrap(), 3).unwrap().into(),
        GuavaBursty::new(7.0, 1.0).unwrap().into(),
        GuavaWarming::new(7.0, Duration::from_secs(2), 3.0).unwrap().into(),
    ]
}

fn allowed(quota: &Quota, state: &State, ask: Ask) -> bool {
    matches!(quota.decide(state, ask), Transition::Allowed { .. })
}

proptest! {
    /// The delay is tried on the limit itself: it is enough, a millisecond less is not, and where none is named the longest
    /// one is not enough either.
    #[test]
    fn the_delay_that_is_named_passes_and_less_does_not(
        place in 0..11_usize,
        before in prop::collection::vec((0..300_u64, 1..4_u64), 0..12),
        units in 1..8_u64,
        accepted_ms in prop_oneof![Just(0), 0..900_u64],
    ) {
        let quota = &quotas()[place];
        let start = 1_000_000_000_000;
        let mut state = quota.fresh(Tick::from_nanos(start));
        let mut now = start;
        for (ms, units) in before {
            now += ms * 1_000_003;
            let ask = Ask::within(Tick::from_nanos(now), Cost::new(units).unwrap(), Duration::from_secs(1));
            if let Transition::Allowed { next, .. } = quota.decide(&state, ask) {
                state = next;
            }
        }
        let (at, cost) = (Tick::from_nanos(now), Cost::new(units).unwrap());
        let accepted = Duration::from_millis(accepted_ms);
        if let Transition::Denied { retry } = quota.decide(&state, Ask::within(at, cost, accepted)) {
            let told = max_wait_at_least(quota, units, quota.standing(&state, at), retry, accepted);
            match told.map(millis_up) {
                Some(ms) => {
                    prop_assert!(allowed(quota, &state, Ask::within(at, cost, Duration::from_millis(ms))), "{quota:?} {ms}");
                    let less = Duration::from_millis(ms - 1);
                    prop_assert!(!allowed(quota, &state, Ask::within(at, cost, less)), "{quota:?} less than {ms}");
                }
                None => {
                    let day = Duration::from_secs(86_400);
                    prop_assert!(!allowed(quota, &state, Ask::within(at, cost, day)), "{quota:?} {retry:?}");
                }
            }
        }
    }
}

#[test]
fn a_limit_that_delays_nobody_names_no_delay() {
    let at = Tick::from_secs(1);
    for quota in [
        Quota::per_second(1).fixed_window().unwrap(),
        Quota::per_second(1).leaky_bucket().unwrap(),
        Quota::concurrency(1, Duration::from_secs(1)).unwrap(),
    ] {
        let retry = Retry::After(Duration::from_secs(1));
        let standing = quota.standing(&quota.fresh(at), at);
        assert_eq!(max_wait_at_least(&quota, 1, standing, retry, Duration::ZERO), None);
    }
}
