use super::*;
use crate::breaker::Condition;
use crate::bytes::{Bytes, Reader, Writer};
use crate::decision::{Ask, Cost, Retry};
use crate::guard::{Guard, Outcome};

fn refused(builder: BreakerBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn what_is_out_of_range_is_named() {
    let breaker = CircuitBreaker::builder;
    let second = Duration::from_secs(1);
    for (builder, told) in [
        (breaker().failure_ratio(0.0), "failure_ratio 0 is not a share; use more than 0, to 1"),
        (breaker().failure_ratio(f64::NAN), "failure_ratio NaN is not a share; use more than 0, to 1"),
        (breaker().slow_calls(second, 1.5), "slow_ratio 1.5 is not a share; use more than 0, to 1"),
        (breaker().consecutive(0), "consecutive 0 is not a number of failures; use 1 or more"),
        (breaker().window(Window::Calls(0)), "window 0 is not a number of calls to remember; use 1 to 16384"),
        (
            breaker().window(Window::Time { span: second, buckets: 0 }),
            "buckets 0 is not a number of buckets; use 1 to 256",
        ),
        (
            breaker().window(Window::Time { span: Duration::from_nanos(1), buckets: 2 }),
            "window 1ns is out of range; use at least 1 ns for each bucket, and at most a day",
        ),
        (
            breaker().window(Window::Calls(10)).min_calls(11),
            "min_calls 11 with a window of 10 calls is never reached; use at most the calls of the window",
        ),
        (
            breaker().window(Window::Calls(20)).failures(21),
            "failures 21 with a window of 20 calls is never reached; use at most the calls of the window",
        ),
        (
            breaker().window(Window::Calls(20)).failures(20).above(),
            "failures 20 with a window of 20 calls is never exceeded; use fewer than the calls of the window",
        ),
        (
            breaker().slow_calls(Duration::MAX, 0.5),
            "slow_after 18446744073.709551615s is not a latency; use up to 146 years",
        ),
        (
            breaker().open_for(Duration::ZERO),
            "open_for 0ns is not a time to stay open; use 1 ns to 146 years",
        ),
        (breaker().open_at_most(second), "open_at_most 1s is shorter than open_for or longer than 146 years"),
        (breaker().growth(0.9), "growth 0.9 is not a growth of open times; use 1 to 1000"),
        (breaker().jitter(-0.1), "jitter -0.1 is not a share; use 0 to 1"),
        (breaker().probes(0), "probes 0 is not a number of probes; use 1 to 65536"),
        (breaker().ttl(Duration::ZERO), "ttl 0ns is not a time to live; use 1 ns to 146 years"),
        (
            breaker().judgement(Judgement::Evidence(500_000)),
            "judgement 500000 millionths is not a risk; use 1 to 400000",
        ),
        (breaker().steps(17), "steps 17 is not a number of steps; use 0 to 16"),
        (
            breaker().evaluate(Evaluate::Every(Duration::ZERO)),
            "evaluate 0ns is not a span to evaluate at; use 1 ms or a thousandth of the window, to an hour",
        ),
        (
            breaker().forget_after(Duration::ZERO),
            "forget_after 0ns is not a time after which to forget; use 1 ns or more",
        ),
    ] {
        assert_eq!(refused(builder), told);
    }
    assert!(refused(breaker().without_failure_ratio()).contains("set failure_ratio, slow_calls"));
    let reached = breaker().window(Window::Calls(20));
    assert!(reached.clone().failures(20).build().is_ok() && reached.above().failures(19).build().is_ok());
}

#[test]
fn byte_forms_come_back() {
    let breaker = CircuitBreaker::builder;
    let slow = breaker().slow_calls(Duration::from_millis(1), 0.3).above().strictly_after();
    let counted = breaker()
        .window(Window::Calls(100))
        .consecutive(3)
        .failures(9)
        .ttl(Duration::MAX)
        .forget_after(Duration::MAX);
    let every =
        breaker().evaluate(Evaluate::Every(Duration::from_millis(500))).judgement(Judgement::Batch(4));
    for builder in [breaker(), slow, counted, every] {
        let built = builder.build().unwrap();
        let mut out = Writer::new(0);
        built.write(&mut out);
        let mut bytes = out.finish();
        let read = |bytes: &[u8]| CircuitBreaker::read(&mut Reader::open(bytes).unwrap().1);
        assert_eq!(read(&bytes), Ok(built));
        assert!((2..bytes.len()).all(|end| read(&bytes[..end]).is_err()));
        bytes[3..7].fill(255);
        assert!(read(&bytes).is_err(), "a window beyond all bounds");
    }
}

#[test]
fn open_times_grow_to_the_longest_and_are_only_shortened() {
    let built = CircuitBreaker::builder().build().unwrap();
    let open = built.parameters.open;
    let times = [0, 5, 10, 40, 60].map(|before| open.next(before * 1_000_000_000) / 1_000_000_000);
    assert_eq!(times, [5, 10, 20, 60, 60]);
    let tick = crate::Tick::from_nanos;
    let drawn_by = |breaker: &CircuitBreaker, at: u64, first: u64| {
        breaker.parameters.open.jittered(1_000_000, tick(at), tick(first), tick(first + 9))
    };
    let drawn: Vec<u64> = (0..1000).map(|at| drawn_by(&built, at, 0)).collect();
    assert!(drawn.iter().all(|time| (800_000..=1_000_000).contains(time)));
    let sum: u64 = drawn.iter().sum();
    assert!((890_000..910_000).contains(&(sum / 1000)), "spread evenly: {sum}");
    let other = CircuitBreaker::builder().seed(1).build().unwrap();
    assert_ne!(drawn_by(&built, 7, 0), drawn_by(&other, 7, 0));
    // Keys that trip at the same tick, as they do if their figures are compared at the same boundary.
    let drawn: Vec<u64> = (0..1000).map(|first| drawn_by(&built, 7, first)).collect();
    let sum: u64 = drawn.iter().sum();
    assert!((890_000..910_000).contains(&(sum / 1000)), "spread evenly: {sum}");
}

/// A breaker that compares its figures at each tenth of a second, after failures at some tick.
fn failed_at(tick: u64) -> (CircuitBreaker, crate::breaker::CircuitBreakerState) {
    let every = Evaluate::Every(Duration::from_millis(100));
    let breaker = CircuitBreaker::builder().consecutive(2).evaluate(every).build().unwrap();
    let at = crate::Tick::from_nanos(tick);
    let mut state = breaker.fresh(at);
    for _ in 0..2 {
        let receipt = breaker.enter_in_place(&mut state, Ask::allow(at, Cost::ONE), &mut |_| ()).unwrap();
        breaker.leave_in_place(&mut state, at, &receipt, None, Outcome::Failure, &mut |_| ());
    }
    (breaker, state)
}

/// Regression: keys that tripped at the same boundary were all open for the same time, and all tried their services
/// at the same moment.
#[test]
fn keys_that_trip_at_one_boundary_are_open_for_different_times() {
    let mut untils: Vec<_> = (0..50)
        .map(|nth| {
            let (breaker, state) = failed_at(1_000_000 + nth);
            match breaker.condition(&state, crate::Tick::from_nanos(150_000_000)) {
                Condition::Open { since, until, .. } => {
                    assert_eq!(since, crate::Tick::from_nanos(100_000_000));
                    until
                }
                other => panic!("{other:?}"),
            }
        })
        .collect();
    untils.sort_unstable();
    untils.dedup();
    assert!(untils.len() > 45, "{untils:?}");
}

/// Regression: from the first boundary on, each refusal copied the state, window included, which was most of the cost
/// of a service that is down.
#[test]
fn refusals_copy_nothing_where_figures_are_compared_now_and_then() {
    let (breaker, tripped) = failed_at(1_000_000);
    let ms = |ms: u64| crate::Tick::from_nanos(ms * 1_000_000);
    let is_copied = |state: &crate::breaker::CircuitBreakerState, at| {
        matches!(breaker.at(state, at).0, std::borrow::Cow::Owned(_))
    };
    let refused = |state: &crate::breaker::CircuitBreakerState, at: crate::Tick| {
        breaker.refused_at(&state.inner, at).expect("known without a copy")
    };
    // The stored state is still closed, but the boundary that has passed shows that it is open.
    assert_eq!(refused(&tripped, ms(99)), None);
    assert!(!is_copied(&tripped, ms(99)), "no boundary has passed");
    let Some(Retry::After(left)) = refused(&tripped, ms(1000)) else { panic!("it is open") };
    let condition = breaker.condition(&tripped, ms(1000));
    assert!(
        matches!(condition, Condition::Open { until, .. } if until == ms(1000).after(left)),
        "{condition:?}"
    );
    let standing = breaker.standing(&tripped, ms(1000));
    assert_eq!((standing.remaining, standing.reset_after), (0, left));
    assert_eq!(refused(&tripped, ms(1000).after(left)), None, "a probe");
    assert_eq!(breaker.standing(&tripped, ms(1000).after(left)).remaining, 1);

    // Once the stored state is open, boundaries no longer change it.
    let mut open = tripped.clone();
    breaker.force_in_place(&mut open, ms(150), None, &mut |_| ());
    for at in [151, 300, 1000] {
        assert!(!is_copied(&open, ms(at)));
        assert!(matches!(refused(&open, ms(at)), Some(Retry::After(_))));
    }
    // The same for a state in whose window no figure is too large.
    let receipt = Ask::allow(ms(1), Cost::ONE);
    let mut well = breaker.fresh(ms(1));
    let receipt = breaker.enter_in_place(&mut well, receipt, &mut |_| ()).unwrap();
    breaker.leave_in_place(&mut well, ms(1), &receipt, None, Outcome::Failure, &mut |_| ());
    assert!(!is_copied(&well, ms(950)));
}
