//! What an observer is told of calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::observer::CallDid;

/// Records calls and changes in the order in which they are told, and the keys of calls.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>, Mutex<Vec<KeyDigest>>);

impl Observer for Told {
    fn on_change(&self, change: &Change) {
        self.0.lock().unwrap().push(format!("{} to {}", change.from.as_str(), change.to.as_str()));
    }

    fn on_call(&self, did: &CallDid) {
        self.0.lock().unwrap().push(match did {
            CallDid::Refused { reason, retry } => format!("refused, {}, {retry:?}", reason.as_str()),
            CallDid::Ended { outcome, took } => format!("{outcome:?} after {took:?}"),
        });
    }

    fn on_key_call(&self, did: &CallDid, key: KeyDigest) {
        self.1.lock().unwrap().push(key);
        self.on_call(did);
    }
}

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn keys(&self) -> Vec<KeyDigest> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

fn told(law: BreakerBuilder) -> (Breaker, ManualClock, Arc<Told>) {
    let (clock, told) = (ManualClock::default(), Arc::new(Told::default()));
    let breaker =
        Breaker::new(law.jitter(0.0)).unwrap().with_clock(clock.clone()).with_observer(told.clone());
    (breaker, clock, told)
}

#[test]
fn calls_that_end_and_calls_that_are_refused_are_told() {
    let (breaker, clock, told) = told(CircuitBreaker::builder().consecutive(1).probes(1));
    let call = breaker.try_enter().unwrap();
    let late = breaker.try_enter().unwrap();
    assert_eq!(told.take(), [""; 0], "a call is told when it ends");
    clock.advance(SECOND);
    call.leave(Outcome::Failure);
    assert_eq!(told.take(), ["closed to open", "Failure after 1s"]);
    late.leave(Outcome::Success);
    assert_eq!(told.take(), ["Success after 1s"], "its end does not count any more");
    assert!(breaker.try_enter().is_err());
    assert!(breaker.blocking_run(|| Ok::<_, fmt::Error>(())).is_err());
    assert_eq!(told.take(), ["refused, open, After(5s)"; 2]);
    clock.advance(5 * SECOND);
    let probe = breaker.try_enter().unwrap();
    assert!(breaker.try_enter().is_err());
    drop(probe);
    assert_eq!(
        told.take(),
        ["open to half-open", "refused, half-open, Unknown", "Ignored after 0ns"],
        "one probe at once"
    );
    breaker.force(Force::Open, None, "moves");
    assert!(breaker.try_enter().is_err());
    assert_eq!(told.take(), ["half-open to forced-open", "refused, forced-open, Unknown"]);
}

#[test]
fn a_share_of_calls_that_is_refused_is_told_as_shed() {
    let (breaker, _, told) = told(CircuitBreaker::builder().shed_at_most(0.9));
    let refused =
        (0..10_000).filter(|_| breaker.try_enter().map(|call| call.leave(Outcome::Failure)).is_err()).count();
    let told = told.take();
    assert!(refused > 0);
    assert_eq!(told.iter().filter(|told| told.starts_with("refused, shedding")).count(), refused);
    assert_eq!(told.iter().filter(|told| *told == "Failure after 0ns").count(), 10_000 - refused);
}

#[test]
fn calls_of_keys_are_told_with_the_digest_of_the_key() {
    let (clock, told) = (ManualClock::default(), Arc::new(Told::default()));
    let law = CircuitBreaker::builder().consecutive(1).probes(1).jitter(0.0);
    let hosts = KeyedBreaker::new(law, 100).unwrap().with_clock(clock.clone()).with_observer(told.clone());
    let call = hosts.try_enter("a").unwrap();
    clock.advance(SECOND);
    call.leave(Outcome::Failure);
    assert!(hosts.try_enter("a").is_err());
    drop(hosts.try_enter("b").unwrap());
    let failed = ["closed to open", "Failure after 1s", "refused, open, After(5s)", "Ignored after 0ns"];
    assert_eq!(told.take(), failed);
    let keys = told.keys();
    assert!(matches!(keys[..], [first, second, other] if first == second && first != other), "{keys:?}");
    clock.advance(5 * SECOND);
    let probe = hosts.try_enter("a").unwrap();
    assert!(hosts.try_enter("a").is_err());
    hosts.force("b", Force::Open, Some(SECOND), "its disk is full");
    assert!(hosts.try_enter("b").is_err());
    let refused = [
        "open to half-open",
        "refused, half-open, Unknown",
        "closed to forced-open",
        "refused, forced-open, After(1s)",
    ];
    assert_eq!(told.take(), refused);
    hosts.reset("a");
    told.keys();
    probe.leave(Outcome::Success);
    assert_eq!((told.take(), told.keys()), (vec!["Success after 0ns".to_owned()], vec![keys[0]]));
}

/// Panics at each change, or at each end of a call.
#[derive(Debug)]
struct Panics {
    at_changes: bool,
}

impl Observer for Panics {
    fn on_change(&self, change: &Change) {
        assert!(!self.at_changes, "the observer is broken: {change:?}");
    }

    fn on_call(&self, did: &CallDid) {
        assert!(self.at_changes, "the observer is broken: {did:?}");
    }
}

/// Regression: an observer that panicked at the change by which a probe entered took the probe's place with it.
#[test]
fn an_observer_that_panics_takes_no_probe_away() {
    let law = || CircuitBreaker::builder().consecutive(1).probes(1).jitter(0.0);
    let (clock, other) = (ManualClock::default(), Panics { at_changes: true });
    let breaker = Breaker::new(law()).unwrap().with_clock(clock.clone()).with_observer(other);
    let keyed = KeyedBreaker::new(law(), 10).unwrap().with_clock(clock.clone());
    let keyed = keyed.with_observer(Panics { at_changes: true });
    let panics = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
    assert!(panics(&|| breaker.try_enter().unwrap().leave(Outcome::Failure)));
    assert!(panics(&|| keyed.try_enter("a").unwrap().leave(Outcome::Failure)));
    clock.advance(5 * SECOND);
    assert!(panics(&|| drop(breaker.try_enter())) && panics(&|| drop(keyed.try_enter("a"))));
    assert!(breaker.try_enter().is_ok() && keyed.try_enter("a").is_ok(), "the next one probes");
}

/// Two panics at once would abort the process: that of the work goes on.
#[test]
fn an_observer_that_panics_when_work_has_panicked_is_not_heard() {
    let breaker =
        Breaker::new(CircuitBreaker::builder()).unwrap().with_observer(Panics { at_changes: false });
    let keyed = KeyedBreaker::new(CircuitBreaker::builder(), 10).unwrap();
    let keyed = keyed.with_observer(Panics { at_changes: false });
    let works: [&dyn Fn(); 2] =
        [&|| drop(breaker.blocking_run(|| -> Result<(), fmt::Error> { panic!("the work") })), &|| {
            let _call = keyed.try_enter("a").unwrap();
            panic!("the work");
        }];
    for work in works {
        let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the work"));
    }
    assert!(catch_unwind(AssertUnwindSafe(|| drop(breaker.try_enter()))).is_err());
}
