use proptest::prelude::*;

use core::time::Duration;

use super::*;
use crate::time::nanos;

const SECOND: u64 = 1_000_000_000;

fn at(nanos: u64) -> Tick {
    Tick::from_nanos(nanos)
}

fn sample(kind: u8) -> Sample {
    Sample { failed: kind & 1 != 0, slow: kind & 2 != 0 }
}

/// The totals of all calls of a list that the window still holds, counted from scratch.
fn recounted(window: Window, calls: &[(u64, u8)], now: u64) -> Totals {
    let held: Vec<_> = match window {
        Window::Calls(last) => calls.iter().rev().take(last as usize).collect(),
        Window::Time { span, buckets } => {
            let length = nanos(span) / u64::from(buckets);
            calls.iter().filter(|(ended, _)| ended / length + u64::from(buckets) > now / length).collect()
        }
    };
    held.into_iter().fold(Totals::default(), |mut totals, (_, kind)| {
        totals.add(sample(*kind));
        totals
    })
}

fn read_back(outcomes: &Outcomes) -> Outcomes {
    let mut out = Writer::new(0);
    outcomes.write(&mut out);
    let bytes = out.finish();
    let (_, mut from) = Reader::open(&bytes).unwrap();
    let read = Outcomes::read(&mut from).unwrap();
    from.close().unwrap();
    read
}

proptest! {
    #[test]
    fn totals_are_those_of_a_list_counted_from_scratch(
        calls in prop::collection::vec((0u64..40, 0u8..4), 1..400),
        last in 1u32..130,
        buckets in 1u32..12,
    ) {
        for window in [Window::Calls(last), Window::Time { span: Duration::from_nanos(7 * u64::from(buckets)), buckets }] {
            let (mut outcomes, mut list, mut now) = (Outcomes::default(), Vec::new(), 1_000);
            for (pause, kind) in &calls {
                now += pause;
                prop_assert_eq!(outcomes.totals(at(now)), recounted(window, &list, now));
                outcomes.add(window, at(now), sample(*kind));
                list.push((now, *kind));
                prop_assert_eq!(outcomes.totals(at(now)), recounted(window, &list, now));
                prop_assert_eq!(&read_back(&outcomes), &outcomes);
                let mut out = Writer::new(0);
                outcomes.write(&mut out);
                prop_assert!(out.finish().len() - 2 <= Outcomes::largest(window));
                if let Some(empty) = outcomes.empty_at() {
                    prop_assert_eq!(outcomes.clone().totals(empty), Totals::default());
                    let before = at(empty.as_nanos() - 1);
                    prop_assert!(outcomes.clone().totals(before).calls > 0);
                }
            }
        }
    }
}

#[test]
fn a_whole_second_is_forgotten_at_once() {
    let window = Window::Time { span: Duration::from_secs(3), buckets: 3 };
    let mut outcomes = Outcomes::default();
    for ended in [0, SECOND - 1, SECOND, 2 * SECOND] {
        outcomes.add(window, at(10 * SECOND + ended), sample(1));
    }
    assert_eq!(outcomes.totals(at(13 * SECOND - 1)).failures, 4);
    assert_eq!(outcomes.totals(at(13 * SECOND)).failures, 2, "both calls of the first second");
}

#[test]
fn a_window_of_one_bucket_tumbles() {
    let window = Window::Time { span: Duration::from_secs(1), buckets: 1 };
    let mut outcomes = Outcomes::default();
    outcomes.add(window, at(SECOND - 1), sample(1));
    assert_eq!(outcomes.totals(at(SECOND - 1)).calls, 1);
    assert_eq!(outcomes.totals(at(SECOND)).calls, 0);
}

#[test]
fn a_fast_clock_that_is_set_back_keeps_its_calls_as_old_as_they_were() {
    let window = Window::Time { span: Duration::from_secs(4), buckets: 4 };
    let mut outcomes = Outcomes::default();
    outcomes.add(window, at(9_000 * SECOND), sample(1));
    outcomes.add(window, at(9_002 * SECOND), sample(0));
    outcomes.set_back(at(9_002 * SECOND), at(100 * SECOND));
    assert_eq!(outcomes.totals(at(101 * SECOND)), Totals { calls: 2, failures: 1, slow: 0 });
    assert_eq!(outcomes.totals(at(102 * SECOND)), Totals { calls: 1, failures: 0, slow: 0 });
    outcomes.set_back(at(102 * SECOND), at(0));
    assert_eq!(outcomes.totals(at(0)), Totals::default(), "what would lie before the epoch is forgotten");
    assert_eq!(read_back(&outcomes), outcomes);
}

#[test]
fn bytes_that_are_no_window_are_refused() {
    let read = |bytes: &[u8]| {
        let bytes = [&[1, 0][..], bytes].concat();
        let (_, mut from) = Reader::open(&bytes).unwrap();
        Outcomes::read(&mut from)
    };
    let ring = |size: u32, next: u32, calls: u32, failed: u64, slow: u64| {
        let numbers = [size, next, calls].map(u32::to_le_bytes).concat();
        read(&[&[1][..], &numbers, &failed.to_le_bytes(), &slow.to_le_bytes()].concat())
    };
    assert!(ring(64, 0, 64, u64::MAX, 0).is_ok() && ring(9, 3, 3, 0b111, 0b101).is_ok());
    for wrong in [
        ring(0, 0, 0, 0, 0),
        ring(u32::MAX, 0, 0, 0, 0),
        ring(9, 9, 9, 0, 0),
        ring(9, 4, 3, 0, 0),
        ring(9, 3, 3, 0b1000, 0),
        ring(65, 3, 3, 0, 0),
        read(&[3]),
        read(&[2, 0]),
    ] {
        assert!(wrong.is_err(), "{wrong:?}");
    }
    let buckets = |length: u64, newest: u64, count: u32, failures: u32| {
        let bucket = [1u32, failures, 0].map(u32::to_le_bytes).concat();
        read(
            &[&[2][..], &length.to_le_bytes(), &newest.to_le_bytes(), &count.to_le_bytes(), &bucket].concat(),
        )
    };
    assert!(buckets(SECOND, 7, 1, 1).is_ok());
    for wrong in [
        buckets(0, 7, 1, 1),
        buckets(SECOND, u64::MAX, 1, 1),
        buckets(SECOND, 7, 0, 1),
        buckets(SECOND, 7, 2, 1),
        buckets(SECOND, 7, u32::MAX, 1),
        buckets(SECOND, 7, 1, 2),
    ] {
        assert!(wrong.is_err(), "{wrong:?}");
    }
}
