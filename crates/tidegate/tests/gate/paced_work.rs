//! Work that a queue delays before it begins: the delay is not part of the latency that guards and conditions see.
#![cfg(all(feature = "config", feature = "ticket"))]
#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::config::{Config, Format};
use tidegate::gate::ticket::TicketKeys;
use tidegate::gate::{Check, Part};
use tidegate::policy::Descriptor;
use tidegate::{Gate, Outcome, Tick};

/// One request a second, of which up to twenty wait for their turn, then a guard.
fn paced(guard: &str, clock: &ManualClock) -> Gate {
    let text = format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n  - name: paced\n    \
         limit: {{ algorithm: leaky-bucket, rate: 1/s, queue: 20, max_wait: 30s }}\n{guard}"
    );
    let (config, _) = Config::parse(&text, "t", Format::Yaml).unwrap();
    Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone())
}

fn wait(clock: &ManualClock, millis: u64) {
    clock.advance(Duration::from_millis(millis));
}

const SLOW_CALLS: &str = "  - name: dependency
    limit: { algorithm: breaker, window: 10 calls, min_calls: 4, slow_after: 1s, slow_calls: 50%, open_for: 1h, ttl: 5min }
";

const LATENCY: &str = "  - name: slow
    when: latency above 500ms, until 400ms
    limit: { algorithm: fixed-window, rate: 1/h }
";

const VEGAS: &str = "  - name: places
    limit: { algorithm: adaptive, law: vegas, start: 20 }
";

/// Lets ten requests in at once, each of which works for `millis` from its turn on. Ends them by a ticket if `by_ticket`.
fn ten_take(gate: &Gate, clock: &ManualClock, millis: u64, by_ticket: bool) {
    let keys = TicketKeys::new([7; 32]);
    let admit = || gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap();
    let mut waits = Vec::new();
    let admitted: Vec<_> = (0..10)
        .map(|_| {
            let admission = admit();
            waits.push(admission.wait);
            admission
        })
        .collect();
    assert_eq!(waits, (0..10).map(Duration::from_secs).collect::<Vec<_>>());
    for admission in admitted {
        wait(clock, millis);
        if by_ticket {
            let ticket = admission.into_ticket(&keys, Duration::from_secs(60)).unwrap();
            let open = keys.open(&ticket, gate.now()).unwrap();
            gate.tickets().settle(&open, Part::All, Outcome::Success, |_| None).now().unwrap();
        } else {
            admission.finish(Outcome::Success).now().unwrap();
        }
        wait(clock, 1000 - millis);
    }
}

#[test]
fn a_breaker_does_not_take_our_own_queue_for_slow_calls() {
    for by_ticket in [false, true] {
        let clock = ManualClock::at(Tick::from_secs(1000));
        let gate = paced(SLOW_CALLS, &clock);
        ten_take(&gate, &clock, 10, by_ticket);
        assert!(gate.check(&Descriptor::new()).now().unwrap().allowed, "by ticket: {by_ticket}");
    }
}

#[test]
fn calls_that_are_slow_after_their_turn_still_count() {
    let clock = ManualClock::at(Tick::from_secs(1000));
    let gate = paced(SLOW_CALLS, &clock);
    let slow: Vec<_> =
        (0..4).map(|_| gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap()).collect();
    wait(&clock, 10_000);
    for admission in slow {
        admission.finish(Outcome::Success).now().unwrap();
    }
    assert!(!gate.check(&Descriptor::new()).now().unwrap().allowed);
}

#[test]
fn the_latency_in_conditions_begins_with_the_turn() {
    for by_ticket in [false, true] {
        let clock = ManualClock::at(Tick::from_secs(1000));
        let gate = paced(LATENCY, &clock);
        ten_take(&gate, &clock, 10, by_ticket);
        assert_eq!((0..5).filter(|_| gate.check(&Descriptor::new()).now().unwrap().allowed).count(), 5);
    }
}

#[test]
fn a_law_measures_the_work_and_not_the_wait() {
    let clock = ManualClock::at(Tick::from_secs(1000));
    let gate = paced(VEGAS, &clock);
    let places =
        || gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[1].decision.standing.limit;
    for _ in 0..50 {
        ten_take(&gate, &clock, 10, false);
    }
    assert!(places() >= 20, "{}", places());
}

/// Whoever does not wait for its turn has no latency that means anything.
#[test]
fn work_that_ends_before_its_turn_teaches_nothing() {
    let clock = ManualClock::at(Tick::from_secs(1000));
    let gate = paced(VEGAS, &clock);
    let admitted: Vec<_> =
        (0..10).map(|_| gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap()).collect();
    // The first has no wait.
    for admission in admitted.into_iter().skip(1) {
        admission.finish(Outcome::Overloaded).now().unwrap();
    }
    let standing =
        gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[1].decision.standing;
    assert_eq!((standing.limit, standing.remaining), (20, 20));
}
