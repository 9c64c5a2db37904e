//! How each public constructor and call handles the numbers 0, 1 and the largest: it returns an error that names the
//! number, or a result that works. It never panics, and never silently uses another number.
#![allow(clippy::disallowed_methods, reason = "instants of the machine's clock are what is tested")]

use std::time::{Duration, Instant};

use tidegate::clock::ManualClock;
use tidegate::deadline::Deadline;
use tidegate::gate::Check;
use tidegate::limiter::queue::JobQueue;
use tidegate::limiter::{NotACost, QuotaBuilder, Rate, Retry, TakeError};
use tidegate::policy::{Access, Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{CapacityError, Fallback, MemoryStore, Seed};
use tidegate::{Bulkhead, Cost, Gate, KeyedLimiter, Limiter, Quota, QuotaError, Tick};
use tidegate_core::rate::{CalendarUnit, ColdFactor};

/// Builds every algorithm from one builder, and one more number for the algorithms that take one.
fn algorithms(builder: QuotaBuilder, number: u64) -> Vec<(&'static str, Result<Quota, QuotaError>)> {
    let span = Duration::from_secs(number);
    vec![
        ("gcra", builder.gcra()),
        ("gcra burst", builder.burst(number).gcra()),
        ("fixed window", builder.fixed_window()),
        ("calendar window", builder.calendar_window(CalendarUnit::Day, "UTC")),
        ("sliding window", builder.sliding_window(number)),
        ("sliding counter", builder.sliding_counter()),
        ("sliding log", builder.sliding_log()),
        ("token bucket", builder.burst(number).token_bucket()),
        ("interval bucket", builder.burst(number).interval_bucket()),
        ("aligned bucket", builder.burst(number).aligned_bucket()),
        ("leaky bucket", builder.burst(number).leaky_bucket()),
        ("leaky queue", builder.leaky_queue(number)),
        ("leaky queue burst", builder.burst(number).leaky_queue(1)),
        ("warm-up", builder.warm_up(span, ColdFactor::THREE)),
        ("concurrency", Quota::concurrency(number, span)),
    ]
}

/// Calls every operation of a limit.
fn use_up(quota: &Quota) {
    let clock = ManualClock::at(Tick::from_secs(1_800_000_000));
    let limiter = Limiter::new(quota.clone())
        .expect("a quota that was made, and room for one key")
        .with_clock(clock.clone());
    let keyed = KeyedLimiter::new(quota.clone(), 1)
        .expect("a quota that was made, and room for one key")
        .with_clock(clock.clone());
    for cost in [1, u64::MAX, 2] {
        let _ = (limiter.allow_n(cost), limiter.peek_n(cost), limiter.standing());
        let _ = (keyed.allow_n(u64::MAX, cost), keyed.peek_n(0, cost), keyed.standing(""));
        if let Ok(held) = limiter.reserve(cost, Duration::MAX) {
            held.settle(u64::MAX);
        }
        clock.advance(Duration::MAX);
        clock.set(Tick::MAX);
        clock.set(Tick::EPOCH);
    }
}

#[test]
fn quotas_of_zero_one_and_the_largest_numbers() {
    for count in [0, 1, Rate::MAX_COUNT, Rate::MAX_COUNT + 1, u64::MAX] {
        for period in [Duration::ZERO, Duration::from_nanos(1), Rate::MAX_PERIOD, Duration::MAX] {
            for number in [0, 1, 64, Rate::MAX_COUNT, u64::MAX] {
                for (name, quota) in algorithms(Quota::per(count, period), number) {
                    match quota {
                        Ok(quota) => {
                            assert!(
                                name == "concurrency" || count > 0,
                                "{name}: a count of zero is not a limit"
                            );
                            use_up(&quota);
                        }
                        Err(error) => {
                            let told = error.to_string();
                            assert!(
                                told.contains("use ") || told.contains("leave") || told.contains("at most"),
                                "{name} {count} {period:?} {number}: {told}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tables_of_no_keys_and_of_more_than_any_machine_holds() {
    let seed = Seed::random();
    for keys in [0, usize::MAX, usize::MAX / 2, (1 << 32) + 1] {
        let told = format!("capacity {keys} is not a number of keys; use 1 to 4294967296");
        assert_eq!(KeyedLimiter::new(Quota::per_second(1), keys).unwrap_err().to_string(), told);
        let wrong = Some(CapacityError::OutOfRange { keys });
        assert_eq!(MemoryStore::with_capacity(keys).err(), wrong);
        assert_eq!(MemoryStore::with_full_keys(keys).err(), wrong);
        assert_eq!(MemoryStore::with_seed(keys, &seed).err(), wrong);
        assert_eq!(MemoryStore::with_full_keys_and_seed(keys, &seed).err(), wrong);
        assert_eq!(Gate::in_memory(PolicySet::default(), keys).err(), wrong);
        let pieces: Vec<Vec<u8>> =
            MemoryStore::with_seed(1, &seed).unwrap().export().into_iter().flatten().collect();
        let restored = MemoryStore::restore(keys, &seed, pieces).unwrap_err().to_string();
        assert_eq!(restored, format!("a table cannot have room for {keys} keys; use 1 to 4294967296"));
    }
    let one = KeyedLimiter::new(Quota::per_second(1), 1).unwrap().with_full_keys();
    assert!(one.allow("ann").is_allowed());
}

#[test]
fn places_of_bulkheads_and_queues() {
    for max in [0, u64::MAX] {
        let told = Bulkhead::new(max).unwrap_err().to_string();
        assert_eq!(told, format!("max {max} is not a number of places; use 1 to 65536"));
    }
    let one = Bulkhead::new(1).unwrap();
    assert!(one.change(0).is_err() && one.change(u64::MAX).is_err());
    let crowded = one.with_room(usize::MAX);
    let _inside = crowded.try_enter().unwrap();
    let refused = |places: i64| crowded.enter_n(places).now().unwrap_err().retry();
    assert_eq!([0, -1, 2, i64::MAX].map(refused), [Retry::Never; 4]);
    assert_eq!(refused(1), Retry::Unknown);
    assert_eq!(crowded.with_room(0).standing().remaining, 1);

    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let told = JobQueue::new(rate, 0).unwrap_err().to_string();
    assert_eq!(told, "places 0 leaves no room for a job; use 1 or more");
    for places in [1, usize::MAX] {
        let (queue, _worker) =
            JobQueue::with_clock(rate, places, Duration::MAX, ManualClock::default()).unwrap();
        assert!(queue.submit_within(async {}, Duration::MAX).is_ok());
    }
}

/// Regression: the calls that decide at once answered a cost of zero with "never granted", and a gate's check with an
/// error.
#[test]
fn a_cost_of_zero_or_less_is_one_error_everywhere_and_spends_nothing() {
    let clock = ManualClock::default();
    let limiter = Limiter::new(Quota::per_minute(10)).unwrap().with_clock(clock.clone());
    let keyed = KeyedLimiter::new(Quota::per_minute(10), 10).unwrap().with_clock(clock);
    let places = Bulkhead::new(10).unwrap();
    for cost in [0, -1, i64::MIN] {
        let error = NotACost::TooSmall { found: cost.into() };
        let decided = [
            limiter.allow_n(cost),
            limiter.peek_n(cost),
            keyed.allow_n("ann", cost),
            keyed.peek_n("ann", cost),
        ];
        assert!(decided.iter().all(|answer| *answer == Err(error)), "{decided:?}");
        let taken = [
            limiter.reserve(cost, Duration::MAX).unwrap_err(),
            keyed.reserve("ann", cost, Duration::MAX).unwrap_err(),
            limiter.wait(cost).within(Duration::MAX).blocking().unwrap_err(),
            keyed.wait("ann", cost).within(Duration::MAX).blocking().unwrap_err(),
            limiter.wait(cost).until(Tick::MAX).blocking().unwrap_err(),
            places.enter_n(cost).now().unwrap_err(),
        ];
        for refused in taken {
            assert_eq!(refused, TakeError::NotACost(error));
            assert_eq!((refused.retry(), refused.to_string()), (Retry::Never, error.to_string()));
        }
    }
    // No word of a peek, which a bulkhead does not have.
    assert_eq!(places.enter_n(0).now().unwrap_err().to_string(), "0 is not a cost; use 1 or more");
    // Costs of every integer type, and of types that cannot be zero.
    assert!(limiter.allow_n(1_u8).unwrap().is_allowed() && limiter.allow_n(1_usize).unwrap().is_allowed());
    let (Ok(three), Ok(four)) = (limiter.allow_n(std::num::NonZeroU32::MIN), limiter.allow_n(Cost::ONE))
    else {
        panic!("these are costs");
    };
    assert!(three.is_allowed() && four.is_allowed());
    assert_eq!((limiter.standing().remaining, keyed.standing("ann").remaining), (6, 10));
    assert_eq!(limiter.allow_n(u64::MAX).unwrap().retry(), Retry::Never);
    assert_eq!(limiter.allow_n(u128::MAX), Err(NotACost::TooLarge { found: u128::MAX }));
}

#[test]
fn a_check_of_no_cost_is_an_error_and_charges_nothing() {
    let all = Policy::new("all", Limit::new(Quota::per_minute(10).gcra().unwrap(), "10/min"));
    let gate =
        Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 10).unwrap().with_clock(ManualClock::default());
    let request = Descriptor::new();
    let none = Check::of(&request).cost(0);
    let told =
        "the cost of a check is not a number from 1 to 18446744073709551615; peek to look without spending";
    assert_eq!(gate.check(none).now().unwrap_err().to_string(), told);
    assert!(gate.check(none.peek()).now().is_err() && gate.admit(none).now().is_err());
    assert!(gate.check_together(&[Check::of(&request), none]).now().is_err());
    let each = gate.check_each(&[Check::of(&request), none, Check::of(&request).cost(2)]).now();
    let allowed: Vec<bool> =
        each.iter().map(|decision| decision.as_ref().is_ok_and(|decision| decision.allowed)).collect();
    assert_eq!(allowed, [true, false, true]);
    assert_eq!(
        gate.check(Check::of(&request).peek()).now().unwrap().limits[0].decision.standing.remaining,
        7
    );
    assert!(!gate.check(Check::of(&request).cost(u64::MAX)).now().unwrap().allowed);
}

#[test]
fn deadlines_and_spans_at_their_ends() {
    let limiter = Limiter::new(Quota::per_hour(1)).unwrap();
    let past = Instant::now();
    assert!(limiter.allow().is_allowed());
    for deadline in [Deadline::from(past), Deadline::from(Tick::EPOCH)] {
        let late = limiter.wait(1).until(deadline).blocking().unwrap_err();
        assert_eq!(late.retry(), Retry::Never, "nobody waits for it any more");
    }
    let soon = Instant::now() + Duration::from_secs(60);
    let refused = limiter.wait(1).until(soon).blocking().unwrap_err();
    assert!(
        refused.retry() > Retry::After(Duration::from_secs(3000)),
        "known at once: {:?}",
        refused.retry()
    );
    assert!(limiter.wait(1).within(Duration::ZERO).blocking().is_err());
    let bulkhead = Bulkhead::new(1).unwrap();
    assert!(bulkhead.enter().until(soon).blocking().is_ok());
    assert_eq!(bulkhead.enter().until(past).blocking().unwrap_err().retry(), Retry::Never);
}

#[test]
fn prefixes_of_networks() {
    for bits in [0, 129, u8::MAX] {
        let told = PolicySet::with(Vec::new(), Access::default(), bits).unwrap_err().to_string();
        assert_eq!(
            told,
            format!("{bits} bits are not a prefix of an IPv6 network; use 1 to 128, usually 64")
        );
    }
    assert!(PolicySet::with(Vec::new(), Access::default(), 1).is_ok());
}

#[test]
fn fallbacks_of_any_number_of_nodes() {
    for nodes in [0, 1, u64::MAX] {
        let engine = MemoryStore::with_capacity(1).unwrap();
        let store = Fallback::around(engine, ManualClock::default()).nodes(nodes).build();
        assert!(store.health().down.is_none());
    }
}
