//! A bucket that starts below the cost of a request: it fills from the first request on, whether that was granted or
//! not.
//!
//! Regression: a denial stored nothing, so each request of a new key met a new bucket. All of them were denied, each
//! with a short wait.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::Check;
use tidegate::limiter::Rate;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{MemoryStore, Store};
use tidegate::{Cost, Gate, KeyedLimiter, Limiter, Quota};
use tidegate_core::rate::{Bandwidth, TokenBucket};

/// Ten a second, room for ten, initially empty.
fn empty_at_first() -> Quota {
    let rate = Rate::new(10, Duration::from_secs(1)).unwrap();
    TokenBucket::new(Bandwidth::new(rate, 10).unwrap().initial(0).unwrap()).into()
}

const UNIT: Duration = Duration::from_millis(100);

#[test]
fn a_limiters_bucket_that_starts_empty_fills_while_it_denies() {
    let clock = ManualClock::default();
    let limiter = Limiter::new(empty_at_first()).unwrap().with_clock(clock.clone());
    assert_eq!(limiter.allow().retry().after(), Some(UNIT));
    clock.advance(UNIT);
    assert!(limiter.allow().is_allowed());
}

#[test]
fn a_keys_bucket_that_starts_empty_fills_while_it_denies() {
    let clock = ManualClock::default();
    let limiter = KeyedLimiter::new(empty_at_first(), 100).unwrap().with_clock(clock.clone());
    let five = Cost::new(5).unwrap();
    assert_eq!(limiter.allow_n("ann", five).unwrap().retry().after(), Some(5 * UNIT));
    clock.advance(4 * UNIT);
    assert_eq!(limiter.allow_n("ann", five).unwrap().retry().after(), Some(UNIT));
    clock.advance(UNIT);
    assert!(limiter.allow_n("ann", five).unwrap().is_allowed());
    assert!(!limiter.allow("bob").is_allowed(), "nobody has met him yet");
}

#[test]
fn a_gates_bucket_that_starts_empty_fills_while_it_denies() {
    let clock = ManualClock::default();
    let policies = |shadow: bool| {
        let mut policy = Policy::new("slow-start", Limit::new(empty_at_first(), "10/s initial 0"));
        if shadow {
            policy.limits = Vec::new();
            policy.shadow_limit = Some(Limit::new(empty_at_first(), "10/s initial 0"));
        }
        PolicySet::new(vec![policy]).unwrap()
    };
    for shadow in [false, true] {
        let gate = Gate::in_memory(policies(shadow), 100).unwrap().with_clock(clock.clone());
        let request = Descriptor::new();
        let asked = || gate.check(&request).now().unwrap().limits[0].decision;
        assert_eq!(asked().retry().after(), Some(UNIT), "shadow: {shadow}");
        clock.advance(UNIT);
        assert!(asked().is_allowed(), "shadow: {shadow}");
    }
}

/// A key takes no room in the store when its request exceeds every limit, or when its limit starts full.
#[test]
fn only_the_denial_of_a_limit_that_starts_below_full_takes_room() {
    let clock = ManualClock::default();
    let store = MemoryStore::with_capacity(100).unwrap();
    let mut slow = Policy::new("slow-start", Limit::new(empty_at_first(), "10/s initial 0"));
    slow.by = vec!["client.id".to_owned()];
    let mut full = Policy::new("full", Limit::new(Quota::per_second(5).gcra().unwrap(), "5/s"));
    full.by = vec!["client.id".to_owned()];
    let set = PolicySet::new(vec![slow, full]).unwrap();
    let gate = Gate::new(set, store.clone()).with_clock(clock);
    let ask = |id: &str, cost| {
        gate.check(Check::of(&Descriptor::new().with("client.id", id)).cost(cost)).now().unwrap()
    };
    assert!(!ask("greedy", 11).allowed);
    assert_eq!(store.occupancy().used, 0, "more than either ever grants");
    assert!(!ask("ann", 1).allowed);
    assert_eq!(store.occupancy().used, 1, "the bucket that fills, not the limit that is full");
}
