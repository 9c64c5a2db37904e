//! The futures of a gate are `Send` whatever they borrow, so they can be spawned.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;

use tidegate::gate::{Admission, Check, Entry};
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{CasStore, Later};
use tidegate::{Gate, Outcome, Quota};

fn gate() -> Arc<Gate> {
    let all = Policy::new("all", Limit::new(Quota::per_hour(10).gcra().unwrap(), "10/h"));
    Arc::new(Gate::new(PolicySet::new(vec![all]).unwrap(), CasStore::new(crate::byte_map::Bytes::default())))
}

#[tokio::test]
async fn calls_over_an_engine_are_spawned() {
    let gate = gate();
    let spawned: Later<bool> = Box::pin({
        let gate = Arc::clone(&gate);
        async move {
            let request = Descriptor::new();
            let two = Check::of(&request).cost(2);
            let mut charged = tidegate::gate::Charged::default();
            let first = gate.charge(two, &mut charged).await.unwrap();
            let finished = gate.finish(&charged, tidegate::gate::Part::All, Outcome::Success, |_| Some(1));
            assert_eq!(finished.await.unwrap().len(), 1);
            let mut kept = Vec::new();
            let each = gate.check_each(&[two, two]).charge(&mut kept).await;
            assert_eq!(kept.len(), 2);
            assert_eq!(gate.check_each(&[two.peek()]).await.len(), 1);
            let together = gate.check_together(&[two, two]).await.unwrap();
            let Entry::Admitted(admission) = Admission::ask(Arc::clone(&gate), &request).await.unwrap()
            else {
                panic!()
            };
            admission.cancel().await.unwrap();
            first.allowed
                && each.iter().all(|one| one.as_ref().is_ok_and(|one| one.allowed))
                && together.allowed
        }
    });
    assert!(tokio::spawn(spawned).await.unwrap());
    let left = gate.check(Check::of(&Descriptor::new()).peek()).await.unwrap();
    assert_eq!(left.limits[0].decision.standing.remaining, 1, "1 + 2 + 2 + 4 of 10");
}

#[test]
fn a_call_that_cannot_wait_asks_no_engine() {
    let gate = gate();
    let request = Descriptor::new();
    assert_eq!(gate.check(&request).now().unwrap_err(), tidegate::store::StoreError::MustWait);
    assert_eq!(gate.occupancy().used, 0);
}
