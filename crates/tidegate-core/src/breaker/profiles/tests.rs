//! Traces with the numbers from the documents and sources of the other libraries.

use super::*;
use crate::breaker::{CircuitBreakerState, Condition};
use crate::decision::{Ask, Cost, Receipt, Retry};
use crate::guard::{Guard, Outcome};
use crate::time::Tick;

use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};

const MS: u64 = 1_000_000;
/// The start of every trace: a multiple of all windows.
const START: u64 = 1_699_999_980_000 * MS;

/// A breaker under a clock in milliseconds.
struct Trace {
    breaker: CircuitBreaker,
    state: CircuitBreakerState,
}

fn ms(at: u64) -> Tick {
    Tick::from_nanos(START + at * MS)
}

impl Trace {
    fn of(builder: BreakerBuilder) -> Self {
        let breaker = builder.build().unwrap();
        Self { state: breaker.fresh(ms(0)), breaker }
    }

    fn enter(&mut self, at: Tick) -> Result<Receipt, Retry> {
        self.breaker.enter_in_place(&mut self.state, Ask::allow(at, Cost::ONE), &mut |_| ())
    }

    fn leave(&mut self, at: Tick, receipt: &Receipt, outcome: Outcome) {
        self.breaker.leave_in_place(&mut self.state, at, receipt, None, outcome, &mut |_| ());
    }

    /// Makes calls at one millisecond that take no time; all have to enter.
    fn calls(&mut self, at: u64, outcomes: &[(u64, Outcome)]) {
        for (count, outcome) in outcomes {
            for _ in 0..*count {
                let receipt = self.enter(ms(at)).unwrap();
                self.leave(ms(at), &receipt, *outcome);
            }
        }
    }

    fn slow_call(&mut self, at: u64, latency: u64) {
        let receipt = self.enter(ms(at)).unwrap();
        self.leave(ms(at + latency), &receipt, Success);
    }

    fn is(&self, at: u64) -> &'static str {
        self.breaker.condition(&self.state, ms(at)).as_str()
    }

    fn open_until(&self, at: u64) -> u64 {
        match self.breaker.condition(&self.state, ms(at)) {
            Condition::Open { until, .. } => (until.as_nanos() - START) / MS,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn hystrix_trips_at_half_of_twenty_at_the_next_snapshot() {
    let mut trace = Trace::of(CircuitBreaker::hystrix());
    trace.calls(100, &[(10, Success), (9, Failure)]);
    assert_eq!(trace.is(600), "closed", "nineteen calls");
    trace.calls(700, &[(1, Failure)]);
    assert_eq!(trace.is(999), "closed", "up to 500 ms late");
    assert_eq!((trace.is(1_000), trace.open_until(1_000)), ("open", 6_000));
}

#[test]
fn hystrix_counts_rejections_and_below_half_stays_closed() {
    let mut trace = Trace::of(CircuitBreaker::hystrix());
    trace.calls(100, &[(101, Success), (100, Overloaded), (50, Ignored)]);
    assert_eq!(trace.is(20_000), "closed", "49.75 %");
    trace.calls(200, &[(1, Overloaded)]);
    assert_eq!(trace.is(500), "open", "50 %");
}

#[test]
fn hystrix_tries_strictly_after_five_seconds_with_one_call() {
    let mut trace = Trace::of(CircuitBreaker::hystrix());
    trace.calls(100, &[(20, Failure)]);
    assert_eq!(trace.enter(ms(5_500)), Err(Retry::After(Duration::from_nanos(1))));
    let probe = trace.enter(Tick::from_nanos(START + 5_500 * MS + 1)).unwrap();
    assert_eq!(trace.enter(ms(5_501)), Err(Retry::Unknown), "one winner");
    trace.leave(ms(5_600), &probe, Failure);
    assert_eq!(trace.open_until(5_600), 10_600, "the sleep starts again");
    let probe = trace.enter(ms(10_601)).unwrap();
    trace.leave(ms(10_700), &probe, Success);
    trace.calls(10_701, &[(9, Failure)]);
    assert_eq!(trace.is(11_500), "closed", "the window was cleared");
}

#[test]
fn hystrix_forgets_after_ten_seconds() {
    let mut trace = Trace::of(CircuitBreaker::hystrix());
    trace.calls(100, &[(10, Failure), (9, Success)]);
    trace.calls(10_500, &[(10, Failure)]);
    assert_eq!(trace.is(15_000), "closed", "ten of ten are too few");
    // Each comparison is over 20 complete snapshots: the first one still counts at 10 s.
    let mut trace = Trace::of(CircuitBreaker::hystrix());
    trace.calls(100, &[(10, Failure), (9, Success)]);
    trace.calls(9_900, &[(1, Failure)]);
    assert_eq!((trace.is(9_999), trace.is(10_000)), ("closed", "open"), "11 of 20");
}

#[test]
fn resilience4j_judges_a_hundred_calls_and_no_fewer() {
    let mut trace = Trace::of(CircuitBreaker::resilience4j());
    trace.calls(0, &[(99, Failure)]);
    assert_eq!(trace.is(0), "closed", "unknown below the minimum");
    trace.calls(1, &[(1, Success)]);
    assert_eq!((trace.is(1), trace.open_until(1)), ("open", 60_001));
    let mut half = Trace::of(CircuitBreaker::resilience4j());
    half.calls(0, &[(51, Success), (49, Failure)]);
    assert_eq!(half.is(0), "closed");
    half.calls(900_000, &[(1, Failure)]);
    assert_eq!(half.is(900_000), "open", "half of the last hundred: a success was pushed out, however old");
}

#[test]
fn resilience4j_trips_when_every_call_took_more_than_sixty_seconds() {
    let mut trace = Trace::of(CircuitBreaker::resilience4j());
    for call in 0..99 {
        trace.slow_call(call * 60_001, 60_001);
    }
    trace.slow_call(99 * 60_001, 60_000);
    assert_eq!(trace.is(100 * 60_001), "closed", "one took 60 s and no more");
    for call in 100..200 {
        assert_eq!(trace.is(call * 60_001), "closed");
        trace.slow_call(call * 60_001, 60_001);
    }
    assert_eq!(trace.is(200 * 60_001), "open");
}

/// Regression: a call that ended after its time to live, 60 s by default, did not count. So the profile's rule of slow
/// calls never fired, and time-outs of more than 60 s never opened it.
#[test]
fn resilience4j_counts_calls_that_are_slow_only_after_their_time_to_live() {
    let hung = Duration::from_secs(75).as_millis() as u64;
    for outcome in [Success, Failure] {
        let mut one_by_one = Trace::of(CircuitBreaker::resilience4j());
        for call in 0..100 {
            let receipt = one_by_one.enter(ms(call * hung)).unwrap();
            one_by_one.leave(ms((call + 1) * hung), &receipt, outcome);
        }
        assert_eq!(one_by_one.is(100 * hung), "open", "{outcome:?}");
        let mut together = Trace::of(CircuitBreaker::resilience4j());
        let receipts: Vec<Receipt> = (0..100).map(|_| together.enter(ms(0)).unwrap()).collect();
        receipts.iter().for_each(|receipt| together.leave(ms(hung), receipt, outcome));
        assert_eq!(together.is(hung), "open", "{outcome:?}");
    }
    let mut late = Trace::of(CircuitBreaker::builder().slow_calls(SECOND, 1.0).consecutive(1));
    let one = late.enter(ms(0)).unwrap();
    assert_eq!(late.breaker.full_at(&late.state), Some(ms(61_000)), "kept for as long as its calls count");
    late.leave(ms(61_000), &one, Failure);
    assert_eq!(late.is(61_000), "closed");
}

#[test]
fn resilience4j_lets_ten_in_and_judges_them_together() {
    for (failures, end) in [(4, "closed"), (5, "open")] {
        let mut trace = Trace::of(CircuitBreaker::resilience4j());
        trace.calls(0, &[(100, Failure)]);
        assert_eq!(trace.enter(ms(60_000)), Err(Retry::After(Duration::from_nanos(1))), "strictly after");
        let probes: Vec<Receipt> = (0..10).map(|_| trace.enter(ms(60_001)).unwrap()).collect();
        assert_eq!(trace.enter(ms(60_001)), Err(Retry::Unknown));
        for (nth, probe) in probes.iter().enumerate() {
            assert_eq!(trace.is(60_002), "half-open");
            trace.leave(ms(60_002), probe, if nth < failures { Failure } else { Success });
            if nth < 9 {
                assert_eq!(trace.enter(ms(60_002)), Err(Retry::Unknown), "ten permits and no more");
            }
        }
        assert_eq!(trace.is(60_003), end, "{failures} of 10");
    }
}

#[test]
fn resilience4j_gives_the_permit_of_an_ignored_call_back() {
    let mut trace = Trace::of(CircuitBreaker::resilience4j());
    trace.calls(0, &[(100, Failure)]);
    let probes: Vec<Receipt> = (0..10).map(|_| trace.enter(ms(60_001)).unwrap()).collect();
    trace.leave(ms(60_002), &probes[0], Ignored);
    assert!(trace.enter(ms(60_003)).is_ok());
}

#[test]
fn resilience4j_evicts_whole_seconds() {
    let window = Window::Time { span: Duration::from_secs(10), buckets: 10 };
    let mut trace = Trace::of(CircuitBreaker::resilience4j().window(window).min_calls(2));
    trace.calls(999, &[(1, Failure)]);
    trace.calls(10_000, &[(1, Failure)]);
    assert_eq!(trace.is(10_000), "closed", "the second of the first call is gone after 9,001 ms");
    trace.calls(19_999, &[(1, Success)]);
    assert_eq!(trace.is(19_999), "open");
}

#[test]
fn sentinel_trips_strictly_above() {
    let wait = Duration::from_secs(3);
    let ratio = |share| Trace::of(CircuitBreaker::sentinel(SentinelRule::ErrorRatio(share), wait));
    let mut half = ratio(0.5);
    half.calls(0, &[(3, Success), (3, Failure)]);
    assert_eq!(half.is(0), "closed", "half is not above");
    half.calls(0, &[(1, Failure)]);
    assert_eq!((half.is(0), half.open_until(0)), ("open", 3_000));
    let mut all = ratio(1.0);
    all.calls(0, &[(4, Failure)]);
    assert_eq!(all.is(0), "closed", "fewer than five");
    all.calls(0, &[(1, Failure)]);
    assert_eq!(all.is(0), "open", "a ratio of one trips at it");
    let mut count = Trace::of(CircuitBreaker::sentinel(SentinelRule::ErrorCount(5), wait));
    count.calls(0, &[(5, Failure)]);
    assert_eq!(count.is(0), "closed");
    count.calls(0, &[(1, Failure)]);
    assert_eq!(count.is(0), "open");
}

#[test]
fn sentinel_counts_in_one_tumbling_second() {
    let mut trace = Trace::of(CircuitBreaker::sentinel(SentinelRule::ErrorCount(5), SECOND));
    trace.calls(999, &[(5, Failure)]);
    trace.calls(1_000, &[(5, Failure)]);
    assert_eq!(trace.is(1_000), "closed", "ten in two milliseconds, five in each second");
}

#[test]
fn sentinel_closes_after_one_probe_that_is_not_slow() {
    let rule = SentinelRule::SlowRatio(Duration::from_millis(50), 1.0);
    let mut trace = Trace::of(CircuitBreaker::sentinel(rule, Duration::from_secs(2)));
    for call in 0..5 {
        trace.slow_call(100 * call, 51);
    }
    assert_eq!((trace.is(451), trace.open_until(451)), ("open", 2_451));
    let probe = trace.enter(ms(2_451)).unwrap();
    assert!(trace.enter(ms(2_451)).is_err(), "a single probe");
    trace.leave(ms(2_502), &probe, Success);
    assert_eq!(trace.open_until(2_502), 4_502, "51 ms are slow");
    let probe = trace.enter(ms(4_502)).unwrap();
    trace.leave(ms(4_552), &probe, Failure);
    assert_eq!(trace.is(4_552), "closed", "50 ms are not; that it failed does not matter to this rule");
}

#[test]
fn a_blocked_probe_of_sentinel_does_not_move_the_next_one() {
    let mut trace = Trace::of(CircuitBreaker::sentinel(SentinelRule::ErrorRatio(0.5), SECOND));
    trace.calls(0, &[(5, Failure)]);
    let probe = trace.enter(ms(1_000)).unwrap();
    trace.leave(ms(1_000), &probe, Ignored);
    assert!(trace.enter(ms(1_000)).is_ok(), "whoever comes next is the probe");
}

#[test]
fn sentinel_for_go_trips_at_its_threshold_and_closes_after_several_probes() {
    let go = |probes| CircuitBreaker::sentinel_go(SentinelRule::ErrorRatio(0.5), SECOND, probes);
    let mut trace = Trace::of(go(3));
    trace.calls(0, &[(3, Success), (3, Failure)]);
    assert_eq!(trace.is(0), "open", "half is enough");
    trace.calls(1_000, &[(2, Success)]);
    assert_eq!(trace.is(1_000), "half-open");
    trace.calls(1_000, &[(1, Failure)]);
    assert_eq!(trace.open_until(1_000), 2_000, "one failure opens it again");
    trace.calls(2_000, &[(3, Success)]);
    assert_eq!(trace.is(2_000), "closed");
    let mut count = Trace::of(CircuitBreaker::sentinel_go(SentinelRule::ErrorCount(5), SECOND, 0));
    count.calls(0, &[(5, Failure)]);
    assert_eq!(count.is(0), "open");
    count.calls(1_000, &[(1, Success)]);
    assert_eq!(count.is(1_000), "closed", "probe number 0 is a single one");
}

#[test]
fn polly_looks_when_a_call_fails_and_tries_with_one() {
    let mut trace = Trace::of(CircuitBreaker::polly());
    trace.calls(0, &[(89, Success), (10, Failure), (1, Success)]);
    assert_eq!(trace.is(0), "closed", "a tenth of a hundred, but the last call was a success");
    trace.calls(1, &[(1, Failure)]);
    assert_eq!((trace.is(1), trace.open_until(1)), ("open", 5_001));
    assert_eq!(
        trace.enter(ms(2_001)),
        Err(Retry::After(Duration::from_secs(3))),
        "with a time to retry after"
    );
    let probe = trace.enter(ms(5_001)).unwrap();
    assert!(trace.enter(ms(5_001)).is_err(), "others are refused");
    trace.leave(ms(5_002), &probe, CallersFault);
    assert_eq!(trace.is(5_002), "closed");
    let mut window = Trace::of(CircuitBreaker::polly());
    window.calls(0, &[(99, Failure)]);
    window.calls(30_000, &[(1, Failure)]);
    assert_eq!(window.is(30_000), "closed", "30 s in ten windows");
}

#[test]
fn tower_resilience_waits_for_a_hundred_and_thirty_seconds() {
    let mut trace = Trace::of(CircuitBreaker::tower_resilience());
    trace.calls(0, &[(50, Success), (49, Failure)]);
    assert_eq!(trace.is(0), "closed");
    trace.calls(0, &[(1, Failure)]);
    assert_eq!((trace.is(0), trace.open_until(0)), ("open", 30_000));
    trace.calls(30_000, &[(1, Success)]);
    assert_eq!(trace.is(30_000), "closed");
}

/// A breaker with one probe that decides, as those of failsafe-go, linkerd and Finagle are.
fn one_probe() -> BreakerBuilder {
    CircuitBreaker::builder().jitter(0.0).probes(1).judgement(Judgement::Successes(1)).steps(0)
}

/// failsafe-go's defaults, by knobs: one failure opens for 60 s, and one success closes.
#[test]
fn failsafe_go_opens_at_one_failure_and_closes_at_one_success() {
    let knobs = one_probe().without_failure_ratio().consecutive(1);
    let mut trace = Trace::of(knobs.open_for(Duration::from_secs(60)).growth(1.0));
    trace.calls(0, &[(1_000, Success), (1, Failure)]);
    assert_eq!((trace.is(0), trace.open_until(0)), ("open", 60_000));
    trace.calls(60_000, &[(1, Failure)]);
    assert_eq!(trace.open_until(60_000), 120_000);
    trace.calls(120_000, &[(1, Success)]);
    assert_eq!(trace.is(120_000), "closed");
}

/// linkerd's breaker of an endpoint, by knobs: seven failures in a row, then a penalty from 1 s to 60 s that grows with
/// each failed probe, and begins again after a recovery. The time to live is longer than the penalty: a breaker that is not
/// used for that time becomes new, also in the middle of an outage.
#[test]
fn linkerd_waits_longer_after_each_failed_probe() {
    let knobs = one_probe().without_failure_ratio().consecutive(7);
    let knobs = knobs.open_for(SECOND).growth(2.0).open_at_most(Duration::from_secs(60));
    let knobs = knobs.forget_after(Duration::from_nanos(1)).ttl(Duration::from_secs(120));
    let mut trace = Trace::of(knobs);
    trace.calls(0, &[(6, Failure), (1, Success), (6, Failure)]);
    assert_eq!(trace.is(0), "closed", "six in a row");
    trace.calls(0, &[(1, Failure)]);
    let mut now = 0;
    for penalty in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(trace.open_until(now), now + penalty * 1_000);
        // The probe comes late.
        now = trace.open_until(now) + 59_000;
        trace.calls(now, &[(1, Failure)]);
    }
    now = trace.open_until(now);
    trace.calls(now, &[(1, Success)]);
    assert_eq!(trace.is(now), "closed");
    trace.calls(now + 1, &[(7, Failure)]);
    assert_eq!(trace.open_until(now + 1), now + 1 + 1_000, "and not 60 s");
}

/// The success ratio of linkerd's unified mode (10 s in ten buckets) and of Finagle's accrual (30 s), by knobs: below 0.8
/// of at least five calls. Finagle also counts five failures in a row.
#[test]
fn linkerd_and_finagle_trip_below_four_fifths_of_five() {
    for secs in [10, 30] {
        let window = Window::Time { span: Duration::from_secs(secs), buckets: 10 };
        let ratio = || one_probe().failure_ratio(0.2).above().min_calls(5).window(window);
        let mut trace = Trace::of(ratio());
        trace.calls(0, &[(1, Failure), (3, Success)]);
        assert_eq!(trace.is(0), "closed", "three of four, and four are too few");
        trace.calls(0, &[(1, Success)]);
        assert_eq!(trace.is(0), "closed", "0.8 is not below");
        trace.calls(0, &[(1, Failure)]);
        assert_eq!(trace.is(0), "open", "four of six");
        let mut forgets = Trace::of(ratio());
        forgets.calls(0, &[(4, Failure)]);
        forgets.calls(secs * 1_000, &[(4, Failure)]);
        assert_eq!(forgets.is(secs * 1_000), "closed", "four of four are too few");
        let mut in_a_row = Trace::of(ratio().consecutive(5));
        in_a_row.calls(0, &[(100, Success), (4, Failure)]);
        assert_eq!(in_a_row.is(0), "closed");
        in_a_row.calls(0, &[(1, Failure)]);
        assert_eq!(in_a_row.is(0), "open", "100 of 105 succeeded");
    }
}
