//! Waiting and reserving on a manual clock: order, deadlines, and what a drop gives back.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Answer, Replace, TakeError, Wait};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota, QuotaError, Tick};

const SECOND: Duration = Duration::from_secs(1);

fn limiter<Q>(quota: Q) -> (Limiter, ManualClock)
where
    Q: TryInto<Quota>,
    QuotaError: From<Q::Error>,
{
    let clock = ManualClock::at(Tick::from_secs(1000));
    (Limiter::new(quota).unwrap().with_clock(clock.clone()), clock)
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn poll(wait: &mut Wait) -> Poll<Result<Answer, TakeError>> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

/// Counts how often its task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_hundred_waiters_are_served_in_the_order_they_came_whatever_they_cost() {
    let (limiter, clock) = limiter(Quota::per_second(1).burst(5));
    let start = clock.now();
    let costs = |place: u64| 1 + place * 7 % 5;
    let mut waits: Vec<_> =
        (0..100).map(|place| (place, Some(Box::pin(limiter.wait(cost(costs(place))))))).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let (mut served, mut spent) = (Vec::new(), 0);
    loop {
        for (place, wait) in &mut waits {
            let Some(waiting) = wait else { continue };
            if let Poll::Ready(answer) = waiting.as_mut().poll(&mut cx) {
                assert!(answer.unwrap().is_allowed());
                spent += costs(*place);
                let due = start.after(SECOND * (spent.saturating_sub(5) as u32));
                assert_eq!(clock.now(), due, "the {place}th acts as soon as its units are there");
                served.push(*place);
                *wait = None;
            }
        }
        if clock.advance_to_next().is_none() {
            break;
        }
    }
    assert_eq!(served, (0..100).collect::<Vec<_>>());
}

#[test]
fn waiters_are_served_in_order_by_every_algorithm() {
    let three = Quota::per_second(3);
    for quota in [
        three.gcra(),
        three.fixed_window(),
        three.sliding_window(10),
        three.sliding_counter(),
        three.sliding_log(),
    ] {
        let (limiter, clock) = limiter(quota.unwrap());
        let mut waits: Vec<_> = (0..40).map(|place| (place, limiter.wait(cost(1 + place % 3)))).collect();
        let mut served = Vec::new();
        loop {
            waits.retain_mut(|(place, wait)| {
                let ready = poll(wait).is_ready();
                if ready {
                    served.push(*place);
                }
                !ready
            });
            if clock.advance_to_next().is_none() {
                break;
            }
        }
        assert_eq!(served, (0..40).collect::<Vec<_>>(), "{:?}", limiter.quotas());
    }
}

#[test]
fn a_wait_takes_its_place_when_first_polled() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    let (mut made_first, mut made_second) = (limiter.wait(Cost::ONE), limiter.wait(Cost::ONE));
    assert!(poll(&mut made_second).is_ready());
    assert!(poll(&mut made_first).is_pending());
    clock.advance(SECOND);
    assert!(poll(&mut made_first).is_ready());
}

#[test]
fn a_sleeper_is_woken_once_and_on_the_tick() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut wait = limiter.wait(Cost::ONE);
    assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert!(poll(&mut wait).is_ready());
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once_and_spends_nothing() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let before = limiter.standing();
    let short = Duration::from_millis(999);
    let Poll::Ready(Err(denied)) = poll(&mut limiter.wait(Cost::ONE).within(short)) else { panic!() };
    assert_eq!(denied.retry().after(), Some(Duration::from_millis(1)), "then the same ask succeeds");
    let deadline = clock.now().after(short);
    assert!(matches!(poll(&mut limiter.wait(Cost::ONE).until(deadline)), Poll::Ready(Err(_))));
    assert!(limiter.wait(Cost::ONE).within(short).blocking().is_err());
    assert!(limiter.reserve(Cost::ONE, short).is_err());
    assert_eq!(limiter.standing(), before);
    assert_eq!(clock.sleepers(), 0);
    assert!(poll(&mut limiter.wait(Cost::ONE).within(SECOND)).is_pending(), "just in time");
}

#[test]
fn a_deadline_in_the_past_is_refused_for_good_even_by_a_full_limit() {
    let (limiter, clock) = limiter(Quota::per_second(5));
    let passed = clock.now();
    clock.advance(Duration::from_nanos(1));
    let Poll::Ready(Err(denied)) = poll(&mut limiter.wait(Cost::ONE).until(passed)) else { panic!() };
    assert_eq!(denied.retry().after(), None);
    assert_eq!(limiter.standing().remaining, 5);
    assert!(matches!(poll(&mut limiter.wait(Cost::ONE).until(clock.now())), Poll::Ready(Ok(_))));
}

#[test]
fn more_than_the_burst_is_never_waited_for() {
    let (limiter, _) = limiter(Quota::per_second(5));
    let Poll::Ready(Err(denied)) = poll(&mut limiter.wait(cost(6))) else { panic!() };
    assert_eq!(denied.retry().after(), None);
}

#[test]
fn the_last_waiter_that_goes_away_leaves_no_trace() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let before = limiter.standing();
    let mut wait = limiter.wait(Cost::ONE);
    assert!(poll(&mut wait).is_pending());
    assert_ne!(limiter.standing(), before);
    drop(wait);
    assert_eq!(limiter.standing(), before);
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn a_wait_that_has_ended_keeps_its_charge_when_dropped() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let mut wait = limiter.wait(Cost::ONE);
    assert!(poll(&mut wait).is_pending());
    clock.advance(SECOND);
    assert!(poll(&mut wait).is_ready());
    drop(wait);
    assert_eq!(limiter.standing().remaining, 0);
}

#[test]
fn a_dropped_reservation_stays_charged_and_a_cancelled_one_does_not() {
    let (limiter, _) = limiter(Quota::per_second(1));
    drop(limiter.reserve(Cost::ONE, SECOND).unwrap());
    assert_eq!(limiter.standing().remaining, 0);
    limiter.reserve(Cost::ONE, SECOND).unwrap().cancel();
    assert_eq!(limiter.reserve(Cost::ONE, SECOND).unwrap().wait(), SECOND);
}

#[test]
fn a_reservation_from_before_a_change_gives_nothing_back_after_it() {
    let (limiter, _) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let reservation = limiter.reserve(Cost::ONE, SECOND).unwrap();
    limiter.change(Quota::per_second(1000).burst(1), Replace::AsIs).unwrap();
    let before = limiter.standing();
    reservation.cancel();
    assert_eq!(limiter.standing(), before);
}

#[test]
fn keyed_waiters_queue_per_key() {
    let clock = ManualClock::default();
    let limiter = KeyedLimiter::new(Quota::per_second(1), 100).unwrap().with_clock(clock.clone());
    assert!(limiter.allow("ann").is_allowed());
    let (mut ann, mut bob) = (limiter.wait("ann", Cost::ONE), limiter.wait("bob", Cost::ONE));
    assert!(poll(&mut ann).is_pending());
    assert!(poll(&mut bob).is_ready());
    let before = limiter.standing("bob");
    drop(ann);
    assert_eq!(limiter.peek("ann").retry().after(), Some(SECOND), "as if it had not waited");
    assert_eq!(limiter.standing("bob"), before);
    let mut ann = limiter.wait("ann", Cost::ONE);
    assert!(poll(&mut ann).is_pending());
    clock.advance(SECOND);
    assert!(poll(&mut ann).is_ready());
}

#[test]
fn threads_wait_on_a_clock_turned_by_hand() {
    let (limiter, clock) = limiter(Quota::per_minute(1).burst(1));
    assert!(limiter.allow().is_allowed());
    let keyed = KeyedLimiter::new(Quota::per_minute(1), 10).unwrap().with_clock(clock.clone());
    assert!(keyed.allow("ann").is_allowed());
    let waiters = [
        thread::spawn({
            let limiter = limiter.clone();
            move || limiter.wait(Cost::ONE).within(Duration::MAX).blocking()
        }),
        thread::spawn(move || keyed.wait("ann", Cost::ONE).within(Duration::MAX).blocking()),
    ];
    while clock.sleepers() < 2 {
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(60));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap().wait(), Duration::from_secs(60));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_a_runtime_are_served_in_order_too() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.allow().is_allowed());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for place in 1..=20 {
        let (limiter, tell) = (limiter.clone(), tell.clone());
        tokio::spawn(async move {
            limiter.wait(Cost::ONE).await.unwrap();
            tell.send(place).unwrap();
        });
        while clock.sleepers() < place {
            tokio::task::yield_now().await;
        }
    }
    for place in 1..=20 {
        clock.advance(SECOND);
        assert_eq!(told.recv().await, Some(place));
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn tokio_paused_time_skips_a_wait_of_an_hour() {
    let limiter = Limiter::new(Quota::per_hour(1)).unwrap().with_clock(tidegate::clock::TokioClock::new());
    #[allow(clippy::disallowed_methods, reason = "the paused clock is what this test is about")]
    let start = tokio::time::Instant::now();
    limiter.wait(Cost::ONE).await.unwrap();
    limiter.wait(Cost::ONE).await.unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(3600) && took < Duration::from_secs(3601), "{took:?}");
}

#[derive(Clone, Debug)]
enum Act {
    Wait(u64),
    Allow(u64),
    Drop(usize),
    Advance(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..4u64).prop_map(Act::Wait),
        1 => (1..4u64).prop_map(Act::Allow),
        2 => (0..8usize).prop_map(Act::Drop),
        2 => (0..4_000u64).prop_map(Act::Advance),
    ];
    prop::collection::vec(act, 1..120)
}

/// Runs the acts: waiters come, are dropped, and act as soon as each is due. Returns the ticks in nanoseconds at which
/// units were spent, with the units.
fn play(limiter: &Limiter, clock: &ManualClock, acts: Vec<Act>) -> Vec<(u64, u64)> {
    let mut waits: Vec<(u64, Wait)> = Vec::new();
    let mut acted: Vec<(u64, u64)> = Vec::new();
    let settle = |waits: &mut Vec<(u64, Wait)>, acted: &mut Vec<(u64, u64)>| {
        waits.retain_mut(|(units, wait)| match poll(wait) {
            Poll::Ready(answer) => {
                answer.unwrap();
                acted.push((clock.now().as_nanos(), *units));
                false
            }
            Poll::Pending => true,
        });
    };
    for act in acts {
        match act {
            Act::Wait(units) => waits.push((units, limiter.wait(cost(units)))),
            Act::Allow(units) if limiter.allow_n(cost(units)).unwrap().is_allowed() => {
                acted.push((clock.now().as_nanos(), units));
            }
            Act::Allow(_) => {}
            Act::Drop(which) if !waits.is_empty() => drop(waits.remove(which % waits.len())),
            Act::Drop(_) => {}
            Act::Advance(ms) => {
                // Tick by tick, so that each waiter acts when it is due.
                let end = clock.now().after(Duration::from_millis(ms));
                while clock.sleepers() > 0 {
                    let now = clock.now();
                    let next = clock.advance_to_next().unwrap();
                    if next > end {
                        clock.set(now);
                        break;
                    }
                    settle(&mut waits, &mut acted);
                }
                clock.set(end);
            }
        }
        settle(&mut waits, &mut acted);
    }
    acted
}

proptest! {
    /// Whatever is dropped, work never acts faster than the limit: no span has more than burst + rate × span, counted
    /// at the ticks at which the work acts. Those are rounded up to the nanosecond, so two may be one nanosecond closer
    /// than exact.
    #[test]
    fn dropping_waiters_never_creates_capacity(rate in 1..5u64, burst in 3..6u64, acts in acts()) {
        let (limiter, clock) = limiter(Quota::per_second(rate).burst(burst));
        let acted = play(&limiter, &clock, acts);
        for (first, (from, _)) in acted.iter().enumerate() {
            let mut units = 0;
            for (to, more) in &acted[first..] {
                units += more;
                let most = u128::from(burst) * 1_000_000_000 + u128::from(rate) * u128::from(to - from + 1);
                prop_assert!(u128::from(units) * 1_000_000_000 <= most, "{units} units in {} ns", to - from);
            }
        }
    }

    /// The same for a sliding log: no second has more than its count.
    #[test]
    fn dropping_waiters_never_creates_capacity_in_a_log(count in 3..6u64, acts in acts()) {
        let (limiter, clock) = limiter(Quota::per_second(count).sliding_log().unwrap());
        let acted = play(&limiter, &clock, acts);
        for (first, (from, _)) in acted.iter().enumerate() {
            let second = acted[first..].iter().take_while(|(to, _)| to - from < 1_000_000_000);
            let units: u64 = second.map(|(_, units)| units).sum();
            prop_assert!(units <= count, "{units} units in a second");
        }
    }

    /// When all waiters have been dropped, latest first, the limit stands as if they had never come.
    #[test]
    fn waiters_that_all_go_away_leave_the_limit_as_it_was(spent in 1..6u64, costs in prop::collection::vec(1..6u64, 1..30)) {
        let (limiter, _) = limiter(Quota::per_second(3).burst(5));
        if spent < 6 {
            assert!(limiter.allow_n(cost(spent)).unwrap().is_allowed());
        }
        let before = limiter.standing();
        let mut waits = Vec::new();
        for units in costs {
            match limiter.reserve(cost(units), Duration::ZERO) {
                Ok(held) => held.cancel(),
                Err(_) => {
                    let mut wait = limiter.wait(cost(units));
                    assert!(poll(&mut wait).is_pending());
                    waits.push(wait);
                }
            }
        }
        while let Some(wait) = waits.pop() {
            drop(wait);
        }
        prop_assert_eq!(limiter.standing(), before);
    }
}
