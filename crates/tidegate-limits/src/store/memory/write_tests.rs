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
    let mut executed = Executed::default();
    match store.execute_into(&Step { clock: StepClock::Fresh(clock), ..step }, &mut executed) {
        Execution::Done(done) => done.expect("distinct keys"),
        Execution::Later(_) => unreachable!("a store in memory answers at once"),
    }
    executed.allowed
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
