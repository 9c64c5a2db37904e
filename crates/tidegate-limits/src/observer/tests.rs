use std::sync::Mutex;

use tidegate_core::breaker::CircuitBreaker;
use tidegate_core::{Outcome, Quota};

use super::*;
use crate::{Breaker, Bulkhead, KeyedBreaker, Limiter, ManualClock};

const NO_PANIC: &str = "no test panics with the lock";

#[derive(Debug, Default)]
struct Names(Mutex<Vec<(String, &'static str)>>);

impl Observer for Names {
    fn on_named(&self, name: &str, event: AnyEvent<'_>) {
        let kind = match event {
            AnyEvent::Decision(_) => "decision",
            AnyEvent::Change(_) => "change",
            AnyEvent::KeyChange(..) => "key-change",
            AnyEvent::Limit(_) => "limit",
            AnyEvent::Place(_) => "place",
            AnyEvent::Call(_) => "call",
            AnyEvent::KeyCall(..) => "key-call",
            _ => "other",
        };
        self.0.lock().expect(NO_PANIC).push((name.to_owned(), kind));
    }
}

#[test]
fn parts_that_share_an_observer_are_told_apart() {
    let names = Arc::new(Names::default());
    let as_ = |name| Arc::clone(&names).named(name);
    let limiter = Limiter::new(Quota::per_second(1)).unwrap().with_observer(as_("all"));
    let reports = Bulkhead::new(2).unwrap().with_observer(as_("reports"));
    let fragile = || CircuitBreaker::builder().consecutive(1);
    let stock = Breaker::new(fragile()).unwrap().with_observer(as_("stock"));
    let hosts = KeyedBreaker::new(fragile(), 10).unwrap().with_observer(as_("hosts").named("outer"));
    assert!(limiter.with_clock(ManualClock::default()).allow().is_allowed());
    reports.change(3).unwrap();
    reports.try_enter_n(4).unwrap_err();
    stock.try_enter().unwrap().leave(Outcome::Failure);
    hosts.try_enter("a").unwrap().leave(Outcome::Failure);
    let told = names.0.lock().unwrap().clone();
    let told: Vec<_> = told.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let expected = [
        ("all", "decision"),
        ("reports", "limit"),
        ("reports", "place"),
        ("stock", "change"),
        ("stock", "call"),
        ("outer", "key-change"),
        ("outer", "key-call"),
    ];
    assert_eq!(told, expected);
}

#[derive(Debug, Default)]
struct Unnamed(Mutex<u32>);

impl Observer for Unnamed {
    fn on_limit(&self, _: &LimitMoved) {
        *self.0.lock().expect(NO_PANIC) += 1;
    }

    fn on_place(&self, _: PlaceDid) {
        *self.0.lock().expect(NO_PANIC) += 10;
    }

    fn on_call(&self, _: &CallDid) {
        *self.0.lock().expect(NO_PANIC) += 100;
    }
}

#[test]
fn an_observer_that_asks_for_no_name_is_told_as_before() {
    let moves = Arc::new(Unnamed::default());
    let reports = Bulkhead::new(2).unwrap().with_observer(Arc::clone(&moves).named("reports"));
    reports.change(3).unwrap();
    assert_eq!(*moves.0.lock().unwrap(), 1);
    drop(reports.try_enter().unwrap());
    let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 10).unwrap();
    let hosts = hosts.with_observer(Arc::clone(&moves).named("hosts"));
    hosts.try_enter("a").unwrap().leave(Outcome::Success);
    assert_eq!(*moves.0.lock().unwrap(), 121);
}
