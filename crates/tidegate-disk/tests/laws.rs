//! The store on disk gives the same answers as every store, whether it waits for the disk or not.

use crate::common;

use std::cell::Cell;
use std::time::Duration;

use common::{NEVER, NOW};
use tempfile::TempDir;
use tidegate::clock::ManualClock;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::conformance::{self, quotas};
use tidegate::store::{
    Caps, Charge, ChargeRules, Durable, Executed, Execution, Home, Later, Occupancy, Step, StepAnswer, Store,
    StoreError,
};
use tidegate::{Gate, Quota};
use tidegate_disk::{DiskOptions, DiskStore};

/// Makes stores, each in a folder of its own.
fn stores(folder: &TempDir) -> impl Fn(Option<ManualClock>) -> DiskStore + '_ {
    let made = Cell::new(0);
    move |clock| {
        made.set(made.get() + 1);
        let options = DiskOptions::new(folder.path().join(made.get().to_string()));
        let options = options.keys(10_000).interval(Duration::from_millis(1));
        let options = match clock {
            Some(clock) => options.clock(clock),
            None => options,
        };
        DiskStore::open(options).unwrap()
    }
}

#[test]
fn a_store_on_disk_answers_as_a_plain_map() {
    let folder = tempfile::tempdir().unwrap();
    let make = stores(&folder);
    conformance::run(|| make(None), &quotas(), 5_000);
}

#[test]
fn whatever_its_clock_does() {
    let folder = tempfile::tempdir().unwrap();
    let make = stores(&folder);
    conformance::run_by_clock(|clock| make(Some(clock)), &quotas(), 3_000);
}

/// A store whose charges are all strict: every answer except a peek's comes later.
#[derive(Debug)]
struct Strict(DiskStore);

impl Strict {
    fn charge<'a>(charge: &Charge<'a>) -> Charge<'a> {
        Charge { rules: ChargeRules { durable: Durable::Strict, ..charge.rules }, ..*charge }
    }

    fn with<R>(step: &Step<'_>, then: impl FnOnce(&Step<'_>) -> R) -> R {
        let charges: Vec<Charge<'_>> = step.charges.iter().map(Self::charge).collect();
        then(&Step { charges: &charges, ..*step })
    }
}

impl Store for Strict {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        Self::with(step, |step| self.0.execute_into(step, out))
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let charges: Vec<Vec<Charge<'_>>> =
            steps.iter().map(|step| step.charges.iter().map(Self::charge).collect()).collect();
        let steps: Vec<Step<'_>> =
            steps.iter().zip(&charges).map(|(step, charges)| Step { charges, ..*step }).collect();
        self.0.execute_each(&steps, out)
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

#[test]
fn strict_charges_are_answered_alike() {
    let folder = tempfile::tempdir().unwrap();
    let make = stores(&folder);
    conformance::run(|| Strict(make(None)), &quotas(), 100);
}

/// Through a gate, too: callers that can wait are answered, and policies that are not strict decide at once.
#[test]
fn strict_policies_wait_for_the_disk_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let open = || DiskStore::open(DiskOptions::new(folder.path()).keys(1000).interval(NEVER)).unwrap();
    let gate = |store: &DiskStore, durable| {
        let mut policy = Policy::new("daily", Limit::new(Quota::per_day(2).gcra().unwrap(), "2/day"));
        policy.durable = durable;
        let set = PolicySet::new(vec![policy]).unwrap();
        Gate::new(set, store.clone()).with_clock(ManualClock::at(NOW))
    };
    let wait = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (store, request) = (open(), Descriptor::new());
    let strict = gate(&store, Durable::Strict);
    assert_eq!(strict.check(&request).now().unwrap_err(), StoreError::MustWait);
    let before = store.health().writes;
    assert!(wait.block_on(strict.check(&request)).unwrap().allowed);
    assert_eq!(store.health().writes, before + 1, "it is on disk");
    let interval = gate(&store, Durable::Interval);
    assert!(interval.check(&request).now().unwrap().allowed);
    assert_eq!(store.health().writes, before + 1, "written some time later");
    let refused = wait.block_on(strict.check(&request)).unwrap();
    assert!(!refused.allowed);
    assert_eq!(store.health().writes, before + 1, "a refusal waits for nothing");
    store.close().unwrap();
    assert!(!gate(&open(), Durable::Interval).check(&request).now().unwrap().allowed);
}
