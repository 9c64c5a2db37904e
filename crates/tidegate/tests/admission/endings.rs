//! The calls to the store when an admission ends, and what happens to the admission if they fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::ManualClock;
use tidegate::gate::Admission;
use tidegate::policy::{ChargeOn, PolicySet};
use tidegate::store::{Executed, Execution, MemoryStore, Occupancy, Step, Store, StoreError};
use tidegate::{Gate, Outcome, Quota};

use crate::admission::{admit, gate, levels, per_hour, policy};

/// A memory store that fails once on command: before it settles, or after it, as if its answer were lost.
#[derive(Clone, Debug)]
struct Failing(MemoryStore, Arc<Mutex<Option<(bool, StoreError)>>>);

impl Store for Failing {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.1.lock().take() {
            None => self.0.execute_into(step, out),
            Some((landed, error)) => {
                if landed && let Execution::Done(Err(error)) = self.0.execute_into(step, out) {
                    return Execution::Done(Err(error));
                }
                Execution::Done(Err(error))
            }
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }
}

/// Regression: an ending that failed destroyed the admission, and its places stayed taken for their time to live. If
/// nobody knows whether it failed, they still do: places taken at one tick are indistinguishable, so returning one
/// twice would return somebody else's.
#[test]
fn an_ending_that_fails_is_tried_once_more_and_never_returns_anything_twice() {
    let unavailable = || StoreError::Unavailable { reason: "told to".to_owned() };
    let contended = || StoreError::Contended { attempts: 1 };
    // Finish or cancel; undo if dropped; whether the store had settled; its error; free places and units left of ten.
    let cases = [
        (true, false, false, contended(), [1, 8]),
        (true, true, false, contended(), [1, 8]),
        (true, true, false, unavailable(), [0, 8]),
        (true, false, true, unavailable(), [1, 8]),
        (false, false, false, contended(), [1, 9]),
        (false, true, false, contended(), [1, 9]),
        (false, true, false, unavailable(), [0, 8]),
        (false, true, true, unavailable(), [1, 9]),
    ];
    for (finishes, undo, landed, error, left) in cases {
        let told = format!("finishes: {finishes}, undo: {undo}, landed: {landed}, {error}");
        let fails = Arc::new(Mutex::new(None));
        let store = Failing(MemoryStore::with_capacity(100).unwrap(), Arc::clone(&fails));
        let places = Quota::concurrency(1, Duration::from_secs(3600)).unwrap();
        let set = PolicySet::new(vec![policy("places", places), policy("all", per_hour(10))]).unwrap();
        let gate = Gate::new(set, store).with_clock(ManualClock::default());
        // A charge of another caller, which would show if something were given back twice.
        admit(&gate, 1).unwrap().finish(Outcome::Success).now().unwrap();
        let held = admit(&gate, 1).unwrap().undo_if_dropped(undo);
        *fails.lock() = Some((landed, error.clone()));
        let ended = if finishes { held.finish(Outcome::Success).now() } else { held.cancel().now() };
        assert_eq!(ended, Err(error), "{told}");
        assert_eq!(levels(&gate), left, "{told}");
    }
}

/// A memory store that counts how often it is asked.
#[derive(Clone, Debug)]
struct Asked(MemoryStore, Arc<AtomicU64>);

impl Store for Asked {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.execute_into(step, out)
    }

    fn occupancy(&self) -> Occupancy {
        self.0.occupancy()
    }
}

/// Regression: a request over an engine took two round trips where one is enough.
#[test]
fn an_ending_that_changes_nothing_asks_no_store() {
    let asked = Arc::new(AtomicU64::new(0));
    let store = Asked(MemoryStore::with_capacity(100).unwrap(), Arc::clone(&asked));
    let gate = |policies| {
        let set = PolicySet::new(policies).unwrap();
        Gate::new(set, store.clone()).with_clock(ManualClock::default())
    };
    let steps = |gate: &Gate, end: &dyn Fn(Admission<&Gate>)| -> u64 {
        let before = asked.load(Ordering::Relaxed);
        end(admit(gate, 3).unwrap());
        asked.load(Ordering::Relaxed) - before
    };
    let limit = gate(vec![policy("all", per_hour(100))]);
    assert_eq!(steps(&limit, &|held| held.finish(Outcome::Failure).now().unwrap()), 1);
    assert_eq!(steps(&limit, &|held| held.finish(Outcome::Success).used(|_| Some(3)).now().unwrap()), 1);
    assert_eq!(steps(&limit, &|held| drop(held)), 1);
    assert_eq!(levels(&limit), [91]);
    assert_eq!(steps(&limit, &|held| held.finish(Outcome::Success).used(|_| Some(2)).now().unwrap()), 2);
    assert_eq!(steps(&limit, &|held| held.finish(Outcome::Success).used(|_| Some(4)).now().unwrap()), 2);
    assert_eq!(steps(&limit, &|held| held.cancel().now().unwrap()), 2);
    assert_eq!(levels(&limit), [85]);
    let told = |held: Admission<&Gate>| {
        let left = held.finish(Outcome::Success).used(|_| None).tell(|done| done[0].standing.remaining);
        assert_eq!(left, Ok(82), "somebody wants to know");
    };
    assert_eq!(steps(&limit, &told), 2);
    let mut failures = policy("failures", per_hour(100));
    failures.charge = ChargeOn::Failure;
    let places = Quota::concurrency(3, Duration::from_secs(60)).unwrap();
    for guarded in [failures, policy("places", places)] {
        let gate = gate(vec![policy("all", per_hour(100)), guarded]);
        for outcome in [Outcome::Success, Outcome::CallersFault, Outcome::Ignored] {
            assert_eq!(steps(&gate, &|held| held.finish(outcome).now().unwrap()), 2, "{outcome:?}");
        }
    }
}

/// A panic in the caller's own code does not end the admission: it is dropped, and does what it was told to do then.
#[test]
fn a_panic_while_ending_leaves_the_places_once() {
    let places = Quota::concurrency(1, Duration::from_secs(3600)).unwrap();
    let (gate, _) = gate(vec![policy("places", places), policy("all", per_hour(10))]);
    let ends = |asked: bool, told: bool| {
        let held = admit(&gate, 1).unwrap().undo_if_dropped(true);
        let used = |_: &tidegate::gate::ChargedLine<'_>| if asked { panic!("while asked") } else { None };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            held.finish(Outcome::Success).used(used).tell(|_| assert!(!told, "while told"))
        }));
        assert_eq!(ended.is_err(), asked || told);
        levels(&gate)
    };
    assert_eq!(ends(true, false), [1, 10], "it was undone");
    assert_eq!(ends(false, true), [1, 9], "it had ended");
    assert_eq!(ends(false, false), [1, 8]);
}
