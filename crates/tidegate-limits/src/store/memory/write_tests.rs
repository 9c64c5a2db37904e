//! What a decision writes to shared memory: a refusal nothing, a permit the word of each limit, which is seized and released.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::{Clock as _, ManualClock, SystemClock};
use crate::sync::counted::writes;
use crate::{KeyedLimiter, Limiter, Precision};
use tidegate_core::Cost;

/// Takes one unit of each of some keys by a fresh clock, which has gone on since the shared tick.
fn take(store: &dyn Store, quota: &Arc<Quota>, keys: &[[u8; 1]], clock: &ManualClock) -> bool {
    let shared = ManualClock::default().now();
    let charges: SmallVec<[Charge<'_>; 16]> =
        keys.iter().map(|key| Charge::new(key, quota, Cost::ONE)).collect();
    let step = Step::new(shared, Op::Take, &charges);
    execute(store, &Step { clock: StepClock::Fresh(clock), ..step }).allowed
}

#[test]
fn a_refused_step_writes_nothing() {
    let seed = Seed::random();
    let stores: [(&str, Box<dyn Store>); 4] = [
        ("fingerprints", Box::new(MemoryStore::with_capacity(1000).unwrap())),
        ("full keys", Box::new(MemoryStore::with_full_keys(1000).unwrap())),
        ("tracked", Box::new(TrackedStore::with_seed(1000, &seed).unwrap())),
        ("tracked, full keys", Box::new(TrackedStore::with_full_keys_and_seed(1000, &seed).unwrap())),
    ];
    for (name, store) in &stores {
        for (count, first) in [(1u8, 0u8), (4, 10), (16, 100)] {
            let keys: Vec<[u8; 1]> = (first..first + count).map(|key| [key]).collect();
            let quota = Arc::new(Quota::per_day(2).gcra().unwrap());
            let clock = ManualClock::default();
            assert!(take(&**store, &quota, &keys, &clock) && take(&**store, &quota, &keys, &clock));
            for _ in 0..10 {
                clock.advance(Duration::from_millis(1));
                let (allowed, written) = writes(|| take(&**store, &quota, &keys, &clock));
                assert!(!allowed);
                assert_eq!(written, 0, "{name}, {count} limits");
            }
            // Callers that come once each, refused by a limit over all of them.
            for new in 200..210 {
                let keys = [keys[0], [new]];
                let (allowed, written) = writes(|| take(&**store, &quota, &keys, &clock));
                assert!(!allowed);
                assert_eq!(written, 0, "{name}, a new key");
            }
        }
    }
}

fn execute(store: &dyn Store, step: &Step<'_>) -> Executed {
    let mut executed = Executed::default();
    match store.execute_into(step, &mut executed) {
        Execution::Done(done) => done.expect("distinct keys"),
        Execution::Later(_) => unreachable!("a store in memory answers at once"),
    }
    executed
}

/// A gate reads its clock first for a plan with a shadow or a queue, and for each plan if it is exact: such a step is
/// decided by its own tick, which moves on from step to step.
#[test]
fn nor_does_a_step_that_is_refused_by_its_own_tick_or_only_looks() {
    let quota = Arc::new(Quota::per_day(2).gcra().unwrap());
    let plain = |key| Charge::new(key, &quota, Cost::ONE);
    let shadow = Charge { binding: false, ..plain(b"shadow") };
    let queue = Charge { max_wait: Duration::from_secs(1), ..plain(b"queue") };
    let plans: [(&str, &[Charge<'_>]); 4] = [
        ("exact", &[plain(b"exact")]),
        ("several", &[plain(b"one"), plain(b"two"), plain(b"three")]),
        ("with a shadow", &[plain(b"beside"), shadow]),
        ("a queue", &[queue, plain(b"before")]),
    ];
    for store in [MemoryStore::with_capacity(1000).unwrap(), MemoryStore::with_full_keys(1000).unwrap()] {
        let mut now = Tick::from_secs(1);
        let mut step = |op, charges| {
            now = now.after(Duration::from_millis(1));
            writes(|| execute(&store, &Step::new(now, op, charges)))
        };
        for (name, charges) in plans {
            assert!((0..2).all(|_| step(Op::Take, charges).0.allowed), "{name}");
            let last = step(Op::Peek, charges).0.at;
            for _ in 0..10 {
                for op in [Op::Take, Op::Peek] {
                    let (executed, written) = step(op, charges);
                    assert!(!executed.allowed && executed.at > last, "{name}");
                    assert_eq!(written, 0, "{name}, {op:?}");
                }
            }
        }
    }
}

/// A state that is no word is looked at in its place, with its slot seized and its part of the overflow locked. Beyond these,
/// which are the key's own, nothing is written: the time of the store is all keys'.
#[test]
fn a_refusal_by_a_cell_writes_only_to_the_key() {
    let quotas = [
        Quota::per_day(2).fixed_window(),
        Quota::per_day(2).sliding_window(4),
        Quota::per_day(2).sliding_log(),
        Quota::per_day(2).token_bucket(),
    ];
    for quota in quotas.map(|quota| Arc::new(quota.unwrap())) {
        for store in [MemoryStore::with_capacity(1000).unwrap(), MemoryStore::with_full_keys(1000).unwrap()] {
            let clock = ManualClock::default();
            for (count, first) in [(1u8, 0u8), (4, 10)] {
                let keys: Vec<[u8; 1]> = (first..first + count).map(|key| [key]).collect();
                assert!((0..2).all(|_| take(&store, &quota, &keys, &clock)), "{quota:?}");
                let before = store.shared.time.latest();
                for _ in 0..10 {
                    clock.advance(Duration::from_millis(1));
                    let (allowed, written) = writes(|| take(&store, &quota, &keys, &clock));
                    assert!(!allowed && store.shared.time.latest() == before, "{quota:?}, {count} limits");
                    assert!(count > 1 || written <= 3, "{written} writes, {quota:?}");
                }
            }
        }
    }
}

/// A refusal is forgotten with its tick, a permit is not: an earlier tick counts as that of the permit.
#[test]
fn only_a_permit_moves_the_time() {
    let store = MemoryStore::with_capacity(1000).unwrap();
    let quota = Arc::new(Quota::per_day(1).gcra().unwrap());
    let at = |second, key| {
        let charges = [Charge::new(key, &quota, Cost::ONE)];
        let executed = execute(&store, &Step::new(Tick::from_secs(second), Op::Take, &charges));
        (executed.allowed, executed.at)
    };
    assert_eq!(at(10, b"a"), (true, Tick::from_secs(10)));
    assert_eq!(at(30, b"a"), (false, Tick::from_secs(30)));
    assert_eq!(at(20, b"a"), (false, Tick::from_secs(20)));
    assert_eq!(at(5, b"a"), (false, Tick::from_secs(10)));
    assert_eq!(at(30, b"b"), (true, Tick::from_secs(30)));
    assert_eq!(at(20, b"a"), (false, Tick::from_secs(30)));
}

#[test]
fn a_look_moves_no_time() {
    for quota in [Quota::per_day(3).gcra(), Quota::per_day(3).fixed_window()] {
        let store = MemoryStore::with_capacity(1000).unwrap();
        let quota = Arc::new(quota.unwrap());
        let at = |second, op| {
            let charges = [Charge::new(b"a", &quota, Cost::ONE)];
            let executed = execute(&store, &Step::new(Tick::from_secs(second), op, &charges));
            (executed.allowed, executed.at)
        };
        assert_eq!(at(10, Op::Take), (true, Tick::from_secs(10)));
        assert_eq!(at(30, Op::Peek), (true, Tick::from_secs(30)));
        assert_eq!(at(20, Op::Take), (true, Tick::from_secs(20)), "{quota:?}");
    }
}

/// A refusal moves no time by itself; but one by a clock that was set back far follows that clock, as every step does.
#[test]
fn a_clock_that_is_far_behind_is_followed_by_refusals_too() {
    for quota in [Quota::per_day(1).gcra(), Quota::per_day(1).fixed_window()] {
        let store = MemoryStore::with_capacity(1000).unwrap();
        let quota = Arc::new(quota.unwrap());
        let at = |second| {
            let charges = [Charge::new(b"a", &quota, Cost::ONE)];
            let executed = execute(&store, &Step::new(Tick::from_secs(second), Op::Take, &charges));
            (executed.allowed, executed.at)
        };
        assert_eq!(at(10_000), (true, Tick::from_secs(10_000)));
        for second in 0..100 {
            let half = Tick::from_secs(10_000).after(Duration::from_millis(500 * second));
            assert_eq!(at(5_000 + second), (false, half), "{quota:?}");
        }
    }
}

#[test]
fn a_permitted_step_writes_two_times_for_each_limit() {
    let store = MemoryStore::with_capacity(1000).unwrap();
    for (count, first) in [(1u8, 0u8), (4, 10), (16, 100)] {
        let keys: Vec<[u8; 1]> = (first..first + count).map(|key| [key]).collect();
        let quota = Arc::new(Quota::per_day(9).gcra().unwrap());
        let clock = ManualClock::default();
        assert!(take(&store, &quota, &keys, &clock));
        let (allowed, written) = writes(|| take(&store, &quota, &keys, &clock));
        assert!(allowed);
        assert_eq!(written, 2 * u64::from(count), "{count} limits: each slot is seized and released");
    }
}

/// Says whether a hundred checks in a row write nothing. The keeper of the shared tick asks now and then whether it is
/// still used, and one check answers: so one of several turns suffices.
fn writes_nothing(check: impl Fn() -> bool) -> bool {
    (0..50).any(|_| {
        SystemClock::share_tick();
        let (allowed, written) = writes(|| (0..100).any(|_| check()));
        assert!(!allowed);
        written == 0
    })
}

#[test]
fn a_refusal_of_a_limiter_writes_nothing() {
    for precision in [Precision::Shared, Precision::Exact, Precision::Leased] {
        let quota = || Quota::per_day(1).gcra().unwrap();
        let limiter = Limiter::new(quota()).unwrap().with_precision(precision);
        assert!(limiter.admit());
        assert!(writes_nothing(|| limiter.admit()), "{precision:?}");
        let keyed = KeyedLimiter::new(quota(), 1000).unwrap().with_precision(precision);
        assert!(keyed.admit(7u64));
        assert!(writes_nothing(|| keyed.admit(7u64)), "{precision:?}, a key");
        let each = || {
            let mut any = false;
            keyed.allow_each(&[7u64; 20], |_, answer| any |= answer.is_allowed());
            any
        };
        assert!(writes_nothing(each), "{precision:?}, a batch");
    }
}

/// Several limits, and states that are no words, are decided under the lock of the limiter. Its word, which the checks of
/// others read, stays as it is.
#[test]
fn a_refusal_under_the_lock_of_a_limiter_writes_to_the_lock_alone() {
    let several = [Quota::per_day(1).gcra().unwrap(), Quota::per_day(5).gcra().unwrap()];
    let log = Quota::per_day(1).sliding_log().unwrap();
    for limiter in [Limiter::all(several).unwrap(), Limiter::new(log).unwrap()] {
        let limiter = limiter.with_clock(ManualClock::default());
        assert!(limiter.admit());
        let (allowed, written) = writes(|| limiter.admit());
        assert!(!allowed);
        assert_eq!(written, 1);
    }
}

#[test]
fn a_refused_reservation_writes_nothing() {
    let hour = Duration::from_secs(3600);
    let limiter = Limiter::new(Quota::per_hour(1)).unwrap().with_clock(ManualClock::default());
    let leased = limiter.clone().with_precision(Precision::Leased);
    assert!(limiter.admit() && leased.admit());
    for max_wait in [Duration::ZERO, Duration::from_secs(1), hour.saturating_sub(Duration::from_nanos(1))] {
        for limiter in [&limiter, &leased] {
            let (refused, written) = writes(|| limiter.reserve(1, max_wait).unwrap_err());
            assert_eq!(refused.retry(), Retry::After(hour.saturating_sub(max_wait)));
            assert_eq!(written, 0, "{max_wait:?}");
        }
        let (refused, written) = writes(|| limiter.reserve(2, max_wait).unwrap_err());
        assert_eq!((refused.retry(), written), (Retry::Never, 0));
    }
    assert_eq!(limiter.reserve(1, hour).unwrap().wait(), hour, "it is not too long to wait");
}
