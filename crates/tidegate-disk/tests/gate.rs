//! Strict policies through a gate: callers that can wait are answered, and policies that are not strict decide at once.

use crate::common;

use common::{NEVER, NOW};
use tidegate::policy::Limit;
use tidegate::store::{Durable, StoreError};
use tidegate::{Descriptor, Gate, ManualClock, Policy, PolicySet, Quota};
use tidegate_disk::{DiskOptions, DiskStore};

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
    assert_eq!(strict.check(&request).unwrap_err(), StoreError::MustWait);
    let before = store.health().writes;
    assert!(wait.block_on(strict.check_async(&request)).unwrap().allowed);
    assert_eq!(store.health().writes, before + 1, "it is on disk");
    let interval = gate(&store, Durable::Interval);
    assert!(interval.check(&request).unwrap().allowed);
    assert_eq!(store.health().writes, before + 1, "written some time later");
    let refused = wait.block_on(strict.check_async(&request)).unwrap();
    assert!(!refused.allowed);
    assert_eq!(store.health().writes, before + 1, "a refusal waits for nothing");
    store.close().unwrap();
    assert!(!gate(&open(), Durable::Interval).check(&request).unwrap().allowed);
}
