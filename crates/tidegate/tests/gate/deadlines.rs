//! Deadlines given as instants of the machine's clock, or of tokio's.
#![allow(clippy::disallowed_methods, reason = "instants of the machine's clock are what is tested")]
#![cfg(feature = "tokio")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::{Clock, ManualClock, TokioClock};
use tidegate::deadline::{Deadline, carry, carry_through};
use tidegate::gate::Check;
use tidegate::limiter::Retry;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, Share};
use tidegate::store::{CasStore, MemoryStore};
use tidegate::{Bulkhead, Gate, KeyedLimiter, Limiter, Quota, Tick};
use tokio::time::Instant as TokioInstant;

use crate::byte_map::{Bytes, OnTheSpot};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_exactly_at_its_deadline_is_in_time() {
    let limiter = Limiter::new(Quota::per_minute(1)).unwrap().with_clock(TokioClock::new());
    let keyed = KeyedLimiter::new(Quota::per_minute(1), 10).unwrap().with_clock(TokioClock::new());
    limiter.wait(1).await.unwrap();
    keyed.wait("ann", 1).await.unwrap();
    let begun = TokioInstant::now();
    for deadline in [begun + 59 * SECOND, begun + Duration::from_nanos(59_999_999_999)] {
        assert!(limiter.wait(1).until(deadline).await.is_err(), "known at once");
        assert!(keyed.wait("ann", 1).until(deadline).await.is_err(), "known at once");
    }
    assert_eq!(TokioInstant::now(), begun);
    limiter.wait(1).until(begun + 60 * SECOND).await.unwrap();
    keyed.wait("ann", 1).until((begun + 60 * SECOND).into_std()).await.unwrap();
    assert!(begun.elapsed() >= 60 * SECOND && begun.elapsed() < 61 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(limiter.wait(1).until(begun).await.unwrap_err().retry(), Retry::Never, "it has passed");
}

/// A wait obeys the deadline that its task carries, as an entry into a bulkhead does.
#[tokio::test(start_paused = true)]
async fn a_wait_that_cannot_end_before_the_carried_deadline_is_refused_at_once() {
    let limiter = Limiter::new(Quota::per_second(1)).unwrap().with_clock(TokioClock::new());
    let keyed = KeyedLimiter::new(Quota::per_second(1), 10).unwrap().with_clock(TokioClock::new());
    limiter.wait(1).await.unwrap();
    keyed.wait("ann", 1).await.unwrap();
    let begun = TokioInstant::now();
    let soon = begun + SECOND / 2;
    for own in [SECOND / 4, 9 * SECOND] {
        let refused = carry_through(soon, limiter.wait(1).within(own)).await.unwrap_err();
        assert_eq!(refused.retry(), Retry::After(SECOND - own.min(SECOND / 2)));
        assert!(carry_through(soon, keyed.wait("ann", 1).within(own)).await.is_err());
        assert!(carry(soon, || limiter.wait(1).within(own).blocking()).is_err());
    }
    assert_eq!(TokioInstant::now(), begun, "known at once");
    carry_through(begun + SECOND, limiter.wait(1)).await.unwrap();
    assert!(begun.elapsed() >= SECOND && begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_place_gives_up_at_the_deadline() {
    let bulkhead = Bulkhead::new(1).unwrap().with_clock(TokioClock::new());
    let _inside = bulkhead.enter().await.unwrap();
    let begun = TokioInstant::now();
    let refused = bulkhead.enter().until(begun + 5 * SECOND).await.unwrap_err();
    assert_eq!(refused.retry(), Retry::Unknown);
    assert!(begun.elapsed() >= 5 * SECOND && begun.elapsed() < 6 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(bulkhead.enter().until(begun).await.unwrap_err().retry(), Retry::Never);
    assert_eq!(bulkhead.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_gate_delays_nobody_beyond_the_deadline() {
    let clock = TokioClock::new();
    let mut limit = Limit::new(Quota::per_second(1).leaky_queue(100).unwrap(), "one a second");
    limit.max_wait = Duration::from_secs(100);
    let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("queue", limit)]).unwrap(), 10)
        .unwrap()
        .with_clock(clock);
    let request = Descriptor::new();
    let deadline = TokioInstant::now() + 2 * SECOND;
    let waits = [0; 4].map(|_| {
        let decision = gate.check(Check::of(&request).deadline(deadline)).now().unwrap();
        decision.allowed.then_some(decision.wait)
    });
    assert_eq!(waits, [Some(Duration::ZERO), Some(SECOND), Some(2 * SECOND), None]);
    assert!(
        gate.check_each(&[Check::of(&request)]).now()[0].as_ref().unwrap().allowed,
        "without a deadline it waits"
    );
}

/// An engine is asked in another way than a store in memory, and is not given up at a time that the caller chose.
#[test]
fn a_gate_delays_nobody_for_longer_than_he_says_that_he_waits() {
    let engine = || OnTheSpot(CasStore::new(Bytes::default()));
    let memory = || MemoryStore::with_capacity(10).unwrap();
    let stores: [Box<dyn Fn(PolicySet) -> Gate>; 3] = [
        Box::new(|set| Gate::new(set, memory())),
        Box::new(|set| Gate::new(set, engine())),
        Box::new(|set| Gate::new(set, memory()).with_store(Share::Central, engine())),
    ];
    for (number, gate) in stores.iter().enumerate() {
        let mut limit = Limit::new(Quota::per_second(1).leaky_queue(100).unwrap(), "one a second");
        limit.max_wait = Duration::from_secs(100);
        let mut queue = Policy::new("queue", limit);
        queue.share = (number == 2).then_some(Share::Central);
        let gate = gate(PolicySet::new(vec![queue]).unwrap()).with_clock(ManualClock::default());
        let wait = |check: Check<'_, '_>| {
            let decision = gate.check(check).now().unwrap();
            decision.allowed.then_some(decision.wait)
        };
        let anybody = Descriptor::new();
        let hurried = Descriptor::new().with("request.header.grpc-timeout", "1500m");
        assert_eq!(wait(Check::of(&anybody)), Some(Duration::ZERO));
        assert_eq!(wait(Check::of(&hurried)), Some(SECOND), "store {number}");
        assert_eq!(wait(Check::of(&hurried)), None, "store {number}: he does not wait for 2 s");
        let together = gate.check_together(&[Check::of(&hurried)]).now().unwrap();
        assert!(!together.allowed, "store {number}: nor does he in a call of several checks");
        let later = Check::of(&hurried).deadline(Tick::from_secs(9));
        assert_eq!(wait(later), None, "store {number}: a later deadline of the check does not help");
        assert_eq!(
            wait(Check::of(&anybody)),
            Some(2 * SECOND),
            "store {number}: others have the whole queue"
        );
    }
}

/// On a clock other than the machine's, an instant is as far from that clock's present as from the machine's.
#[test]
fn a_clock_of_another_time_takes_an_instant_by_its_distance() {
    let clock = Arc::new(ManualClock::at(Tick::from_secs(1000)));
    let tick = clock.tick_of(Instant::now() + 3600 * SECOND);
    let ahead = tick.since(clock.now());
    assert!(ahead <= 3600 * SECOND && ahead > 3000 * SECOND, "{ahead:?}");
    let Some(earlier) = Instant::now().checked_sub(SECOND) else { return };
    let past = clock.tick_of(earlier);
    assert!(past <= Tick::from_secs(999) && past > Tick::from_secs(500), "{past:?}");

    let limiter = Limiter::new(Quota::per_minute(1)).unwrap().with_clock(Arc::clone(&clock));
    assert!(limiter.wait(1).until(Instant::now() + SECOND).blocking().is_ok());
    assert!(
        limiter.wait(1).until(Instant::now() + SECOND).blocking().is_err(),
        "sixty seconds of that clock"
    );
    assert_eq!(Deadline::from(Tick::MAX), Deadline::Tick(Tick::MAX));
}
