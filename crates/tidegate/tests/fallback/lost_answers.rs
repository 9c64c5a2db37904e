//! Lost answers: how many of them count as an outage.

use std::task::Poll;
use std::time::Duration;

use tidegate::Cost;
use tidegate::store::fallback::{DEADLINE, OUTAGE_AFTER, PROBE_EVERY};
use tidegate::store::{Charge, DecidedBy, Op, StepAnswer};

use crate::engine::{Mood, Waiting};
use crate::fallback::{Rig, per_hour, rig_after};

/// Regression: a single late answer counted as an outage of a second.
#[test]
fn an_answer_that_is_late_now_and_then_is_no_outage() {
    let (rig, quota) = (rig_after(OUTAGE_AFTER, 1), per_hour(1000));
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    for _ in 0..10 {
        for answered in [Mood::Now, Mood::Later] {
            for _ in 1..OUTAGE_AFTER {
                rig.engine.be(Mood::Hangs);
                let mut late = rig.begin(Op::Take, &key);
                assert!(late.poll().is_pending());
                rig.clock.advance(DEADLINE);
                let Poll::Ready(Ok(executed)) = late.poll() else { panic!("the deadline is over") };
                assert_eq!(executed.by, DecidedBy::Fallback);
            }
            rig.engine.be(answered);
            assert_eq!(rig.take(key[0]).by, DecidedBy::Engine);
        }
    }
    assert!(rig.store.health().down.is_none() && rig.states().is_empty());
}

/// Many lost answers with deadlines at the same time are not an outage if a step that was sent later was answered.
#[test]
fn an_answer_to_a_later_step_shows_that_the_engine_is_there() {
    let (rig, quota) = (rig_after(OUTAGE_AFTER, 1), per_hour(1000));
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    let lose = |rig: &Rig| {
        rig.engine.be(Mood::Hangs);
        let mut lost: Vec<_> = (0..10).map(|_| rig.begin(Op::Take, &key)).collect();
        assert!(lost.iter_mut().all(|step| step.poll().is_pending()));
        rig.clock.advance(Duration::from_millis(1));
        lost
    };
    let end = |rig: &Rig, lost: Vec<Waiting<StepAnswer>>| {
        rig.clock.advance(DEADLINE);
        for mut step in lost {
            let Poll::Ready(Ok(executed)) = step.poll() else { panic!("the deadline is over") };
            assert_eq!(executed.by, DecidedBy::Fallback);
        }
    };
    let lost = lose(&rig);
    rig.engine.be(Mood::Later);
    assert_eq!(rig.take(key[0]).by, DecidedBy::Engine);
    end(&rig, lost);
    assert!(rig.store.health().down.is_none());
    rig.clock.advance(Duration::from_millis(1));
    let lost = lose(&rig);
    end(&rig, lost);
    assert!(rig.store.health().down.is_some(), "nothing was answered that was asked since");
}

#[test]
fn an_engine_that_is_gone_is_left_after_three_steps() {
    let (rig, quota) = (rig_after(OUTAGE_AFTER, 1), per_hour(1000));
    let key = Charge::new(b"k", &quota, Cost::ONE);
    rig.engine.be(Mood::Errs);
    for step in 1..=50 {
        assert_eq!(rig.take(key).by, DecidedBy::Fallback);
        assert_eq!(rig.store.health().down.is_none(), step < 3);
    }
    assert_eq!(rig.engine.asked(), 3);
    rig.engine.be(Mood::Now);
    rig.clock.advance(PROBE_EVERY);
    assert_eq!(rig.take(key).by, DecidedBy::Engine);
    // Failures before the outage do not count again.
    rig.engine.be(Mood::Errs);
    rig.take(key);
    rig.take(key);
    assert!(rig.store.health().down.is_none());
    let told: Vec<_> = rig.states().iter().map(|(up, _, without)| (*up, *without)).collect();
    assert_eq!(told, [(false, 2), (true, 48)]);
}

#[test]
fn failures_far_apart_are_no_outage() {
    let (rig, quota) = (rig_after(OUTAGE_AFTER, 1), per_hour(1000));
    rig.engine.be(Mood::Errs);
    for _ in 0..20 {
        rig.take(Charge::new(b"k", &quota, Cost::ONE));
        rig.clock.advance(Duration::from_secs(11));
    }
    assert!(rig.store.health().down.is_none());
    for _ in 0..3 {
        assert!(rig.store.health().down.is_none());
        rig.clock.advance(Duration::from_secs(9));
        rig.take(Charge::new(b"k", &quota, Cost::ONE));
    }
    assert!(rig.store.health().down.is_some());
}
