use std::future::pending;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::block_on::block_on;
use crate::clock::ManualClock;
use crate::deadline::carry;

const SECOND: Duration = Duration::from_secs(1);

fn step() -> (Step, ManualClock) {
    let clock = ManualClock::default();
    let timeouts = Timeouts::new(2 * SECOND, 10 * SECOND).expect("times");
    (Step::new(timeouts).with_clock(clock.clone()), clock)
}

#[test]
fn the_work_carries_the_least_of_what_bounds_it() {
    let (step, _) = step();
    let finds = |step: &Step| block_on(step.run(async { carried() })).unwrap();
    let at = |secs| Some(Deadline::from(Tick::from_secs(secs)));
    assert_eq!(finds(&step), at(2), "the default");
    assert_eq!(finds(&step.clone().within(SECOND)), at(1), "its own");
    assert_eq!(carry(Tick::from_secs(5), || finds(&step)), at(5), "what is left");
    assert_eq!(carry(Tick::from_secs(99), || finds(&step)), at(10), "the ceiling");
    assert_eq!(carry(Tick::from_secs(5), || finds(&step.clone().within(SECOND))), at(1), "its own");
}

#[test]
fn work_that_cannot_be_done_is_neither_polled_nor_left_uncounted() {
    let (step, _) = step();
    let never = async { unreachable!("there is no time for it") };
    assert_eq!(carry(Tick::EPOCH, || block_on(step.run(never))), Err::<(), _>(OutOfTime::NotBegun));
    let needs_two = step.clone().needing(2 * SECOND);
    assert_eq!(block_on(needs_two.run(async { 1 })), Ok(1), "exactly enough");
    let needs_more = step.clone().needing(2 * SECOND + Duration::from_nanos(1));
    assert_eq!(block_on(needs_more.run(async { 1 })), Err(OutOfTime::NotBegun));
    let own = step.clone().within(SECOND).needing(2 * SECOND);
    assert_eq!(block_on(own.run(async { 1 })), Err(OutOfTime::NotBegun), "its own time is too short");
    assert_eq!(step.counts(), StepCounts { begun: 1, not_begun: 3, cut_off: 0 });
}

#[test]
fn work_is_dropped_when_its_time_is_up() {
    let (step, clock) = step();
    let mut run = pin!(step.run(pending::<()>()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(run.as_mut().poll(&mut cx).is_pending());
    clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert!(run.as_mut().poll(&mut cx).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(OutOfTime::CutOff)));
    assert_eq!(step.counts(), StepCounts { begun: 1, not_begun: 0, cut_off: 1 });
}

/// A caller that leaves little time must not make the work look as if it hung.
#[test]
fn work_that_had_less_than_half_of_its_usual_time_was_cut_short() {
    let (step, clock) = step();
    let own = step.clone().within(SECOND / 2);
    // Half of the default of 2 s, and half of the own time of 500 ms.
    for (step, millis, late) in [
        (&step, 999, OutOfTime::CutShort),
        (&step, 1000, OutOfTime::CutOff),
        (&own, 249, OutOfTime::CutShort),
        (&own, 250, OutOfTime::CutOff),
        (&own, 9000, OutOfTime::CutOff),
    ] {
        let until = clock.now().after(Duration::from_millis(millis));
        let mut run = Box::pin(carry_through(until, step.run(pending::<()>())));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(run.as_mut().poll(&mut cx).is_pending());
        clock.advance(SECOND);
        assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(late)), "{millis} ms");
    }
    assert_eq!(step.counts().cut_off, 5, "both kinds");
}

#[derive(Debug, Default)]
struct Heard(parking_lot::Mutex<Vec<StepDid>>);

impl Observer for Heard {
    fn on_step(&self, did: StepDid) {
        self.0.lock().push(did);
    }
}

#[test]
fn an_observer_hears_of_work_in_time_and_of_work_that_was_late() {
    let heard = Arc::new(Heard::default());
    let (step, clock) = step();
    let step = step.with_observer(heard.clone());
    let takes = |time| {
        let clock = clock.clone();
        async move { clock.advance(time) }
    };
    assert_eq!(block_on(step.run(takes(SECOND))), Ok(()));
    assert_eq!(carry(Tick::EPOCH, || block_on(step.run(takes(SECOND)))), Err(OutOfTime::NotBegun));
    for millis in [1000, 999] {
        let until = clock.now().after(Duration::from_millis(millis));
        let mut run = Box::pin(carry_through(until, step.run(pending::<()>())));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(run.as_mut().poll(&mut cx).is_pending());
        clock.advance(SECOND);
        assert!(run.as_mut().poll(&mut cx).is_ready());
    }
    let expected = [StepDid::Done { took: SECOND }, StepDid::NotBegun, StepDid::CutOff, StepDid::CutShort];
    assert_eq!(*heard.0.lock(), expected);
}
