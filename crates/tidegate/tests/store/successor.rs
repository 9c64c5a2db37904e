//! A store that takes over the counters of another one decides as that one would have.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tidegate::store::conformance::{self, Random};
use tidegate::store::{
    CasStore, Charge, DecidedBy, Ending, Executed, Execution, MemoryStore, Occupancy, Op, PlainStore, Step,
    StepAnswer, Store, StoreError, Successor,
};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::{Finish, Receipt};

use crate::byte_map::Bytes;
use crate::store::steps;

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::with_capacity(1000).unwrap())
}

fn plain() -> Arc<dyn Store> {
    Arc::new(PlainStore::default())
}

fn engine() -> Arc<dyn Store> {
    Arc::new(CasStore::new(Bytes::default()))
}

#[test]
fn it_conforms() {
    conformance::run(|| Successor::new(memory(), plain()), &conformance::quotas(), steps(3_000));
    conformance::run(|| Successor::new(engine(), plain()), &conformance::quotas(), steps(1_000));
}

/// The answer without who gave it, and without the receipts' marks: those of a key that was full again start anew.
fn answer(store: &dyn Store, step: &Step<'_>) -> (Executed, Vec<Option<Receipt>>) {
    let mut executed = store.blocking_execute(step).unwrap();
    let receipts = executed.lines.iter().map(|line| line.receipt).collect();
    let unmarked = |receipt: &mut Receipt| receipt.mark = [0; 4];
    executed.lines.iter_mut().filter_map(|line| line.receipt.as_mut()).for_each(unmarked);
    (Executed { by: DecidedBy::Local, moved: Vec::new(), ..executed }, receipts)
}

fn op(drawn: u64, endings: &Option<[Ending; 1]>) -> Op<'_> {
    match (drawn, endings) {
        (_, Some(endings)) => Op::Finish(endings),
        (0, _) => Op::Reset,
        (1, _) => Op::Peek,
        _ => Op::Take,
    }
}

/// Random traffic, also under limits that change: on a store that stays, and on one whose keys move half-way to another
/// store, which two nodes use. Nothing is granted twice, and nothing is lost.
#[test]
fn keys_that_move_go_on_as_if_they_had_stayed() {
    let quotas: Vec<_> = conformance::quotas().into_iter().filter(|quota| !quota.is_guard()).collect();
    let kinds: [fn() -> Arc<dyn Store>; 3] = [memory, plain, engine];
    let mut refused = 0;
    for seed in 1..=steps(60) {
        let mut random = Random::seeded(seed);
        let (former, store) = (kinds[seed as usize % 3](), kinds[seed as usize / 3 % 3]());
        let stays = plain();
        // What a node gives back, another does not know when it copies a key again: this costs units, so there is one.
        let settles = seed % 2 == 0;
        let nodes = if settles { 1 } else { 2 };
        let nodes: Vec<Successor> =
            (0..nodes).map(|_| Successor::new(Arc::clone(&store), Arc::clone(&former))).collect();
        let mut now = Tick::from_secs(1_000_000);
        let mut receipts: Vec<([u8; 1], usize, [Receipt; 2])> = Vec::new();
        for at in 0..400 {
            now = now.after(Duration::from_millis(random.below(400)));
            let keys: BTreeSet<u8> = (0..=random.below(3)).map(|_| random.below(20) as u8).collect();
            let keys: Vec<[u8; 1]> = keys.into_iter().map(|key| [key]).collect();
            let which: Vec<usize> = keys.iter().map(|_| random.below(quotas.len() as u64) as usize).collect();
            let mut charges: Vec<_> = keys
                .iter()
                .zip(&which)
                .map(|(key, which)| {
                    let cost = Cost::new(random.below(4) + 1).unwrap();
                    Charge { binding: random.below(4) > 0, ..Charge::new(key, &quotas[*which], cost) }
                })
                .collect();
            let drawn = random.below(20);
            let ended = (2..6).contains(&drawn) && settles && !receipts.is_empty();
            let ended = ended.then(|| receipts.swap_remove(random.below(receipts.len() as u64) as usize));
            let [ours, theirs] = [0, 1].map(|of| {
                let forgets = drawn == 2;
                ended.map(|(_, _, made)| match forgets {
                    true => [Ending::Forget],
                    false => [Ending::new(made[of], Finish::UNDONE)],
                })
            });
            if let Some((key, which, made)) = &ended {
                charges = vec![Charge::new(key, &quotas[*which], made[0].cost)];
            }
            let (expected, theirs) = answer(&*stays, &Step::new(now, op(drawn, &theirs), &charges));
            let asked: &dyn Store =
                if at < 200 { &*former } else { &nodes[random.below(nodes.len() as u64) as usize] };
            let (found, ours) = answer(asked, &Step::new(now, op(drawn, &ours), &charges));
            assert_eq!(found, expected, "seed {seed}, step {at}, {drawn}: {charges:?}");
            refused += u64::from(at >= 200 && !expected.allowed);
            if drawn > 1 && ended.is_none() {
                let made = ours.into_iter().zip(theirs);
                let made = keys.iter().zip(&which).zip(made);
                receipts.extend(
                    made.filter_map(|((key, which), (ours, theirs))| Some((*key, *which, [ours?, theirs?]))),
                );
            }
        }
    }
    assert!(refused > 1_000, "{refused} refusals");
}

#[derive(Debug)]
struct Gone;

impl Store for Gone {
    fn execute_into(&self, _: &Step<'_>, _: &mut Executed) -> Execution {
        Execution::Done(Err(StoreError::Unavailable { reason: "it is gone".to_owned() }))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }
}

fn take(store: &dyn Store, key: &[u8], quota: &Arc<Quota>) -> StepAnswer {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    store.blocking_execute(&Step::new(Tick::from_secs(1_000_000), Op::Take, &charges))
}

/// A key that cannot be taken over would be granted from full.
#[test]
fn without_the_former_store_new_keys_fail_and_others_go_on() {
    let day = Arc::new(Quota::per_day(10).gcra().unwrap());
    let store = memory();
    assert!(take(&Successor::new(Arc::clone(&store), Arc::new(Gone)), b"ann", &day).is_err());
    assert!(
        take(&*store, b"ann", &day).unwrap().lines[0].decision.standing.remaining == 9,
        "nothing was spent"
    );
    let successor = Successor::new(Arc::clone(&store), plain());
    assert_eq!(take(&successor, b"ann", &day).unwrap().lines[0].decision.standing.remaining, 8);
    let charges = [Charge::new(b"bob", &day, Cost::ONE), Charge::new(b"ann", &day, Cost::ONE)];
    let step = Step::new(Tick::from_secs(1_000_000), Op::Take, &charges);
    let mut answers = Vec::new();
    let later = successor.execute_each(&[step, step], &mut answers);
    let answers = later.map_or(answers, |later| later.now_or_never().unwrap());
    assert_eq!(answers.into_iter().filter(|answer| answer.as_ref().unwrap().allowed).count(), 2);
}

/// The place of a request that is answered elsewhere would never be left here.
#[test]
fn places_begin_anew() {
    let two = Arc::new(Quota::concurrency(2, Duration::from_secs(60)).unwrap());
    let former = plain();
    assert!((0..2).all(|_| take(&*former, b"k", &two).unwrap().allowed));
    let successor = Successor::new(memory(), former);
    assert!((0..2).all(|_| take(&successor, b"k", &two).unwrap().allowed));
    assert!(!take(&successor, b"k", &two).unwrap().allowed);
}
