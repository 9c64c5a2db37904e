//! Compares a keyed breaker with one single breaker for each key, each with a lock of its own.

use std::thread;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::breaker::{Breaker, BreakerBuilder, Call, Change, Window};
use crate::clock::ManualClock;

const SECOND: Duration = Duration::from_secs(1);

/// How many keys the properties use.
const KEYS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(usize),
    /// Leaves the oldest call of the key.
    Leave(usize, Outcome),
    Force(usize, Force, Option<u64>),
    Auto(usize),
    Reset(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS;
    let outcome = prop::sample::select(vec![
        Outcome::Failure,
        Outcome::Failure,
        Outcome::Success,
        Outcome::Overloaded,
        Outcome::Ignored,
    ]);
    let to = prop::sample::select(vec![Force::Open, Force::Closed, Force::MetricsOnly, Force::Disabled]);
    let step = prop_oneof![
        6 => key().prop_map(Step::Enter),
        6 => (key(), outcome).prop_map(|(key, outcome)| Step::Leave(key, outcome)),
        1 => (key(), to, prop::option::of(1u64..20)).prop_map(|(key, to, secs)| Step::Force(key, to, secs)),
        1 => key().prop_map(Step::Auto),
        1 => key().prop_map(Step::Reset),
        2 => (1u64..8_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..120)
}

fn law() -> BreakerBuilder {
    CircuitBreaker::builder().consecutive(2).jitter(0.0).steps(1).probes(2).ttl(30 * SECOND)
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<Change>>);

impl Observer for Heard {
    fn on_change(&self, change: &Change) {
        self.0.lock().push(change.clone());
    }
}

impl Heard {
    fn since(&self) -> Vec<Change> {
        std::mem::take(&mut self.0.lock())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The same calls, forced states and waits give the same answers, states and changes, key by key.
    #[test]
    fn each_key_has_the_breaker_that_it_would_have_alone(steps in steps()) {
        let clock = ManualClock::default();
        let heard = [(); 2].map(|()| Arc::new(Heard::default()));
        let keyed =
            KeyedBreaker::new(law(), 1000).unwrap().with_clock(clock.clone()).with_observer(heard[0].clone());
        let alone = || {
            Breaker::new(law()).unwrap().with_clock(clock.clone()).with_observer(heard[1].clone())
        };
        let mut single: [Breaker; KEYS] = std::array::from_fn(|_| alone());
        let mut inside: [Vec<(KeyedCall, Call)>; KEYS] = std::array::from_fn(|_| Vec::new());
        for step in steps {
            match step {
                Step::Enter(key) => match (keyed.try_enter(key as u64), single[key].try_enter()) {
                    (Ok(one), Ok(other)) => inside[key].push((one, other)),
                    (Err(one), Err(other)) => prop_assert_eq!(one.retry(), other.retry()),
                    (one, other) => prop_assert!(false, "{:?} and {:?}", one.is_ok(), other.is_ok()),
                },
                Step::Leave(key, outcome) if !inside[key].is_empty() => {
                    let (one, other) = inside[key].remove(0);
                    one.leave(outcome);
                    other.leave(outcome);
                }
                Step::Leave(..) => {}
                Step::Force(key, to, secs) => {
                    let time = secs.map(Duration::from_secs);
                    keyed.force(key as u64, to, time, "by hand");
                    single[key].force(to, time, "by hand");
                }
                Step::Auto(key) => {
                    keyed.auto(key as u64);
                    single[key].auto();
                }
                Step::Reset(key) => {
                    keyed.reset(key as u64);
                    single[key] = alone();
                    // Outcomes of calls from before do not count any more.
                    for (one, other) in inside[key].drain(..) {
                        one.leave(Outcome::Failure);
                        drop(other);
                    }
                    heard[1].since();
                    // New calls cannot enter at the tick of forgotten ones.
                    clock.advance(Duration::from_nanos(2));
                }
                Step::Wait(millis) => clock.advance(Duration::from_millis(millis)),
            }
            for (key, alone) in single.iter().enumerate() {
                let view = keyed.view_of(key as u64);
                prop_assert_eq!(&view.forced, &alone.forced(), "key {} after {:?}", key, step);
                prop_assert_eq!(view.condition.as_str(), alone.state().as_str(), "key {} after {:?}", key, step);
                prop_assert_eq!(view.totals, alone.totals(), "key {} after {:?}", key, step);
            }
            prop_assert_eq!(heard[0].since(), heard[1].since(), "after {:?}", step);
        }
    }
}

/// Calls of several threads on few keys, while other keys come: each call is counted once.
#[test]
fn no_call_of_any_thread_is_lost() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 2_000;
    let hosts = KeyedBreaker::new(
        CircuitBreaker::builder().window(Window::Calls(16_000)).failure_ratio(1.0),
        100_000,
    )
    .unwrap()
    .with_clock(ManualClock::default());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let hosts = &hosts;
            scope.spawn(move || {
                for call in 0..CALLS {
                    let outcome = if call % 4 == 0 { Outcome::Failure } else { Outcome::Success };
                    hosts.try_enter(("kept", call % 3)).unwrap().leave(outcome);
                    drop(hosts.try_enter(("another", thread, call)).unwrap());
                }
            });
        }
    });
    let totals: Vec<(u64, u64)> = (0..3_u64)
        .map(|key| hosts.view_of(("kept", key)).totals)
        .map(|totals| (u64::from(totals.calls), u64::from(totals.failures)))
        .collect();
    let calls = |key: u64| (0..CALLS).filter(move |call| call % 3 == key);
    let expected: Vec<(u64, u64)> = (0..3)
        .map(|key| {
            let failed = calls(key).filter(|call| call % 4 == 0).count() as u64;
            (THREADS * calls(key).count() as u64, THREADS * failed)
        })
        .collect();
    assert_eq!((totals, hosts.occupancy().evicted), (expected, 0));
}
