//! A few callers in all interleavings: the bound on probes holds, no probe is lost, and the breaker never gets stuck.

use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicU64 as Count, Ordering};
use std::time::Duration;

use loom::thread;

use super::*;
use crate::clock::ManualClock;
use crate::sync::explore;

const SECOND: Duration = Duration::from_secs(1);

/// A breaker that has tripped and whose open time is over. It uses a manual clock from the start, because loom would
/// track the atomics of the system clock.
fn tripped(probes: u64, steps: u8) -> (Breaker, ManualClock) {
    let clock = ManualClock::default();
    let law = CircuitBreaker::builder()
        .consecutive(1)
        .open_for(SECOND)
        .growth(1.0)
        .jitter(0.0)
        .probes(probes)
        .ttl(SECOND)
        .judgement(Judgement::Successes(1))
        .steps(steps);
    let breaker = Breaker::build(law.build().unwrap(), Time::new(clock.clone()), None);
    breaker.try_enter().unwrap().leave(Outcome::Failure);
    clock.advance(SECOND);
    (breaker, clock)
}

/// Enters if it may, and leaves with `outcome`, or by dropping if that is `None`; returns whether it entered.
fn call(breaker: &Breaker, inside: &Count, most: u64, outcome: Option<Outcome>) -> bool {
    let Ok(call) = breaker.try_enter() else { return false };
    let is_probe = breaker.state().as_str() == "half-open";
    let others = inside.fetch_add(1, Ordering::SeqCst);
    assert!(!is_probe || others < most, "more probes than may be in flight");
    inside.fetch_sub(1, Ordering::SeqCst);
    match outcome {
        Some(outcome) => call.leave(outcome),
        None => drop(call),
    }
    true
}

/// Checks that a while later, whatever has happened, a call enters and good calls close the breaker.
fn recovers(breaker: &Breaker, clock: &ManualClock) {
    for _ in 0..4 {
        clock.advance(2 * SECOND);
        breaker.try_enter().expect("it is not stuck").leave(Outcome::Success);
    }
    assert_eq!(breaker.state(), Condition::Closed);
}

/// Three calls try at once: one hangs up, one fails, one succeeds.
#[test]
fn probes_stay_within_the_bound_however_they_end() {
    explore(None, || {
        let (breaker, clock) = tripped(1, 0);
        let inside = Plain::new(Count::new(0));
        let spawn = |outcome| {
            let (breaker, inside) = (breaker.clone(), Plain::clone(&inside));
            thread::spawn(move || call(&breaker, &inside, 1, outcome))
        };
        let (cancelled, failed) = (spawn(None), spawn(Some(Outcome::Failure)));
        let entered = call(&breaker, &inside, 1, Some(Outcome::Success));
        let entered = [cancelled.join().unwrap(), failed.join().unwrap(), entered];
        assert!(entered.contains(&true), "somebody tries");
        recovers(&breaker, &clock);
    });
}

/// Cancelled probes give their places back, so the next call enters.
#[test]
fn a_cancelled_probe_leaves_its_place_to_the_next() {
    explore(None, || {
        let (breaker, _) = tripped(1, 0);
        let (one, inside) = (breaker.clone(), Plain::new(Count::new(0)));
        let other = Plain::clone(&inside);
        let cancelled = thread::spawn(move || {
            for _ in 0..2 {
                call(&one, &other, 1, None);
            }
        });
        for _ in 0..2 {
            call(&breaker, &inside, 1, None);
        }
        cancelled.join().unwrap();
        assert!(matches!(breaker.state(), Condition::HalfOpen { in_flight: 0, .. }));
        assert!(breaker.try_enter().is_ok());
    });
}

/// A probe is lost while another ends. Its place comes back with time, and its late outcome changes nothing.
#[test]
fn a_lost_probe_strands_nobody() {
    explore(None, || {
        let (breaker, clock) = tripped(2, 1);
        let lost = breaker.try_enter().unwrap();
        let other = breaker.clone();
        let inside = Plain::new(Count::new(0));
        let another = Plain::clone(&inside);
        let fails = thread::spawn(move || {
            // Two calls in sequence: before the lost call's place is free, and after that.
            call(&other, &another, 2, Some(Outcome::Ignored));
            call(&other, &another, 2, Some(Outcome::Failure));
        });
        clock.advance(SECOND);
        call(&breaker, &inside, 2, Some(Outcome::Success));
        lost.leave(Outcome::Success);
        fails.join().unwrap();
        recovers(&breaker, &clock);
    });
}

/// A person opens it while a probe closes it: the forced state wins.
#[test]
fn a_forced_state_holds_whatever_ends_meanwhile() {
    explore(None, || {
        let (breaker, clock) = tripped(1, 0);
        let other = breaker.clone();
        let probe = thread::spawn(move || {
            for outcome in [Outcome::Success, Outcome::Failure] {
                if let Ok(call) = other.try_enter() {
                    call.leave(outcome);
                }
            }
        });
        breaker.force(Force::Open, None, "by hand");
        assert!(breaker.try_enter().is_err());
        probe.join().unwrap();
        assert_eq!(breaker.state().as_str(), "forced-open");
        breaker.auto();
        recovers(&breaker, &clock);
    });
}
