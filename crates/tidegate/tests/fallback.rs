//! What happens when an engine is gone: which store decides, for how long, and what is reported.

mod ended;
use crate::engine;
mod lost_answers;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::Retry;
use tidegate::store::fallback::{Change, DEADLINE, PROBE_EVERY};
use tidegate::store::{
    Charge, ChargeRules, DecidedBy, Executed, Execution, Fallback, Home, OnStoreError, Op, Step, StepAnswer,
    Store, StoreError,
};
use tidegate::{Cost, Quota, Tick};

use engine::{Engine, Mood, Waiting};

const START: Tick = Tick::from_secs(1_000_000);

/// A fallback around a test engine, and the state changes that it reported.
struct Rig {
    clock: ManualClock,
    engine: Engine,
    store: Fallback,
    told: Arc<Mutex<Vec<Change>>>,
}

fn rig(nodes: u64) -> Rig {
    rig_after(1, nodes)
}

/// Makes a rig whose engine counts as gone after `failures` failures in a row.
fn rig_after(failures: u32, nodes: u64) -> Rig {
    let (clock, engine) = (ManualClock::at(START), Engine::default());
    let told: Arc<Mutex<Vec<Change>>> = Arc::default();
    let store = Fallback::around(engine.clone(), clock.clone())
        .nodes(nodes)
        .outage_after(failures)
        .on_change({
            let told = Arc::clone(&told);
            move |change| told.lock().push(change.clone())
        })
        .build();
    Rig { clock, engine, store, told }
}

impl Rig {
    fn begin(&self, op: Op<'_>, charges: &[Charge<'_>]) -> Waiting<StepAnswer> {
        let mut out = Executed::default();
        match self.store.execute_into(&Step::new(self.clock.now(), op, charges), &mut out) {
            Execution::Done(done) => Waiting::ready(done.map(|()| out)),
            Execution::Later(later) => Waiting::of(later),
        }
    }

    /// Executes a step that is answered without moving the clock.
    fn execute(&self, op: Op<'_>, charges: &[Charge<'_>]) -> StepAnswer {
        match self.begin(op, charges).poll() {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("nothing was to be waited for"),
        }
    }

    fn take(&self, charge: Charge<'_>) -> Executed {
        self.execute(Op::Take, &[charge]).unwrap()
    }

    fn states(&self) -> Vec<(bool, String, u64)> {
        self.told
            .lock()
            .iter()
            .map(|change| (change.up, change.reason.to_string(), change.without_engine))
            .collect()
    }
}

fn per_hour(burst: u64) -> Arc<Quota> {
    Arc::new(Quota::per_hour(1).burst(burst).gcra().unwrap())
}

fn on(word: OnStoreError, charge: Charge<'_>) -> Charge<'_> {
    Charge { rules: ChargeRules { on_error: word, ..charge.rules }, ..charge }
}

#[test]
fn while_the_engine_answers_it_decides() {
    let (rig, quota) = (rig(3), per_hour(2));
    for mood in [Mood::Now, Mood::Later] {
        rig.engine.be(mood);
        let executed = rig.take(Charge::new(b"k", &quota, Cost::ONE));
        assert_eq!((executed.allowed, executed.by), (true, DecidedBy::Engine), "{mood:?}");
    }
    assert!(
        !rig.take(Charge::new(b"k", &quota, Cost::ONE)).allowed,
        "two of two are spent, whatever the nodes"
    );
    assert!(rig.store.health().down.is_none() && rig.states().is_empty());
}

#[test]
fn each_charge_goes_by_its_own_word() {
    let quota = per_hour(2);
    let key = Charge::new(b"k", &quota, Cost::ONE);
    for (word, allowed) in [
        (OnStoreError::Allow, [true, true, true]),
        (OnStoreError::Deny, [false, false, false]),
        (OnStoreError::Local, [true, true, false]),
    ] {
        let rig = rig(1);
        rig.engine.be(Mood::Errs);
        for expected in allowed {
            let executed = rig.take(on(word, key));
            assert_eq!((executed.allowed, executed.by), (expected, DecidedBy::Fallback), "{word:?}");
            assert_eq!(executed.lines[0].receipt.is_some(), expected && word == OnStoreError::Local);
            if word == OnStoreError::Deny {
                assert_eq!(executed.lines[0].decision.retry(), Retry::Unknown);
            }
        }
    }
}

#[test]
fn a_closed_charge_refuses_the_step_and_nothing_of_it_is_spent() {
    let (rig, quota) = (rig(1), per_hour(2));
    rig.engine.be(Mood::Errs);
    let (open, closed) =
        (Charge::new(b"o", &quota, Cost::ONE), on(OnStoreError::Deny, Charge::new(b"c", &quota, Cost::ONE)));
    let free = on(OnStoreError::Allow, Charge::new(b"f", &quota, Cost::ONE));
    let refused = rig.execute(Op::Take, &[open, closed, free]).unwrap();
    assert!(!refused.allowed && refused.lines.iter().all(|line| line.receipt.is_none()));
    assert_eq!(
        refused.lines.iter().map(|line| line.decision.is_allowed()).collect::<Vec<_>>(),
        [true, false, true]
    );
    let shadow = Charge { binding: false, ..closed };
    let passed = rig.execute(Op::Take, &[open, shadow]).unwrap();
    assert!(passed.allowed, "a shadow refuses nobody");
    assert_eq!(
        passed.lines[0].decision.standing.remaining, 1,
        "the first of two: the refused step spent none"
    );
}

#[test]
fn an_engine_that_hangs_costs_those_under_way_one_deadline_and_the_others_nothing() {
    let (rig, quota) = (rig(1), per_hour(100));
    rig.engine.be(Mood::Hangs);
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    let mut under_way: Vec<_> = (0..3).map(|_| rig.begin(Op::Take, &key)).collect();
    assert!(under_way.iter_mut().all(|step| step.poll().is_pending()));
    rig.clock.advance(DEADLINE - Duration::from_nanos(1));
    assert!(under_way.iter_mut().all(|step| step.poll().is_pending()));
    rig.clock.advance(Duration::from_nanos(1));
    for step in &mut under_way {
        let Poll::Ready(Ok(executed)) = step.poll() else { panic!("the deadline is over") };
        assert!(executed.allowed && executed.by == DecidedBy::Fallback && executed.at == rig.clock.now());
    }
    assert_eq!(rig.engine.open(), 0, "what was too late is dropped");
    for _ in 0..50 {
        assert_eq!(rig.take(key[0]).by, DecidedBy::Fallback);
    }
    assert_eq!(rig.engine.asked(), 3);
    // One step is the probe; the others do not wait for it.
    rig.clock.advance(PROBE_EVERY);
    let mut probe = rig.begin(Op::Take, &key);
    assert!(probe.poll().is_pending());
    assert_eq!(rig.take(key[0]).by, DecidedBy::Fallback);
    assert_eq!(rig.engine.asked(), 4);
    rig.clock.advance(DEADLINE);
    assert!(probe.poll().is_ready());
    assert_eq!(rig.clock.sleepers(), 0);
    assert_eq!(rig.states(), [(false, "no answer within 250 ms".to_owned(), 0)], "one change, and not 55");
    assert_eq!(rig.store.health().without_engine, 55);
}

#[test]
fn an_engine_that_comes_back_is_asked_by_one_first() {
    let (rig, quota) = (rig(1), per_hour(100));
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    rig.engine.be(Mood::Errs);
    rig.take(key[0]);
    rig.engine.be(Mood::Hangs);
    rig.clock.advance(PROBE_EVERY);
    let mut probe = rig.begin(Op::Take, &key);
    assert!(probe.poll().is_pending());
    for _ in 0..20 {
        assert_eq!(rig.take(key[0]).by, DecidedBy::Fallback, "no stampede");
    }
    rig.engine.be(Mood::Later);
    rig.engine.answer_all();
    let Poll::Ready(Ok(executed)) = probe.poll() else { panic!("it was answered") };
    assert_eq!(executed.by, DecidedBy::Engine);
    assert!((0..20).all(|_| rig.take(key[0]).by == DecidedBy::Engine));
    assert_eq!(
        rig.states(),
        [(false, "connection refused".to_owned(), 0), (true, "connection refused".to_owned(), 21)]
    );
    let last = rig.told.lock()[1].clone();
    assert_eq!((last.at, last.lasted), (START.after(PROBE_EVERY), PROBE_EVERY));
}

#[test]
fn a_probe_that_nobody_polls_or_waits_for_leaves_the_next_one_to_others() {
    let (rig, quota) = (rig(1), per_hour(100));
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    rig.engine.be(Mood::Errs);
    rig.take(key[0]);
    rig.engine.be(Mood::Hangs);
    rig.clock.advance(PROBE_EVERY);
    drop(rig.begin(Op::Take, &key));
    assert_eq!(rig.engine.asked(), 1, "dropped unpolled, it asked nothing");
    let mut probe = rig.begin(Op::Take, &key);
    assert!(probe.poll().is_pending(), "so the next is the probe");
    drop(probe);
    assert_eq!(
        rig.take(key[0]).by,
        DecidedBy::Fallback,
        "one was asked and went away: the next in an interval"
    );
    rig.engine.be(Mood::Later);
    rig.clock.advance(PROBE_EVERY);
    assert_eq!(rig.take(key[0]).by, DecidedBy::Engine);
}

#[test]
fn an_engine_that_flaps_is_told_of_once_for_each_change() {
    let (rig, quota) = (rig(1), per_hour(1000));
    let key = Charge::new(b"k", &quota, Cost::ONE);
    for _ in 0..5 {
        rig.engine.be(Mood::Errs);
        (0..10).for_each(|_| drop(rig.take(key)));
        rig.engine.be(Mood::Now);
        assert_eq!(rig.take(key).by, DecidedBy::Fallback, "not before its time");
        rig.clock.advance(PROBE_EVERY);
        (0..10).for_each(|_| assert_eq!(rig.take(key).by, DecidedBy::Engine));
    }
    let ups: Vec<_> = rig.states().iter().map(|(up, _, without)| (*up, *without)).collect();
    assert_eq!(ups, [(false, 0), (true, 11)].repeat(5));
}

#[test]
fn a_contended_key_is_decided_here_and_the_next_step_is_the_engines() {
    let (rig, quota) = (rig(1), per_hour(100));
    let key = Charge::new(b"k", &quota, Cost::ONE);
    rig.engine.be(Mood::Contended);
    assert_eq!(rig.take(key).by, DecidedBy::Fallback);
    rig.engine.be(Mood::Now);
    assert_eq!(rig.take(key).by, DecidedBy::Engine);
    assert!(rig.states().is_empty());
    let twice = rig.execute(Op::Take, &[key, key]);
    assert_eq!(twice, Err(StoreError::RepeatedKey), "a caller's mistake is returned");
}

/// Regression: nodes that wrote one key of a distant engine lost each round until their deadline. Although the engine
/// answered all the time, it counted as gone, and the fallback decided all steps for a second.
#[test]
fn an_engine_that_answers_is_not_gone_because_a_key_could_not_be_had_in_time() {
    let (rig, quota) = (rig(1), per_hour(100));
    let key = [Charge::new(b"k", &quota, Cost::ONE)];
    let too_late = |answers: bool| {
        rig.engine.be(Mood::Hangs);
        let mut step = rig.begin(Op::Take, &key);
        assert!(step.poll().is_pending());
        if answers {
            rig.engine.answers_exchanges();
        }
        rig.clock.advance(DEADLINE);
        let Poll::Ready(answer) = step.poll() else { panic!("its deadline is over") };
        assert_eq!(answer.unwrap().by, DecidedBy::Fallback);
        rig.engine.be(Mood::Now);
    };
    too_late(true);
    assert_eq!(rig.take(key[0]).by, DecidedBy::Engine);
    too_late(false);
    assert_eq!(rig.take(key[0]).by, DecidedBy::Fallback, "it is gone");
    // A probe that is answered too late still shows that the engine is back.
    rig.clock.advance(PROBE_EVERY);
    too_late(true);
    assert_eq!(rig.take(key[0]).by, DecidedBy::Engine);
    let ups: Vec<bool> = rig.states().iter().map(|(up, ..)| *up).collect();
    assert_eq!(ups, [false, true]);
}

#[test]
fn many_steps_in_one_exchange_have_one_deadline() {
    let (rig, quota) = (rig(1), per_hour(100));
    let keys = [[Charge::new(b"a", &quota, Cost::ONE)], [Charge::new(b"b", &quota, Cost::ONE)]];
    let steps: Vec<_> = keys.iter().map(|key| Step::new(START, Op::Take, key)).collect();
    let by = |answers: &[StepAnswer]| answers.iter().map(|one| one.as_ref().unwrap().by).collect::<Vec<_>>();
    let mut out = Vec::new();
    rig.engine.be(Mood::Later);
    let Poll::Ready(answers) = Waiting::of(rig.store.execute_each(&steps, &mut out).unwrap()).poll() else {
        panic!()
    };
    assert_eq!(by(&answers), [DecidedBy::Engine; 2]);
    rig.clock.advance(Duration::from_nanos(1));
    rig.engine.be(Mood::Hangs);
    let mut batch = Waiting::of(rig.store.execute_each(&steps, &mut out).unwrap());
    assert!(batch.poll().is_pending());
    rig.clock.advance(DEADLINE);
    let Poll::Ready(answers) = batch.poll() else { panic!("one deadline for all") };
    assert_eq!(by(&answers), [DecidedBy::Fallback; 2]);
    assert!(rig.store.execute_each(&steps, &mut out).is_none(), "then on the spot");
    assert_eq!(by(&out), [DecidedBy::Fallback; 2]);
}

#[test]
fn homes_are_told_apart() {
    let rig = rig(1);
    assert_eq!(rig.store.home(), Home::Nodes);
    assert!(matches!(rig.store.home_of(true), Home::Process { .. }));
    assert_eq!(rig.store.home_of(true), rig.store.home_of(true));
}

/// Regression: an empty list of steps, executed while the engine was gone, counted as an answered probe.
#[test]
fn no_step_says_nothing_of_the_engine() {
    let (rig, quota) = (rig(1), per_hour(60));
    rig.engine.be(Mood::Errs);
    rig.take(Charge::new(b"k", &quota, Cost::ONE));
    rig.clock.advance(PROBE_EVERY);
    let mut out = vec![Err(StoreError::MustWait)];
    assert!(rig.store.execute_each(&[], &mut out).is_none() && out.is_empty());
    assert!(rig.store.health().down.is_some());
}
