//! Compare-and-set over engines that lose, wait, repeat themselves or fall silent.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod byte_map;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::store::{
    Answer, ByteMap, Caps, CasStore, Charge, Ending, Home, Later, Occupancy, Op, OwnedStep, PlainStore, Read,
    Settled, Settling, Step, Store, StoreError, Write, conformance,
};
use tidegate::store::conformance::Random;
use tidegate::{Clock as _, Cost, ManualClock, Outcome, Quota, Tick};
use tidegate_core::{Finish, Receipt};

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

/// Settles the steps of a batch in another order, where neither their keys nor their ticks say in which.
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
            // The ticks that steps have one after the other: a late one counts as the one before.
            let mut latest = Tick::EPOCH;
            let ticks: Vec<Tick> = steps
                .iter()
                .map(|step| {
                    latest = latest.max(step.with(|step| step.now));
                    latest
                })
                .collect();
            while answers.iter().any(Option::is_none) {
                // The last of those that have no key in common with an unanswered one before them, nor another tick.
                let ready = (0..steps.len()).rev().find(|at| {
                    let mine = keys(&steps[*at]);
                    let earlier = (0..*at).filter(|other| answers[*other].is_none());
                    let after = |other: usize| {
                        ticks[other] != ticks[*at] || keys(&steps[other]).iter().any(|key| mine.contains(key))
                    };
                    answers[*at].is_none() && !earlier.into_iter().any(after)
                });
                let at = ready.unwrap();
                answers[at] = Some(settle_at(&store, &steps[at], ticks[at]).await);
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

async fn settle_at(store: &CasStore<Faulty>, step: &OwnedStep, now: Tick) -> Answer {
    let mut settled = Settled::default();
    match step.with(|step| store.settle_into(&Step { now, ..*step }, &mut settled)) {
        Settling::Done(done) => done.map(|()| settled),
        Settling::Later(later) => later.await,
    }
}

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

/// Moves an engine's clock to each step's tick, so that it deletes by the time that decides.
#[derive(Debug)]
struct Timed(CasStore<Faulty>, ManualClock);

impl Timed {
    fn new() -> Self {
        let clock = ManualClock::default();
        Self(over(&Fault::Forgets(clock.clone())), clock)
    }
}

impl Store for Timed {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        let step = step.read_clock();
        self.1.set(self.1.now().max(step.now));
        Settling::Done(self.0.blocking_settle(&step).map(|settled| *out = settled))
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }

    fn home(&self) -> Home {
        self.0.home()
    }
}

/// Whatever was charged, ended, marked or reset: a key that is gone when its time to be kept is over would have answered the same, to
/// the last field.
#[test]
fn an_engine_that_deletes_what_need_not_be_kept_answers_as_one_that_never_does() {
    for quota in conformance::quotas() {
        // Its receipts hold how its state is written down, and a new one is written otherwise than one that filled up; see below.
        if !matches!(*quota, Quota::TokenBucket(_)) {
            conformance::run(Timed::new, &[quota], 2_000);
        }
    }
}

/// As above with limits that change under their keys: the same is allowed, and the same comes back.
#[test]
fn what_is_deleted_says_nothing_to_other_limits_and_old_receipts() {
    let quotas = conformance::quotas();
    for seed in 0..60 {
        let mut random = Random::seeded(seed);
        let (kept, forgets) = (PlainStore::default(), Timed::new());
        let mut now = Tick::from_secs(1_600_000_000);
        let mut open: Vec<(usize, usize, [Receipt; 2])> = Vec::new();
        let of_seed = |random: &mut Random| (seed as usize + random.below(3) as usize) % quotas.len();
        for _ in 0..1_000 {
            // Never at one tick: where a key comes under limits of two kinds at one, what was charged at it is void.
            let millis = [1, 1, 100, 3000, 90_000_000][random.below(5) as usize];
            now = now.after(Duration::from_millis(1 + random.below(millis)));
            let (key, quota) = (random.below(3) as usize, of_seed(&mut random));
            let settle = |key: usize, quota: usize, op: [Op<'_>; 2], cost| {
                let name = [key as u8];
                let charges = [Charge::new(&name, &quotas[quota], cost)];
                let [one, other] = op.map(|op| Step::new(now, op, &charges));
                (kept.blocking_settle(&one).unwrap(), forgets.blocking_settle(&other).unwrap())
            };
            let cost = Cost::new(1 + random.below(4)).unwrap();
            let (one, other) = match random.below(8) {
                0 => settle(key, quota, [Op::Reset; 2], cost),
                1..4 if !open.is_empty() => {
                    let (key, quota, made) = open.swap_remove(random.below(open.len() as u64) as usize);
                    let cost = made[0].cost;
                    let finish = Finish { used: random.below(cost.units() + 2), outcome: Outcome::Ignored };
                    let endings = made.map(|receipt| [Ending::new(receipt, finish)]);
                    settle(key, quota, [Op::Finish(&endings[0]), Op::Finish(&endings[1])], cost)
                }
                _ => {
                    let (one, other) = settle(key, quota, [Op::Take; 2], cost);
                    let made = [&one, &other].map(|settled| settled.lines[0].receipt);
                    if let [Some(one), Some(other)] = made {
                        open.push((key, quota, [one, other]));
                    }
                    (one, other)
                }
            };
            let said = |settled: &Settled| {
                let line = settled.lines[0];
                (settled.allowed, line.decision.ruling, line.receipt.map(|receipt| receipt.cost))
            };
            assert_eq!(said(&one), said(&other), "seed {seed} at {now:?}, {quota:?} of key {key}");
        }
    }
}
