use super::*;
use crate::bytes::{Bytes, Reader, Writer};

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
            "window 1ns is not a window of time; use 1 ns for each bucket, to a day",
        ),
        (
            breaker().window(Window::Calls(10)).min_calls(11),
            "min_calls 11 is more than the window remembers; use at most its calls",
        ),
        (
            breaker().open_for(Duration::ZERO),
            "open_for 0ns is not a time to stay open; use 1 ns to 146 years",
        ),
        (breaker().open_at_most(second), "open_at_most 1s is not a longest time; use open_for, to 146 years"),
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
}

#[test]
fn byte_forms_come_back() {
    let breaker = CircuitBreaker::builder;
    let slow = breaker().slow_calls(Duration::from_millis(1), 0.3).above().strictly_after();
    let counted =
        breaker().window(Window::Calls(100)).consecutive(3).failures(9).without_ttl().never_forget();
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
    let open = built.by.open;
    let times = [0, 5, 10, 40, 60].map(|before| open.grown(before * 1_000_000_000) / 1_000_000_000);
    assert_eq!(times, [5, 10, 20, 60, 60]);
    let drawn: Vec<u64> = (0..1000).map(|at| open.jittered(1_000_000, crate::Tick::from_nanos(at))).collect();
    assert!(drawn.iter().all(|time| (800_000..=1_000_000).contains(time)));
    let sum: u64 = drawn.iter().sum();
    assert!((890_000..910_000).contains(&(sum / 1000)), "spread evenly: {sum}");
    let other = CircuitBreaker::builder().seed(1).build().unwrap();
    let at = crate::Tick::from_nanos(7);
    assert_ne!(open.jittered(1_000_000, at), other.by.open.jittered(1_000_000, at));
}
