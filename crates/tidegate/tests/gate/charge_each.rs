//! Many requests in one exchange, each with its own charges.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tidegate::clock::ManualClock;
use tidegate::gate::{Charged, Check, Part};
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{
    Caps, Executed, Execution, Home, Later, MemoryStore, Occupancy, OwnedStep, PlainStore, Step, StepAnswer,
    Store,
};
use tidegate::{Gate, Quota, Tick};
use tidegate_core::Outcome;

/// An engine that executes many steps in one exchange, after a while.
#[derive(Clone, Debug, Default)]
struct Engine {
    store: Arc<PlainStore>,
    exchanges: Arc<AtomicU64>,
}

impl Store for Engine {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        let (engine, step) = (self.clone(), OwnedStep::of(step));
        Execution::Later(Box::pin(async move {
            engine.exchanges.fetch_add(1, Ordering::Relaxed);
            step.with(|step| engine.store.blocking_execute(step))
        }))
    }

    fn execute_each(&self, steps: &[Step<'_>], _: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        let (engine, steps): (_, Vec<OwnedStep>) = (self.clone(), steps.iter().map(OwnedStep::of).collect());
        Some(Box::pin(async move {
            engine.exchanges.fetch_add(1, Ordering::Relaxed);
            let mut waited = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            steps.iter().map(|step| step.with(|step| engine.store.blocking_execute(step))).collect()
        }))
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    fn caps(&self) -> Caps {
        Caps::ENGINE
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

fn gate(store: impl Store + 'static) -> Gate {
    let limit = |count: u64, name: &str| Limit::new(Quota::per_hour(count).gcra().unwrap(), name);
    let mut per_user = Policy::new("per-user", limit(2, "2/h"));
    per_user.by = vec!["user.id".to_owned()];
    let all = Policy::new("all", limit(100, "100/h"));
    let set = PolicySet::new(vec![all, per_user]).unwrap();
    Gate::new(set, store).with_clock(ManualClock::at(Tick::from_secs(1_000_000)))
}

/// An engine is asked once, and a table is asked directly. Both answer as if one check came after the other, and the
/// charges of one check can be undone alone.
#[test]
fn each_request_has_its_own_decision_and_its_own_charges() {
    let engine = Engine::default();
    let exchanges = Arc::clone(&engine.exchanges);
    for (gate, asked) in [(gate(engine), 1), (gate(MemoryStore::with_capacity(100).unwrap()), 0)] {
        let users = ["a", "a", "a", "b"].map(|user| Descriptor::new().with("user.id", user));
        let checks = users.each_ref().map(Check::of);
        let before = exchanges.load(Ordering::Relaxed);
        let mut charged = vec![Charged::default(); 9];
        let decisions = run(gate.check_each(&checks).charge(&mut charged));
        assert_eq!(exchanges.load(Ordering::Relaxed) - before, asked);
        let allowed: Vec<bool> = decisions.iter().map(|one| one.as_ref().unwrap().allowed).collect();
        assert_eq!(allowed, [true, true, false, true]);
        assert_eq!(charged.iter().map(|charged| charged.lines().count()).collect::<Vec<_>>(), [2, 2, 0, 2]);
        let finished = run(gate.finish(&charged[0], Part::All, Outcome::Ignored, |_| Some(0))).unwrap();
        assert_eq!(finished.len(), 2);
        assert!(run(gate.check(&users[0])).unwrap().allowed, "one of two came back");
        assert!(!run(gate.check(&users[0])).unwrap().allowed);
    }
}

/// The last request is decided whole, and none after it.
#[test]
fn no_more_are_decided_than_the_answer_has_room_for() {
    for gate in [gate(Engine::default()), gate(MemoryStore::with_capacity(100).unwrap())] {
        let request = Descriptor::new().with("user.id", "a");
        let checks = [Check::of(&request); 5];
        for (most, decided) in [(0, 0), (1, 1), (2, 1), (3, 2), (usize::MAX, 5)] {
            let mut charged = Vec::new();
            assert_eq!(
                run(gate.check_each(&checks).charge(&mut charged).most_limits(most)).len(),
                decided,
                "{most}"
            );
            assert_eq!(charged.len(), decided);
        }
        let left = run(gate.check(Check::of(&Descriptor::new()).peek())).unwrap();
        assert_eq!(
            left.limits[0].decision.standing.remaining, 98,
            "two were allowed, and those not asked took nothing"
        );
    }
}
