//! A limit that a law moves: what the law learns, and what happens to callers inside and waiters.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::bulkhead::Permit;
use tidegate::clock::ManualClock;
use tidegate::concurrency::{Law, Sample, Signal};
use tidegate::observer::{LimitMoved, Observer};
use tidegate::{Bulkhead, Outcome, Tick, deadline};

use super::{Waiter, ready};

/// A law that records its samples: one place more after a success, one less after any other outcome; a memory reading
/// sets the limit.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<Sample>>>);

impl Law for Told {
    type State = u64;

    fn start(&self, _: Tick) -> u64 {
        2
    }

    fn limit(&self, limit: &u64) -> u64 {
        *limit
    }

    fn learn(&self, limit: &mut u64, sample: &Sample) {
        self.0.lock().unwrap().push(*sample);
        let step = if sample.outcome == Outcome::Success { 1 } else { -1 };
        *limit = limit.saturating_add_signed(step);
    }

    fn sense(&self, limit: &mut u64, _: Tick, signal: Signal) {
        if let Signal::Memory(memory) = signal {
            *limit = memory.into();
        }
    }
}

impl Told {
    fn last(&self) -> Option<Sample> {
        self.0.lock().unwrap().last().copied()
    }
}

#[test]
fn a_sample_is_the_work_without_the_wait() {
    let (law, clock) = (Told::default(), ManualClock::at(Tick::from_secs(100)));
    let bulkhead = Bulkhead::adaptive(law.clone()).with_clock(clock.clone());
    let [one, two] = [bulkhead.try_enter().unwrap(), bulkhead.try_enter().unwrap()];
    let mut waiter = Waiter::new(bulkhead.enter());
    assert!(waiter.poll().is_pending());
    clock.advance(Duration::from_secs(5));
    drop(one);
    assert_eq!(law.last(), None, "nobody said how it went");
    let waited = ready(waiter.poll()).unwrap();
    clock.advance(Duration::from_secs(1));
    waited.leave(Outcome::Overloaded);
    let (at, latency) = (Tick::from_secs(106), Duration::from_secs(1));
    assert_eq!(
        law.last(),
        Some(Sample {
            at,
            latency,
            held: latency,
            in_flight: 2,
            places: 1,
            time_left: None,
            outcome: Outcome::Overloaded
        })
    );
    two.leave(Outcome::Ignored);
    assert_eq!((law.0.lock().unwrap().len(), bulkhead.standing().limit), (1, 1));
}

/// The place of a stream is held for as long as the stream lasts, and the latency ends where the stream begins.
#[test]
fn a_stream_has_a_latency_and_a_time_in_its_place() {
    let (law, clock) = (Told::default(), ManualClock::default());
    let bulkhead = Bulkhead::adaptive(law.clone()).with_clock(clock.clone());
    let [latency, held] = [1, 21].map(Duration::from_secs);
    let mut permit = bulkhead.try_enter().unwrap();
    clock.advance(latency);
    permit.answer_begins();
    clock.advance(held - latency);
    permit.answer_begins();
    permit.leave(Outcome::Success);
    let at = Tick::from_secs(21);
    assert_eq!(
        law.last(),
        Some(Sample {
            at,
            latency,
            held,
            in_flight: 1,
            places: 1,
            time_left: None,
            outcome: Outcome::Success
        })
    );
    let mut fixed = Bulkhead::new(1).unwrap().try_enter().unwrap();
    fixed.answer_begins(); // nobody learns from it
}

/// The earlier of the deadline of the entry and the one that the task carries, from where the work begins.
#[test]
fn a_sample_says_how_long_its_caller_still_waited() {
    let (law, clock) = (Told::default(), ManualClock::at(Tick::from_secs(100)));
    let bulkhead = Bulkhead::adaptive(law.clone()).with_clock(clock.clone());
    let time_left = || law.last().unwrap().time_left;
    let leave = |permit: Permit| permit.leave(Outcome::Success);
    let [ten, twenty] = [110, 120].map(Tick::from_secs);

    leave(bulkhead.enter().until(ten).now().unwrap());
    assert_eq!(time_left(), Some(Duration::from_secs(10)));
    leave(deadline::carry(ten, || bulkhead.enter().until(twenty).now()).unwrap());
    assert_eq!(time_left(), Some(Duration::from_secs(10)));
    leave(deadline::carry(twenty, || bulkhead.try_enter()).unwrap());
    assert_eq!(time_left(), Some(Duration::from_secs(20)));
    leave(deadline::carry(twenty, || bulkhead.enter().try_now()).unwrap());
    assert_eq!(time_left(), Some(Duration::from_secs(20)));
    leave(bulkhead.enter().within(Duration::from_secs(1)).now().unwrap());
    assert_eq!(time_left(), None, "that bounds the wait alone");

    let inside: Vec<Permit> = std::iter::from_fn(|| bulkhead.try_enter().ok()).collect();
    let mut waiter = Waiter::new(bulkhead.enter().until(ten));
    assert!(waiter.poll().is_pending());
    clock.advance(Duration::from_secs(4));
    drop(inside);
    let waited = ready(waiter.poll()).unwrap();
    clock.advance(Duration::from_secs(6));
    leave(waited);
    assert_eq!(time_left(), Some(Duration::from_secs(6)), "four of ten seconds went by in the line");
    assert!(law.last().unwrap().is_late(), "an answer at the deadline is late");
}

#[test]
fn a_lowered_limit_drains_and_a_raised_one_wakes() {
    let bulkhead = Bulkhead::adaptive(Told::default());
    let [one, two] = [bulkhead.try_enter().unwrap(), bulkhead.try_enter().unwrap()];
    one.leave(Outcome::Failure);
    assert!(bulkhead.try_enter().is_err(), "one place, and one is inside");
    let mut line = [Waiter::new(bulkhead.enter()), Waiter::new(bulkhead.enter())];
    assert!(line.iter_mut().all(|waiter| waiter.poll().is_pending()));
    two.leave(Outcome::Success);
    assert!(line.iter().all(Waiter::was_woken), "the place that was left, and one more");
    let inside = line.each_mut().map(|waiter| ready(waiter.poll()).unwrap());
    assert_eq!((bulkhead.standing().limit, bulkhead.standing().remaining), (2, 0));
    bulkhead.sense(Signal::Memory(9));
    assert_eq!(bulkhead.standing().remaining, 7);
    bulkhead.sense(Signal::Memory(0));
    assert_eq!((bulkhead.standing().limit, bulkhead.standing().debt), (1, 1), "at least one place");
    drop(inside);
    assert_eq!(bulkhead.standing().remaining, 1);
}

#[test]
fn nobody_but_the_law_sets_the_limit() {
    let bulkhead = Bulkhead::adaptive(Told::default());
    let told = bulkhead.change(5).unwrap_err().to_string();
    assert_eq!(told, "max 5 cannot be set while a law moves the limit; change the law's least and most");
}

#[test]
fn an_observer_hears_of_each_move_of_the_limit() {
    let (moves, clock) = (Arc::new(Moves::default()), ManualClock::at(Tick::from_secs(7)));
    let bulkhead =
        Bulkhead::adaptive(Told::default()).with_observer(Arc::clone(&moves)).with_clock(clock.clone());
    bulkhead.try_enter().unwrap().leave(Outcome::Success);
    drop(bulkhead.try_enter().unwrap());
    clock.advance(Duration::from_secs(1));
    bulkhead.sense(Signal::Memory(9));
    bulkhead.sense(Signal::Memory(9));
    assert_eq!(*moves.0.lock().unwrap(), [(7, 2, 3), (8, 3, 9)]);
    let fixed = Bulkhead::new(4).unwrap().with_clock(clock).with_observer(Arc::clone(&moves));
    fixed.change(6).unwrap();
    fixed.change(6).unwrap();
    assert_eq!(moves.0.lock().unwrap().last(), Some(&(8, 4, 6)), "by hand, too");
}

/// Records each move of the limit: the time in seconds, the old limit and the new one.
#[derive(Debug, Default)]
struct Moves(Mutex<Vec<(u64, u64, u64)>>);

impl Observer for Moves {
    fn on_limit(&self, moved: &LimitMoved) {
        let second = moved.at.as_nanos() / 1_000_000_000;
        self.0.lock().unwrap().push((second, moved.from, moved.to));
    }
}

#[test]
fn a_step_of_construction_starts_the_law_again() {
    let bulkhead = Bulkhead::adaptive(Told::default());
    bulkhead.try_enter().unwrap().leave(Outcome::Success);
    assert_eq!(bulkhead.standing().limit, 3);
    assert_eq!(bulkhead.clone().with_room(1).standing().limit, 2);
}

#[test]
fn no_sample_of_many_threads_is_lost() {
    let law = Told::default();
    let bulkhead = Bulkhead::adaptive(law.clone());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    bulkhead.enter().within(Duration::MAX).blocking().unwrap().leave(Outcome::Success);
                }
            });
        }
    });
    bulkhead.try_enter().unwrap().leave(Outcome::Success);
    assert_eq!((law.0.lock().unwrap().len(), bulkhead.standing().limit), (2001, 2003));
}

#[cfg(target_os = "linux")]
#[test]
fn a_watch_tells_the_law_of_the_machine() {
    let watch = tidegate::concurrency::signals::Watch::start().unwrap();
    let bulkhead = Bulkhead::adaptive(Told::default()).with_signals(watch.clone());
    let (sender, receiver) = std::sync::mpsc::sync_channel(100);
    watch.subscribe(move |signal| sender.try_send(signal).is_ok());
    // Listeners are called in order, so the bulkhead has the first reading when the second one arrives.
    let memories = std::iter::from_fn(|| receiver.recv_timeout(Duration::from_secs(60)).ok());
    let mut memories = memories.filter_map(|signal| match signal {
        Signal::Memory(memory) => Some(memory),
        Signal::Cpu(_) | Signal::CpuAveraged(_) => None,
    });
    assert!(memories.next().is_some() && memories.next().is_some());
    assert_ne!(bulkhead.standing().limit, 2);
}
