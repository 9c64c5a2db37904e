//! Where limits differ from Sentinel's on purpose, in numbers: each trace is one that Sentinel's arithmetic answers
//! otherwise, as its comment computes. The manual's page for those who come from Sentinel lists the differences.

use std::time::Duration;

use tidegate_core::rate::ColdFactor;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Retry, State, Tick, Transition};

/// One limit and its state, on a clock in milliseconds.
struct Limit {
    quota: Quota,
    state: State,
}

impl Limit {
    fn of(quota: Quota) -> Self {
        Self { state: quota.fresh(Tick::EPOCH), quota }
    }

    /// Asks for `units` at `ms`, granted up to `longest` ms later. Returns the wait, or after which time the same
    /// request would be granted.
    fn ask(&mut self, ms: u64, units: u64, longest: u64) -> Result<Duration, Duration> {
        let cost = Cost::new(units).unwrap();
        let ask = Ask::within(Tick::from_nanos(ms * 1_000_000), cost, Duration::from_millis(longest));
        match self.quota.decide(&self.state, ask) {
            Transition::Allowed { wait, next, .. } => {
                self.state = next;
                Ok(wait)
            }
            Transition::Denied { retry: Retry::After(wait) } => Err(wait),
            Transition::Denied { retry } => panic!("{retry:?}"),
        }
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Sentinel's second is two buckets of 500 ms. Ten units at 499 ms lie in the bucket from 0 to 500 ms, which is
/// forgotten at 1,000 ms. So ten more pass there: 20 within 501 ms, at a threshold of ten.
#[test]
fn a_threshold_holds_in_every_second() {
    let mut log = Limit::of(Quota::per_second(10).sliding_log().unwrap());
    assert_eq!(log.ask(499, 10, 0), Ok(ms(0)));
    assert_eq!(log.ask(1_000, 10, 0), Err(ms(499)), "a second after the ten");
    // In buckets too; the bucket of 499 ms counts for a second after its end.
    let mut window = Limit::of(Quota::per_second(10).sliding_window(2).unwrap());
    assert_eq!(window.ask(499, 10, 0), Ok(ms(0)));
    assert_eq!(window.ask(1_000, 10, 0), Err(ms(500)));
}

/// A priority entry of Sentinel borrows from the next bucket. Ten units have passed at 100 ms, at a threshold of ten. An
/// entry at 600 ms waits 400 ms for the bucket that begins at 1,000 ms, in which the ten are forgotten: eleven within
/// 900 ms. At 500 ms, the beginning of a bucket, the wait would be 500 ms, which is refused.
#[test]
fn a_reservation_waits_until_the_limit_has_room() {
    for (at, expected) in [(600, Ok(ms(500))), (599, Err(ms(1))), (500, Err(ms(100)))] {
        let mut log = Limit::of(Quota::per_second(10).sliding_log().unwrap());
        assert_eq!(log.ask(100, 10, 0), Ok(ms(0)));
        assert_eq!(log.ask(at, 1, 500), expected, "at {at} ms");
    }
}

/// A parameter value of Sentinel with a threshold of 5 in 1 s is refilled once more than 1,000 ms have passed since the
/// last refill: nothing at 200 ms, and nothing at 1,000 ms.
#[test]
fn a_value_of_a_parameter_refills_all_the_time() {
    let mut value = Limit::of(Quota::per_second(5).gcra().unwrap());
    assert_eq!(value.ask(0, 5, 0), Ok(ms(0)));
    assert_eq!(value.ask(199, 1, 0), Err(ms(1)));
    assert_eq!(value.ask(200, 1, 0), Ok(ms(0)));
    assert_eq!(value.ask(1_000, 4, 0), Ok(ms(0)));
}

/// The queue of Sentinel, at ten a second and with a longest wait of 500 ms, answers the same: each takes 100 ms, the
/// seventh would wait for 600 ms.
#[test]
fn the_uniform_queue_has_sentinels_waits() {
    let mut queue = Limit::of(Quota::per_second(10).leaky_queue(6).unwrap());
    let waits: Vec<_> = (0..7).map(|_| queue.ask(0, 1, 500)).collect();
    let expected = [0, 100, 200, 300, 400, 500].map(|wait| Ok(ms(wait)));
    assert_eq!(waits[..6], expected);
    assert_eq!(waits[6], Err(ms(100)));
}

/// Sentinel's count of 1 or 2 with a cold factor of 3 lets no request through: its limit when cold is a third of the
/// count, 0.33 or 0.67, and one request needs a limit of 1.
#[test]
fn a_count_below_the_cold_factor_warms_up() {
    for count in [1, 2] {
        let rate = Rate::new(count, Duration::from_secs(1)).unwrap();
        let quota = Quota::per_second(count).warm_up(Duration::from_secs(10), ColdFactor::THREE).unwrap();
        let mut limit = Limit::of(quota);
        assert_eq!(limit.ask(0, 1, 0), Ok(ms(0)), "the first passes at once");
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..40 {
            // Whole milliseconds, upwards.
            let wait =
                limit.ask(now, 1, 0).map_or_else(|wait| wait.as_nanos().div_ceil(1_000_000) as u64, |_| 0);
            now += wait;
            assert_eq!(limit.ask(now, 1, 0), Ok(ms(0)), "at {now} ms");
            waits.push(wait);
        }
        assert!(waits.is_sorted_by(|one, next| one + 1 >= *next), "it only gets faster: {waits:?}");
        assert_eq!(waits.last(), Some(&(1000 / rate.count())), "and reaches its rate");
    }
}
