//! Compare-and-set over engines that lose, wait, repeat themselves or fall silent.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod byte_map;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use tidegate::store::{
    Answer, ByteMap, Caps, CasStore, Charge, Home, Later, Occupancy, Op, OwnedStep, Read, Settled, Settling,
    Step, Store, StoreError, Write, conformance,
};
use tidegate::{Cost, Tick};

use byte_map::Bytes;
use byte_map::faulty::{Fault, Faulty};

fn over(fault: &Fault) -> CasStore<Faulty> {
    CasStore::new(Faulty::new(fault.clone()))
}

#[test]
fn it_conforms_although_every_third_write_loses() {
    conformance::run(|| over(&Fault::Loses), &conformance::quotas(), 10_000);
}

#[test]
fn it_conforms_over_an_engine_that_answers_late() {
    conformance::run(|| over(&Fault::Late), &conformance::quotas(), 4_000);
}

#[test]
fn it_conforms_where_each_write_is_applied_twice() {
    conformance::run(|| over(&Fault::Twice), &conformance::quotas(), 4_000);
}

#[test]
fn it_conforms_by_an_engines_clock_that_runs_fast_slow_and_backwards() {
    conformance::run_by_clock(|clock| over(&Fault::Clock(clock)), &conformance::quotas(), 10_000);
}

/// Settles the steps of a batch in another order, where no key of theirs says in which.
#[derive(Debug)]
struct OutOfOrder(Arc<CasStore<Faulty>>);

impl Store for OutOfOrder {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        self.0.settle_into(step, out)
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        out.clear();
        let (store, steps): (_, Vec<OwnedStep>) =
            (Arc::clone(&self.0), steps.iter().map(OwnedStep::of).collect());
        Some(Box::pin(async move {
            let mut answers: Vec<Option<Answer>> = vec![None; steps.len()];
            let keys = |step: &OwnedStep| {
                step.with(|step| step.charges.iter().map(|charge| charge.key.to_vec()).collect::<Vec<_>>())
            };
            while answers.iter().any(Option::is_none) {
                // The last of those that no unanswered one before it has a key in common with.
                let ready = (0..steps.len()).rev().find(|at| {
                    let mine = keys(&steps[*at]);
                    let earlier = (0..*at).filter(|other| answers[*other].is_none());
                    answers[*at].is_none()
                        && !earlier
                            .into_iter()
                            .any(|other| keys(&steps[other]).iter().any(|key| mine.contains(key)))
                });
                let at = ready.unwrap();
                answers[at] = Some(store.settle_owned(&steps[at]).await);
            }
            answers.into_iter().flatten().collect()
        }))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }

    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn home(&self) -> Home {
        self.0.home()
    }
}

trait SettleOwned {
    async fn settle_owned(&self, step: &OwnedStep) -> Answer;
}

impl SettleOwned for CasStore<Faulty> {
    async fn settle_owned(&self, step: &OwnedStep) -> Answer {
        let mut settled = Settled::default();
        match step.with(|step| self.settle_into(step, &mut settled)) {
            Settling::Done(done) => done.map(|()| settled),
            Settling::Later(later) => later.await,
        }
    }
}

/// An engine's own clock stands for a batch whose steps change places: each would be decided by another tick otherwise.
#[test]
fn a_batch_may_be_settled_in_another_order() {
    let quotas = conformance::quotas();
    conformance::run(|| OutOfOrder(Arc::new(over(&Fault::Late))), &quotas, 2_000);
}

#[test]
fn a_key_contended_for_ever_is_an_error_and_changes_nothing() {
    #[derive(Debug, Default)]
    struct Contended(Bytes);
    impl ByteMap for Contended {
        fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
            self.0.read(tag, keys)
        }
        fn write_if_unchanged(&self, _: u64, _: Vec<Write>) -> Later<Result<bool, StoreError>> {
            Box::pin(async { Ok(false) })
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let store = CasStore::new(Contended::default());
    let quotas = conformance::quotas();
    let charges = [Charge::new(b"k", &quotas[0], Cost::ONE)];
    let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    assert!(matches!(store.blocking_settle(&step), Err(StoreError::Contended { .. })));
    assert_eq!(store.occupancy().used, 0);
}

/// Whoever waits for an engine that never answers goes away in the end; nobody else waits for that.
#[test]
fn an_engine_that_never_answers_one_step_answers_others() {
    let silent = Arc::new(AtomicU64::new(0));
    let store = over(&Fault::Never(Arc::clone(&silent)));
    let quotas = conformance::quotas();
    let charges = [Charge::new(b"k", &quotas[0], Cost::ONE)];
    let take = Step::new(Tick::from_secs(1), Op::Take, &charges);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        silent.store(1, Ordering::Relaxed);
        let Settling::Later(mut later) = store.settle_into(&take, &mut Settled::default()) else {
            panic!("it waits")
        };
        for _ in 0..100 {
            assert!(later.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        waiting.push(later);
        // While it waits, and when it is given up.
        assert!(store.blocking_settle(&take).is_ok());
        if waiting.len() == 2 {
            waiting.clear();
        }
    }
    let left = store.blocking_settle(&Step { op: Op::Peek, ..take }).unwrap().lines[0].decision.standing;
    assert_eq!(left.remaining, left.limit - 3, "those that were not answered spent nothing");
}
