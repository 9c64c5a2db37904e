//! Compare-and-set by many steps at once: steps of one process are executed together, and processes compete for the key.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;

use parking_lot::Mutex;
use tidegate::store::{
    ByteMap, CasStore, Charge, Executed, Execution, Later, Op, Read, Step, StepAnswer, Store as _,
    StoreError, Write, Written, conformance,
};
use tidegate::{Cost, Quota, Tick};

use crate::byte_map::{Bytes, pending};

/// Counts reads and writes. Answers each call in the next turn of [`drive`], or after some polls if there are no turns.
#[derive(Clone, Debug, Default)]
struct Counting {
    bytes: Bytes,
    turns: Option<Arc<AtomicU64>>,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
    /// The number of keys in each write.
    written: Arc<Mutex<Vec<usize>>>,
}

impl Counting {
    fn in_turns() -> Self {
        Self { turns: Some(Arc::default()), ..Self::default() }
    }

    async fn wait(&self) {
        let Some(turns) = &self.turns else { return pending(3).await };
        let turn = turns.load(Ordering::Relaxed);
        poll_fn(|_| if turns.load(Ordering::Relaxed) > turn { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn next_turn(&self) {
        if let Some(turns) = &self.turns {
            turns.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ByteMap for Counting {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let (map, keys) = (self.clone(), keys.to_vec());
        Box::pin(async move {
            map.reads.fetch_add(1, Ordering::Relaxed);
            map.wait().await;
            Ok(map.bytes.read_now(&keys))
        })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let map = self.clone();
        Box::pin(async move {
            map.writes.fetch_add(1, Ordering::Relaxed);
            map.written.lock().push(writes.len());
            map.wait().await;
            if map.bytes.write_now(&writes) {
                return Ok(Written::All);
            }
            let keys: Vec<_> = writes.iter().map(|write| Arc::clone(&write.key)).collect();
            Ok(Written::Nothing(Some(map.bytes.read_now(&keys))))
        })
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

fn take(store: &CasStore<Counting>, keys: &[&[u8]], quota: &Arc<Quota>) -> Later<StepAnswer> {
    let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, quota, Cost::ONE)).collect();
    let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    let Execution::Later(later) = store.execute_into(&step, &mut Executed::default()) else {
        panic!("it waits")
    };
    later
}

/// Polls all steps in turn until each has its answer.
fn drive(map: &Counting, mut steps: Vec<Later<StepAnswer>>) -> Vec<Executed> {
    let mut answers = vec![None; steps.len()];
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        for (step, answer) in steps.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(told) = step.as_mut().poll(&mut cx)
            {
                *answer = Some(told.unwrap());
            }
        }
        if answers.iter().all(Option::is_some) {
            break;
        }
        map.next_turn();
    }
    answers.into_iter().map(|answer| answer.unwrap()).collect()
}

fn quota(burst: u64) -> Arc<Quota> {
    Arc::new(Quota::per_day(1).burst(burst).gcra().unwrap())
}

/// Regression: each of a hundred steps on one key made its own read and write, and only one write of each round won,
/// which took ten thousand round trips.
#[test]
fn steps_on_one_key_share_their_round_trips() {
    let (map, quota) = (Counting::in_turns(), quota(60));
    let store = CasStore::new(map.clone());
    let answers = drive(&map, (0..100).map(|_| take(&store, &[b"k"], &quota)).collect());
    assert_eq!(answers.iter().filter(|executed| executed.allowed).count(), 60);
    let allowed = answers.iter().position(|executed| !executed.allowed);
    assert_eq!(allowed, Some(60), "first come, first served");
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&map.reads), count(&map.writes)), (2, 2), "the first, and all others");
}

/// A global limit for all users is in every step. The steps that wait for it go together, as many as fit into one
/// write.
#[test]
fn steps_that_have_one_key_in_common_go_together() {
    let (map, quota) = (Counting::in_turns(), quota(1_000));
    let store = CasStore::new(map.clone());
    let users: Vec<Vec<u8>> = (0..200_u16).map(|user| user.to_be_bytes().to_vec()).collect();
    let steps = users.iter().map(|user| take(&store, &[b"all", user], &quota)).collect();
    assert!(drive(&map, steps).iter().all(|executed| executed.allowed));
    assert_eq!(*map.written.lock(), [2, 64, 64, 64, 11], "keys of each write, the common one among them");
    let lone = take(&store, &[b"all"], &quota);
    assert_eq!(drive(&map, vec![lone])[0].lines[0].decision.standing.remaining, 1_000 - 201);
}

fn batch(
    store: &CasStore<Counting>,
    steps: &[(u64, &[&[u8]])],
    quota: &Arc<Quota>,
) -> Later<Vec<StepAnswer>> {
    let charge = |key| Charge::new(key, quota, Cost::ONE);
    let charges: Vec<Vec<_>> =
        steps.iter().map(|(_, keys)| keys.iter().copied().map(charge).collect()).collect();
    let both = steps.iter().zip(&charges);
    let steps: Vec<_> =
        both.map(|((at, _), charges)| Step::new(Tick::from_secs(*at), Op::Take, charges)).collect();
    store.execute_each(&steps, &mut Vec::new()).unwrap()
}

/// Polls a batch until it is answered. Returns the answers, and how many turns that took.
fn drive_batch(map: &Counting, mut batch: Later<Vec<StepAnswer>>) -> (Vec<StepAnswer>, usize) {
    let mut cx = Context::from_waker(Waker::noop());
    for turn in 0..10_000 {
        if let Poll::Ready(answers) = batch.as_mut().poll(&mut cx) {
            return (answers, turn);
        }
        map.next_turn();
    }
    panic!("it has no answer");
}

/// Regression: sixteen steps of one call made a read and a write each, one after the other: 32 turns.
#[test]
fn steps_of_one_call_share_a_read_and_a_write_or_are_executed_at_the_same_time() {
    let quota = quota(10);
    let (map, key) = (Counting::in_turns(), [&b"k"[..]]);
    let store = CasStore::new(map.clone());
    let steps: [(u64, &[&[u8]]); 16] = [(1, &key); 16];
    let (answers, turns) = drive_batch(&map, batch(&store, &steps, &quota));
    let allowed: Vec<bool> = answers.iter().map(|answer| answer.as_ref().unwrap().allowed).collect();
    assert_eq!(allowed, [[true; 10].as_slice(), &[false; 6]].concat(), "in their order");
    assert_eq!((turns, map.written.lock().len()), (2, 1), "a read, and a write");

    let map = Counting::in_turns();
    let store = CasStore::new(map.clone());
    let names: Vec<[u8; 1]> = (0..16).map(|name| [name]).collect();
    let keys: Vec<[&[u8]; 1]> = names.iter().map(|name| [&name[..]]).collect();
    let steps: Vec<(u64, &[&[u8]])> = keys.iter().map(|keys| (1, &keys[..])).collect();
    let (answers, turns) = drive_batch(&map, batch(&store, &steps, &quota));
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|executed| executed.allowed)));
    assert_eq!((turns, map.written.lock().clone()), (2, vec![1; 16]), "a write each, all at the same time");
}

/// The first step takes the unit of `a`, so the second step is refused. The third, which shares the key `b` with the
/// second, passes. A step with a later tick is executed later.
#[test]
fn steps_of_one_call_with_keys_in_common_keep_their_order() {
    let (map, quota) = (Counting::in_turns(), quota(1));
    let store = CasStore::new(map.clone());
    let (a, b, c): (&[u8], &[u8], &[u8]) = (b"a", b"b", b"c");
    let busy = take(&store, &[c], &quota);
    let steps: [(u64, &[&[u8]]); 6] =
        [(1, &[a]), (1, &[a, b]), (1, &[b]), (1, &[c]), (1, &[a, a]), (90_000, &[a])];
    let mut all = batch(&store, &steps, &quota);
    // In flight when the batch arrives, which has a step for the same key.
    let mut busy = busy;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(busy.as_mut().poll(&mut cx).is_pending() && all.as_mut().poll(&mut cx).is_pending());
    let (answers, _) = drive_batch(&map, all);
    let told: Vec<Result<bool, StoreError>> =
        answers.into_iter().map(|answer| answer.map(|executed| executed.allowed)).collect();
    let refused = Err(StoreError::RepeatedKey);
    assert_eq!(told, [Ok(true), Ok(false), Ok(true), Ok(false), refused, Ok(true)]);
}

/// A step over two busy keys is not starved by steps that want one of them.
#[test]
fn a_step_waits_for_one_batch_at_most() {
    let (map, quota) = (Counting::in_turns(), quota(1_000_000));
    let store = CasStore::new(map.clone());
    let mut cx = Context::from_waker(Waker::noop());
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let mut steps: Vec<_> = (0..2).map(|at| take(&store, &[keys[at % 2]], &quota)).collect();
    steps.iter_mut().for_each(|step| drop(step.as_mut().poll(&mut cx)));
    let mut both = take(&store, &keys, &quota);
    for _ in 0..8 {
        map.next_turn();
        if both.as_mut().poll(&mut cx).is_ready() {
            return;
        }
        for (at, step) in steps.iter_mut().enumerate() {
            if step.as_mut().poll(&mut cx).is_ready() {
                *step = take(&store, &[keys[at % 2]], &quota);
                drop(step.as_mut().poll(&mut cx));
            }
        }
    }
    panic!("a batch takes two turns, and eight are over");
}

/// Three processes with several threads each, and some calls are abandoned: the limit is never exceeded, and no call
/// waits for ever.
#[test]
fn many_threads_of_many_processes_grant_the_limit_once() {
    let (bytes, quota) = (Counting::default(), quota(300));
    let granted = AtomicU64::new(0);
    let given_up = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            let store = Arc::new(CasStore::new(bytes.clone()));
            for seed in 0..4 {
                let (store, quota, granted, given_up) = (Arc::clone(&store), &quota, &granted, &given_up);
                scope.spawn(move || {
                    let mut random = conformance::Random::seeded(seed + 1);
                    for _ in 0..100 {
                        let second = random.below(4).to_be_bytes();
                        let charges =
                            [Charge::new(b"all", quota, Cost::ONE), Charge::new(&second, quota, Cost::ONE)];
                        let charges = &charges[..1 + random.below(2) as usize];
                        let step = Step::new(Tick::from_secs(1), Op::Take, charges);
                        if random.below(5) == 0 {
                            let Execution::Later(mut later) =
                                store.execute_into(&step, &mut Executed::default())
                            else {
                                panic!("it waits")
                            };
                            let mut cx = Context::from_waker(Waker::noop());
                            for _ in 0..random.below(12) {
                                if later.as_mut().poll(&mut cx).is_ready() {
                                    break;
                                }
                            }
                            // Nobody knows whether it was granted.
                            given_up.fetch_add(1, Ordering::Relaxed);
                        } else if store.blocking_execute(&step).unwrap().allowed {
                            granted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
    });
    let (granted, given_up) = (granted.into_inner(), given_up.into_inner());
    assert!(granted <= 300 && granted + given_up >= 300, "{granted} granted, {given_up} given up");
}
