//! Settlements over an engine that fails, or that loses answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::ticket::TicketError;
use tidegate::gate::{Check, Part};
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{ByteMap, CasStore, Later, Read, StoreError, Write, Written};
use tidegate::{Gate, Outcome, Quota};

use super::byte_map::{Bytes, OnTheSpot};
use super::{gate, open, remaining, settle, ticket};

#[test]
fn a_settlement_that_fails_may_be_tried_again() {
    let clock = ManualClock::default();
    let engine = Engine::default();
    let gate = gate(OnTheSpot(CasStore::new(engine.clone())), &clock, "one");
    let open = open(&gate, &ticket(&gate, 50)).unwrap();
    clock.advance(Duration::from_millis(1));
    engine.0.fails_after.store(1, Ordering::Relaxed);
    assert!(matches!(settle(&gate, &open, 0), Err(TicketError::Store(_))));
    assert_eq!(remaining(&gate), 50);
    clock.advance(Duration::from_millis(1));
    settle(&gate, &open, 0).unwrap();
    assert_eq!(remaining(&gate), 100);
    assert_eq!(settle(&gate, &open, 0), Err(TicketError::Settled));
}

/// The write succeeded but its answer was lost. Regression: the mark was taken back then, so a retry booked the ticket
/// twice, which left a debt of 1700.
#[test]
fn a_settlement_whose_answer_is_lost_counts_once() {
    let clock = ManualClock::default();
    let engine = Engine::default();
    for lost in 1..=3 {
        let limit = Limit::new(Quota::per_hour(1000).gcra().unwrap(), "1000/h");
        let set = PolicySet::new(vec![Policy::new(format!("tokens-{lost}"), limit)]).unwrap();
        let gate = Gate::new(set, OnTheSpot(CasStore::new(engine.clone()))).with_clock(clock.clone());
        let open = open(&gate, &ticket(&gate, 400)).unwrap();
        let _ = gate.check(Check::of(&Descriptor::new()).cost(500)).now().unwrap();
        engine.0.loses_after.store(lost, Ordering::Relaxed);
        let first = settle(&gate, &open, 1300);
        engine.0.loses_after.store(0, Ordering::Relaxed);
        if first.is_err() {
            assert_eq!(settle(&gate, &open, 1300), Err(TicketError::Settled), "write {lost}");
        }
        let standing =
            gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision.standing;
        assert_eq!((standing.remaining, standing.debt), (0, 800), "write {lost}");
    }
}

/// Whichever read or write of the engine fails: after an error nothing has changed, and after a success everything has.
#[test]
fn a_success_that_fails_forgets_nothing() {
    let clock = ManualClock::default();
    let engine = Engine::default();
    let gate = gate(OnTheSpot(CasStore::new(engine.clone())), &clock, "one");
    for (at, name) in ["ann", "bob", "eve", "joe"].into_iter().enumerate() {
        let request = Descriptor::new().with("login.name", name);
        let levels = || {
            let decision = gate.check(Check::of(&request).peek()).now().unwrap();
            decision.limits.iter().map(|limit| limit.decision.standing.remaining).collect::<Vec<_>>()
        };
        let (before, mut charged) = (levels(), tidegate::gate::Charged::default());
        assert!(gate.charge(&request, &mut charged).now().unwrap().allowed);
        let charges = levels();
        engine.0.fails_after.store(1 + at as u64, Ordering::Relaxed);
        let told = gate.finish(&charged, Part::All, Outcome::Success, |_| Some(0)).now().map(drop);
        engine.0.fails_after.store(0, Ordering::Relaxed);
        assert_eq!(levels(), if told.is_ok() { before } else { charges }, "operation {at}");
    }
}

/// A byte map shared by several nodes that fails, or loses an answer, on command.
#[derive(Clone, Debug, Default)]
pub(super) struct Engine(Arc<Shared>);

impl Engine {
    /// Makes the next operation fail.
    pub(super) fn fail_next(&self) {
        self.0.fails_after.store(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Shared {
    bytes: Bytes,
    /// The number of operations until one fails; 0 for none.
    fails_after: AtomicU64,
    /// The number of writes until the answer of one is lost; 0 for none.
    loses_after: AtomicU64,
}

/// Fails when the count reaches zero.
fn fails(after: &AtomicU64) -> Result<(), StoreError> {
    let less = after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |after| after.checked_sub(1));
    let failed = less == Ok(1);
    if failed { Err(StoreError::Unavailable { reason: "told to".to_owned() }) } else { Ok(()) }
}

impl ByteMap for Engine {
    fn read(&self, _: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        let (engine, keys) = (Arc::clone(&self.0), keys.to_vec());
        Box::pin(async move {
            fails(&engine.fails_after)?;
            Ok(engine.bytes.read_now(&keys))
        })
    }

    fn write_if_unchanged(&self, _: u64, writes: Vec<Write>) -> Later<Result<Written, StoreError>> {
        let engine = Arc::clone(&self.0);
        Box::pin(async move {
            fails(&engine.fails_after)?;
            let written = engine.bytes.write_now(&writes);
            if written {
                fails(&engine.loses_after)?;
            }
            Ok(crate::byte_map::written(written))
        })
    }

    fn len(&self) -> usize {
        self.0.bytes.len()
    }
}
