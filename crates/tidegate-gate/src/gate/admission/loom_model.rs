//! Tests admissions in all interleavings: threads ask one gate concurrently, and each ends its admission in its own
//! way.
//!
//! Every gate has a concurrency limit of one to three places and a rate limit; both are charged in one step or neither
//! is. Thread `n` asks the rate limit for `2ⁿ` units, so the units left at the end show whose charges were kept.
//!
//! # What is modelled
//! The real [`Admission`], its `Drop`, and the gate's check and settlement around it. Loom switches threads at accesses
//! to the store's cells. The rest of the gate (the policies, a thread's buffers, a manual clock) is not part of the
//! model: an admission belongs to one thread and shares nothing but the store, and the clock stands still.
//!
//! Two stores are tested, each wrapped in a [`Ledger`]:
//! * [`OneLock`]: a list of cells under a lock of loom, changed by [`execute`], the function that all stores run. A step is one
//!   instant there, so three admissions go through all interleavings, without a bound.
//! * [`MemoryStore`], the real one, whose names and words are loom's atomics: two admissions, and a thread that could go on is
//!   interrupted once or twice at most. Its cells beside the table and its classes lie under locks that loom does not see; none is held
//!   where loom switches. The lines have models of their own, in `store/memory/cache_line/loom_model.rs`.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc as Plain;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::thread;
use parking_lot::Mutex as Unseen;
use tidegate_core::{Cost, Quota, Receipt, Tick};

use super::*;
use crate::policy::{CostRule, Descriptor, Limit, Policy, PolicySet, policy_of_key};
use tidegate_limits::clock::ManualClock;
use tidegate_limits::store::{
    Cell, Charge, Ending, Executed, Execution, MemoryStore, Occupancy, Op, Step, Store, execute,
};
use tidegate_limits::sync::short_or_long;
use tidegate_limits::sync::{Mutex, explore};

/// The stack of a thread, in words: loom's default is 4,096, and a check with its decision may take more, unoptimised
/// or inlined.
const STACK: usize = 1 << 15;

/// The policy whose charges are places.
const PLACES: &str = "places";

/// The policy whose charges are `2ⁿ` units.
const UNITS: &str = "units";

/// How an admission is ended.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum End {
    Finish,
    Cancel,
    Drop,
    /// Dropped after [`Admission::undo_if_dropped`].
    DropUndone,
    /// Dropped while delayed, before the future was polled.
    HangUp,
    /// Dropped while delayed, after one poll of the future; if that poll ends the delay, the admission itself is
    /// dropped.
    PollAndHangUp,
}

const ENDS: [End; 6] =
    [End::Finish, End::Cancel, End::Drop, End::DropUndone, End::HangUp, End::PollAndHangUp];

impl End {
    /// Ends an admission; returns whether the limit keeps its charge.
    fn end(self, admission: Admission<Plain<Gate>>) -> bool {
        match self {
            Self::Finish => admission.finish(Outcome::Success).now().unwrap(),
            Self::Cancel => admission.cancel().now().unwrap(),
            Self::Drop => drop(admission),
            Self::DropUndone => drop(admission.undo_if_dropped(true)),
            Self::HangUp => drop(admission.delayed()),
            Self::PollAndHangUp => {
                let mut delayed = Box::pin(admission.delayed());
                return match delayed.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => false,
                    Poll::Ready(admission) => {
                        drop(admission);
                        true
                    }
                };
            }
        }
        matches!(self, Self::Finish | Self::Drop)
    }
}

/// Starts a thread of the model.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK).spawn(work).unwrap()
}

/// Yields every choice of endings for `N` threads.
fn choices<const N: usize>(ends: &[End]) -> impl Iterator<Item = [End; N]> {
    let count = ends.len();
    let digit = move |number: usize, at: usize| number / count.pow(at as u32) % count;
    (0..count.pow(N as u32)).map(move |number| std::array::from_fn(|at| ends[digit(number, at)]))
}

/// Cells under one lock, found by linear search.
#[derive(Debug)]
struct OneLock(Mutex<Vec<(Vec<u8>, Option<Cell>)>>);

impl Store for OneLock {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        let mut kept = self.0.lock();
        let step = &step.read_clock();
        let place = |key: &[u8]| kept.iter().position(|(of, _)| of == key);
        let places: Vec<_> = step.charges.iter().map(|charge| place(charge.key)).collect();
        let mut cells: Vec<_> =
            places.iter().map(|place| place.and_then(|place| kept[place].1.clone())).collect();
        let (executed, _) = execute(step, &mut cells);
        *out = executed;
        for ((charge, place), cell) in step.charges.iter().zip(places).zip(cells) {
            match place {
                Some(place) => kept[place].1 = cell,
                None => kept.push((charge.key.to_vec(), cell)),
            }
        }
        Execution::Done(Ok(()))
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }
}

/// Every charge that was made and has not ended.
#[derive(Debug, Default)]
struct Open(Vec<(Vec<u8>, Receipt)>);

/// Records the charges of a store. Checks that each is ended at most once, and that never more places are taken than
/// exist.
#[derive(Debug)]
struct Ledger<S> {
    beneath: S,
    places: usize,
    /// Held only briefly, and never while loom switches threads.
    open: Plain<Unseen<Open>>,
}

impl<S: Store> Store for Ledger<S> {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        // An ending is recorded before its step and a charge after it, so the list never holds a place that is free.
        if let Op::Finish(endings) = step.op {
            let open = &mut self.open.lock().0;
            for (charge, ending) in step.charges.iter().zip(endings) {
                let Ending::Finish { receipt, .. } = ending else { panic!("{ending:?} ends no charge") };
                // A place is left with the tick at which its delayed work may begin.
                let ended = |made: &Receipt| Receipt { act: made.act, ..*receipt } == *made;
                let made = open.iter().position(|(key, made)| key == charge.key && ended(made));
                open.swap_remove(made.expect("a charge is ended once"));
            }
        }
        let done = self.beneath.execute_into(step, out);
        if matches!(step.op, Op::Take) {
            let open = &mut self.open.lock().0;
            let made = step.charges.iter().zip(&out.lines);
            open.extend(made.filter_map(|(charge, line)| Some((charge.key.to_vec(), line.receipt?))));
            assert!(costs(open, PLACES).len() <= self.places, "more are inside than there are places");
        }
        done
    }

    fn occupancy(&self) -> Occupancy {
        self.beneath.occupancy()
    }
}

/// Returns the costs of the open charges of a policy, the lowest first.
fn costs(open: &[(Vec<u8>, Receipt)], policy: &str) -> Vec<u64> {
    let of = open.iter().filter(|(key, _)| policy_of_key(key) == Some(policy));
    let mut costs: Vec<_> = of.map(|(_, receipt)| receipt.cost.units()).collect();
    costs.sort_unstable();
    costs
}

/// The number of places and units, and whether work is delayed.
#[derive(Clone, Copy, Debug)]
struct World {
    places: u64,
    units: u64,
    queue: bool,
}

impl World {
    fn gate(self, store: impl Store + 'static) -> (Plain<Gate>, Plain<Unseen<Open>>) {
        let policy = |name: &str, quota: Quota| Policy::new(name, Limit::new(quota, name));
        let of_one = |name: &str, quota: Quota| Policy {
            cost: Some(CostRule::Fixed(Cost::ONE)),
            ..policy(name, quota)
        };
        let mut policies = vec![
            of_one(PLACES, Quota::concurrency(self.places, Duration::from_secs(60)).unwrap()),
            policy(UNITS, Quota::per_hour(self.units).gcra().unwrap()),
        ];
        if self.queue {
            let mut queue = of_one("queue", Quota::per_second(1).leaky_queue(9).unwrap());
            queue.limits[0].max_wait = Duration::from_secs(9);
            policies.push(queue);
        }
        let open = Plain::default();
        let ledger = Ledger { beneath: store, places: self.places as usize, open: Plain::clone(&open) };
        let clock = ManualClock::at(Tick::from_secs(1));
        (Plain::new(Gate::new(PolicySet::new(policies).unwrap(), ledger).with_clock(clock)), open)
    }

    /// Runs one thread for each ending, which asks and ends, and checks what is left; returns how many were admitted.
    fn run<const N: usize>(self, ends: [End; N], store: impl Store + 'static) -> usize {
        let (gate, open) = self.gate(store);
        let visit = move |gate: &Plain<Gate>, at: usize| {
            let entry = Admission::ask(Plain::clone(gate), Check::of(&Descriptor::new()).cost(1 << at))
                .now()
                .unwrap();
            entry.admitted().map(|admission| ends[at].end(admission))
        };
        let others: Vec<_> = (1..N)
            .map(|at| {
                let gate = Plain::clone(&gate);
                start(move || visit(&gate, at))
            })
            .collect();
        let first = visit(&gate, 0);
        // For each thread: `None` if it was refused, otherwise whether its units were kept.
        let ended: Vec<_> =
            iter::once(first).chain(others.into_iter().map(|other| other.join().unwrap())).collect();
        let kept: Vec<u64> = (0..N).filter(|at| ended[*at] == Some(true)).map(|at| 1 << at).collect();
        let told = format!("{ends:?} {ended:?}");
        let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
        let left: Vec<u64> = limits.iter().map(|limit| limit.decision.standing.remaining).collect();
        assert_eq!(left[..2], [self.places, self.units - kept.iter().sum::<u64>()], "{told}");
        // Units that are kept as charged are not settled, so exactly those are still open.
        let open = &open.lock().0;
        assert!(costs(open, PLACES).is_empty(), "every place was left: {told}");
        assert_eq!(costs(open, UNITS), kept, "{told}");
        ended.iter().flatten().count()
    }
}

/// Explores the choices of endings; returns the numbers of admitted threads over all interleavings.
fn explore_all<const N: usize, S: Store + 'static>(
    world: World,
    choices: impl Iterator<Item = [End; N]>,
    preemptions: Option<usize>,
    store: impl Fn() -> S + Copy + Send + Sync + 'static,
) -> BTreeSet<usize> {
    let seen = Plain::new(Unseen::new(BTreeSet::new()));
    for ends in choices {
        let seen = Plain::clone(&seen);
        explore(preemptions, move || {
            let admitted = start(move || world.run(ends, store())).join().unwrap();
            seen.lock().insert(admitted);
        });
    }
    std::mem::take(&mut *seen.lock())
}

fn one_lock() -> OneLock {
    OneLock(Mutex::new(Vec::new()))
}

/// Creates a memory store of two lines. Charging another key first touches every cell, so that they exist before the
/// threads start.
fn memory() -> MemoryStore {
    let store = MemoryStore::with_capacity(1).unwrap();
    let quota = Plain::new(Quota::per_hour(1).gcra().unwrap());
    let charges = [Charge::new(b"another", &quota, Cost::ONE)];
    let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    assert!(store.execute(&step).unwrap().allowed);
    store
}

/// Three ask for two places.
#[test]
fn places_come_back_once_however_three_admissions_end() {
    let world = World { places: 2, units: 7, queue: false };
    // No limit refuses, so it does not matter which thread ends in which way.
    let choices = choices::<3>(&ENDS[..5]).filter(|ends| ends.is_sorted());
    let seen = explore_all(world, choices, None, one_lock);
    assert_eq!(seen, BTreeSet::from([2, 3]), "the third is refused only where two are inside");
}

/// Three ask for one, two and four of four units; there is a place for each.
#[test]
fn a_limit_that_refuses_takes_no_place() {
    let world = World { places: 3, units: 4, queue: false };
    let seen = explore_all(world, choices::<3>(&ENDS[..5]), None, one_lock);
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

/// A queue as well delays all but the first request, so that futures are dropped while they wait.
#[test]
fn whoever_hangs_up_while_delayed_has_spent_nothing() {
    let world = World { places: 2, units: 7, queue: true };
    let ends = [End::Finish, End::HangUp, End::PollAndHangUp];
    let seen = explore_all(world, choices::<3>(&ends), None, one_lock);
    assert_eq!(seen, BTreeSet::from([2, 3]));
}

/// The three endings with different steps of the store: the place is left with an outcome, both charges are undone, or
/// only the place is left.
const STEPS: [End; 3] = [End::Finish, End::Cancel, End::Drop];

/// Two threads bring new keys to the memory store at once, and ask for one place.
#[test]
fn two_whose_keys_are_new_share_one_place_of_the_memory_store() {
    let world = World { places: 1, units: 3, queue: false };
    let choices = choices::<2>(&STEPS).filter(|ends| ends.is_sorted());
    let choices = choices.take(short_or_long(2, usize::MAX));
    let seen = explore_all(world, choices, Some(1), memory);
    assert_eq!(seen, BTreeSet::from([1, 2]));
}

/// Two places of the memory store, whose keys exist already.
#[test]
fn two_places_of_the_memory_store_come_back_once() {
    const WORLD: World = World { places: 2, units: 3, queue: false };
    let known = || {
        let store = memory();
        let (gate, _) = WORLD.gate(store.clone());
        gate.admit(&Descriptor::new()).now().unwrap().admitted().unwrap().cancel().now().unwrap();
        store
    };
    let seen =
        explore_all(WORLD, iter::once([End::Cancel, End::Drop]), short_or_long(Some(1), Some(2)), known);
    assert_eq!(seen, BTreeSet::from([2]));
}
