use std::sync::Mutex;

use tidegate_core::Retry;

use super::*;
use crate::clock::ManualClock;
use crate::observer::KeyDigest;

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<Change>>);

impl Observer for Heard {
    fn on_change(&self, change: &Change) {
        self.0.lock().unwrap().push(change.clone());
    }
}

impl Heard {
    /// Returns the changes reported since the last call, as words.
    fn words(&self) -> Vec<String> {
        let told = |change: Change| {
            let cause = match change.cause {
                Cause::Tripped(figure) | Cause::WouldTrip(figure) => figure.to_string(),
                Cause::Forced(forced) => forced.reason().to_owned(),
                other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
            };
            format!("{} to {}: {cause}", change.from.as_str(), change.to.as_str())
        };
        self.0.lock().unwrap().drain(..).map(told).collect()
    }
}

fn heard(law: BreakerBuilder) -> (Breaker, ManualClock, Arc<Heard>) {
    let (clock, heard) = (ManualClock::default(), Arc::new(Heard::default()));
    let breaker =
        Breaker::new(law.jitter(0.0)).unwrap().with_clock(clock.clone()).with_observer(heard.clone());
    (breaker, clock, heard)
}

fn calls(breaker: &Breaker, count: u64, outcome: Outcome) {
    (0..count).for_each(|_| breaker.try_enter().unwrap().leave(outcome));
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_outage_is_told_from_its_beginning_to_its_end() {
    let (breaker, clock, heard) = heard(CircuitBreaker::builder());
    calls(&breaker, 10, Outcome::Success);
    calls(&breaker, 10, Outcome::Failure);
    assert_eq!(heard.words(), ["closed to open: 10 of 20 calls failed"]);
    assert_eq!(breaker.try_enter().unwrap_err().retry(), Retry::After(5 * SECOND));
    assert_eq!(heard.words(), [""; 0], "a refusal is no change");
    clock.advance(5 * SECOND);
    calls(&breaker, 3, Outcome::Failure);
    let failed = "half-open to open: of 3 probes 3 failed and 0 were slow";
    assert_eq!(heard.words(), ["open to half-open: Waited", failed]);
    assert_eq!(breaker.try_enter().unwrap_err().retry(), Retry::After(10 * SECOND), "twice as long");
    clock.advance(10 * SECOND);
    calls(&breaker, 6 * 4, Outcome::Success);
    let step = "half-open to half-open: Recovered";
    let last = "half-open to closed: Recovered";
    assert_eq!(heard.words(), ["open to half-open: Waited", step, step, step, last]);
}

#[test]
fn each_step_of_recovery_lets_twice_as_many_in() {
    let (breaker, clock, _) = heard(CircuitBreaker::builder().consecutive(1));
    calls(&breaker, 1, Outcome::Failure);
    assert_eq!(breaker.try_enter().unwrap_err().to_string(), "refused; retry after 5 s");
    clock.advance(5 * SECOND);
    for most in [3, 6, 12, 24] {
        let inside: Vec<Call> = std::iter::from_fn(|| breaker.try_enter().ok()).collect();
        assert_eq!(inside.len(), most);
        let refused = breaker.try_enter().unwrap_err();
        assert_eq!(refused.retry(), Retry::Unknown);
        assert_eq!(refused.to_string(), "refused now; it is unknown when a retry can pass");
        drop(inside);
        calls(&breaker, 6, Outcome::Success);
    }
    assert_eq!(breaker.state(), Condition::Closed);
}

#[test]
fn a_person_is_heard_for_as_long_as_was_said() {
    let (breaker, clock, heard) = heard(CircuitBreaker::builder().consecutive(1));
    breaker.force(Force::Closed, Some(SECOND), "a test of load");
    calls(&breaker, 40, Outcome::Failure);
    assert_eq!((breaker.totals().failures, breaker.state().as_str()), (40, "forced-closed"));
    clock.advance(SECOND);
    assert_eq!(breaker.state(), Condition::Closed);
    calls(&breaker, 1, Outcome::Failure);
    assert_eq!(
        heard.words(),
        [
            "closed to forced-closed: a test of load",
            "forced-closed to closed: Released",
            "closed to open: 41 calls in a row failed"
        ]
    );
    breaker.force(Force::Open, None, "moves");
    clock.advance(1_000_000 * SECOND);
    assert_eq!(breaker.try_enter().unwrap_err().retry(), Retry::Unknown);
    breaker.auto();
    breaker.auto();
    calls(&breaker, 1, Outcome::Success);
    assert_eq!(breaker.state().as_str(), "half-open", "tried before all are let in");
    assert_eq!(
        heard.words(),
        ["open to forced-open: moves", "forced-open to open: Released", "open to half-open: Waited"]
    );
}

#[test]
fn a_breaker_on_trial_tells_when_it_would_have_tripped_and_refuses_nobody() {
    let (breaker, _, heard) = heard(CircuitBreaker::builder());
    breaker.force(Force::MetricsOnly, None, "on trial");
    calls(&breaker, 45, Outcome::Failure);
    let would = "metrics-only to metrics-only: 20 of 20 calls failed";
    assert_eq!(heard.words(), ["closed to metrics-only: on trial", would, would]);
    breaker.force(Force::Disabled, None, "no more");
    calls(&breaker, 45, Outcome::Failure);
    assert_eq!(breaker.totals().calls, 0, "the window is empty, and nothing is counted");
}

#[test]
fn slow_calls_are_timed_from_entering_to_leaving() {
    let (breaker, clock, heard) = heard(CircuitBreaker::builder().slow_calls(SECOND, 0.5).min_calls(2));
    for latency in [SECOND, SECOND + Duration::from_nanos(1)] {
        let call = breaker.try_enter().unwrap();
        clock.advance(latency);
        call.leave(Outcome::Success);
    }
    assert_eq!(heard.words(), ["closed to open: 1 of 2 calls were slow"]);
}

/// How long a stream lasts says nothing of the service: whether a call was slow depends on when its answer began.
#[test]
fn a_stream_is_slow_if_it_begins_late_and_not_if_it_ends_late() {
    let slow = || CircuitBreaker::builder().slow_calls(SECOND, 1.0).min_calls(1);
    for (begins, state) in [(SECOND, "closed"), (SECOND + Duration::from_nanos(1), "open")] {
        let (breaker, clock, _) = heard(slow());
        let keyed = KeyedBreaker::new(slow(), 10).unwrap().with_clock(clock.clone());
        let (mut call, mut of_key) = (breaker.try_enter().unwrap(), keyed.try_enter("store").unwrap());
        clock.advance(begins);
        call.answer_begins();
        of_key.answer_begins();
        clock.advance(20 * SECOND);
        call.answer_begins();
        of_key.answer_begins();
        call.leave(Outcome::Success);
        of_key.leave(Outcome::Success);
        assert_eq!((breaker.state().as_str(), keyed.state("store").as_str()), (state, state), "{begins:?}");
    }
}

#[test]
fn work_is_run_unless_it_is_refused() {
    let (breaker, ..) = heard(CircuitBreaker::builder().consecutive(1));
    assert_eq!(breaker.blocking_run(|| Ok::<_, fmt::Error>(1)), Ok(1));
    let failed: Result<(), _> = breaker.blocking_run(|| Err(fmt::Error));
    assert_eq!(failed, Err(CallError::Failed(fmt::Error)));
    let refused = breaker.blocking_run(|| -> Result<(), fmt::Error> { panic!("it is not tried") });
    assert_eq!(refused.unwrap_err().to_string(), "the breaker is open; retry after 5 s");
}

/// Each refusal is told by what the breaker does: no breaker that a person holds open says that it tries the service.
#[test]
fn a_refusal_says_why() {
    let (breaker, ..) = heard(CircuitBreaker::builder().probes(1));
    let told = |breaker: &Breaker| {
        let refused = breaker.blocking_run(|| -> Result<(), fmt::Error> { panic!("it is not tried") });
        refused.unwrap_err().to_string()
    };
    breaker.force(Force::Open, None, "index rebuild");
    assert_eq!(told(&breaker), "the breaker was forced open: index rebuild");
    let mut run = std::pin::pin!(breaker.run(std::future::pending::<Result<(), fmt::Error>>()));
    let std::task::Poll::Ready(Err(CallError::Refused(refusal))) =
        run.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    else {
        panic!("it is forced open")
    };
    assert!(matches!(refusal.reason, RefusalReason::Forced(forced) if forced.reason() == "index rebuild"));
    breaker.force(Force::Open, Some(90 * SECOND), "");
    assert_eq!(told(&breaker), "the breaker was forced open; retry after 90 s");
    breaker.auto();
    let probe = breaker.try_enter().unwrap();
    assert_eq!(
        told(&breaker),
        "the breaker lets no more calls through while it tries the service, until one of them ends or has lasted for its `ttl`"
    );
    drop(probe);

    let (sheds, ..) = heard(CircuitBreaker::builder().shed_at_most(0.9));
    let refused = (0..10_000).find_map(|_| match sheds.blocking_run(|| Err::<(), _>(fmt::Error)) {
        Err(CallError::Refused(refusal)) => Some(refusal.to_string()),
        _ => None,
    });
    assert_eq!(
        refused.as_deref(),
        Some("the breaker refuses a share of the calls, because the service fails")
    );
}

#[test]
fn a_future_that_is_dropped_says_nothing() {
    let (breaker, clock, _) = heard(CircuitBreaker::builder().consecutive(1).probes(1));
    calls(&breaker, 1, Outcome::Failure);
    clock.advance(5 * SECOND);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut work = Box::pin(breaker.run(std::future::pending::<Result<(), fmt::Error>>()));
    assert!(work.as_mut().poll(&mut cx).is_pending());
    assert!(breaker.try_enter().is_err(), "one probe");
    drop(work);
    assert!(matches!(breaker.state(), Condition::HalfOpen { in_flight: 0, .. }));
}

#[test]
fn a_panic_says_nothing_and_goes_through() {
    let (breaker, ..) = heard(CircuitBreaker::builder().consecutive(1));
    let work = std::panic::AssertUnwindSafe(|| {
        breaker.blocking_run(|| -> Result<(), fmt::Error> { panic!("on purpose") })
    });
    assert!(std::panic::catch_unwind(work).is_err());
    assert_eq!((breaker.state(), breaker.totals().calls), (Condition::Closed, 0));
}

#[test]
fn keys_have_breakers_of_their_own_and_are_forgotten() {
    let clock = ManualClock::default();
    let law = CircuitBreaker::builder().consecutive(1).jitter(0.0);
    let hosts = KeyedBreaker::new(law, 100).unwrap().with_clock(clock.clone());
    hosts.try_enter("a").unwrap().leave(Outcome::Failure);
    assert_eq!(hosts.retry("a"), Retry::After(5 * SECOND));
    assert_eq!(hosts.retry("b"), Retry::After(Duration::ZERO));
    let probes: Vec<Call> = {
        clock.advance(5 * SECOND);
        std::iter::from_fn(|| hosts.try_enter("a").ok()).collect()
    };
    assert_eq!((probes.len(), hosts.retry("a")), (3, Retry::Unknown));
    drop(probes);
    hosts.try_enter("a").unwrap().leave(Outcome::Success);
    hosts.reset("a");
    assert_eq!(hosts.retry("a"), Retry::After(Duration::ZERO));
    for key in 0..1_000_u32 {
        hosts.try_enter(key).unwrap().leave(Outcome::Failure);
    }
    let occupancy = hosts.occupancy();
    assert!(occupancy.used <= occupancy.capacity && occupancy.evicted > 0, "{occupancy:?}");
}

#[test]
fn a_key_is_forced_by_hand_until_its_time_or_for_good() {
    let clock = ManualClock::default();
    let law = CircuitBreaker::builder().consecutive(1).jitter(0.0).forget_after(60 * SECOND);
    let hosts = KeyedBreaker::new(law, 100).unwrap().with_clock(clock.clone());
    hosts.force("a", Force::Open, Some(10 * SECOND), "its disk is being replaced");
    assert_eq!(hosts.retry("a"), Retry::After(10 * SECOND));
    assert_eq!(hosts.try_enter("a").unwrap_err().retry(), Retry::After(10 * SECOND));
    assert_eq!(hosts.forced("a").unwrap().reason(), "its disk is being replaced");
    assert_eq!((hosts.state("a").as_str(), hosts.state("b").as_str()), ("forced-open", "closed"));
    hosts.try_enter("b").unwrap().leave(Outcome::Success);
    clock.advance(10 * SECOND);
    assert_eq!((hosts.forced("a"), hosts.state("a").as_str()), (None, "open"), "tried by probes first");
    hosts.try_enter("a").unwrap().leave(Outcome::Ignored);
    hosts.force("c", Force::Disabled, None, "it lies");
    for _ in 0..9 {
        hosts.try_enter("c").unwrap().leave(Outcome::Failure);
    }
    clock.advance(1_000_000 * SECOND);
    assert_eq!(hosts.state("c").as_str(), "disabled");
    hosts.auto("c");
    hosts.try_enter("c").unwrap().leave(Outcome::Failure);
    assert_eq!(hosts.state("c").as_str(), "open");
    hosts.force("c", Force::Open, None, "");
    assert_eq!(hosts.retry("c"), Retry::Unknown);
    hosts.reset("c");
    assert_eq!(hosts.state("c"), Condition::Closed);
}

/// A table has room for fewer keys than are forced here, one after the other.
#[test]
fn forced_keys_that_nobody_asks_for_give_their_room_back() {
    let forgets = || (CircuitBreaker::builder().forget_after(60 * SECOND), 61);
    let never = (CircuitBreaker::builder().forget_after(Duration::MAX), 301);
    let cases = [Force::Open, Force::Closed, Force::MetricsOnly, Force::Disabled].map(|to| (to, forgets()));
    for (to, (law, idle)) in cases.into_iter().chain([(Force::Open, never)]) {
        let clock = ManualClock::default();
        let hosts = KeyedBreaker::new(law, 64).unwrap().with_clock(clock.clone());
        for key in 0..1000_u32 {
            hosts.force(key, to, Some(SECOND), "for a second");
            assert!(hosts.forced(key).is_some(), "{to:?}: key {key}");
            clock.advance(idle * SECOND);
        }
        let occupancy = hosts.occupancy();
        assert_eq!(
            (occupancy.used <= occupancy.capacity, occupancy.evicted),
            (true, 0),
            "{to:?}: {occupancy:?}"
        );
    }
}

#[test]
fn a_law_that_never_forgets_a_trip_forgets_a_hand() {
    let law = || CircuitBreaker::builder().consecutive(1).forget_after(Duration::MAX);
    let ((by_hand, its_clock, _), (tripped, clock, _)) = (heard(law()), heard(law()));
    calls(&tripped, 1, Outcome::Failure);
    for (breaker, clock, stays) in [(by_hand, its_clock, "closed"), (tripped, clock, "open")] {
        breaker.force(Force::Open, Some(SECOND), "by hand");
        clock.advance(300 * SECOND);
        assert_eq!(breaker.state().as_str(), "open", "it is to be tried by probes");
        clock.advance(SECOND);
        assert_eq!(breaker.state().as_str(), stays);
    }
}

#[test]
fn a_key_that_is_forced_open_outlives_a_flood_of_others() {
    let law = CircuitBreaker::builder();
    let hosts = KeyedBreaker::new(law, 64).unwrap().with_clock(ManualClock::default());
    hosts.force("a", Force::Open, None, "for good");
    for key in 0..10_000_u32 {
        hosts.try_enter(key).unwrap().leave(Outcome::Failure);
    }
    assert!(hosts.occupancy().evicted > 0);
    assert_eq!(hosts.state("a").as_str(), "forced-open");
}

/// Records the changes of each key, beside those of single breakers.
#[derive(Debug, Default)]
struct ByKey(Heard, Mutex<Vec<KeyDigest>>);

impl Observer for ByKey {
    fn on_change(&self, change: &Change) {
        self.0.on_change(change);
    }

    fn on_key_change(&self, change: &Change, key: KeyDigest) {
        self.1.lock().unwrap().push(key);
        self.on_change(change);
    }
}

/// Regression: an observer received the changes of every single breaker, but not those of keyed ones.
#[test]
fn an_observer_hears_of_keys_what_it_hears_of_one_breaker() {
    let law = || CircuitBreaker::builder().consecutive(2).jitter(0.0);
    let (clock, told) = (ManualClock::default(), Arc::new(ByKey::default()));
    let hosts = KeyedBreaker::new(law(), 100).unwrap().with_clock(clock.clone()).with_observer(told.clone());
    let (alone, its_clock, heard) = heard(law());
    for step in 0..60 {
        let outcome = [Outcome::Failure, Outcome::Failure, Outcome::Success, Outcome::Ignored][step % 7 % 4];
        if let Ok(call) = hosts.try_enter("a") {
            call.leave(outcome);
        }
        if let Ok(call) = alone.try_enter() {
            call.leave(outcome);
        }
        clock.advance(SECOND);
        its_clock.advance(SECOND);
        assert_eq!(told.0.words(), heard.words(), "step {step}");
    }
    let keys: Vec<KeyDigest> = told.1.lock().unwrap().drain(..).collect();
    assert!(keys.len() > 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    for _ in 0..2 {
        hosts.try_enter("b").unwrap().leave(Outcome::Failure);
    }
    assert_ne!(told.1.lock().unwrap()[..], [keys[0]]);
    let before = told.0.words().len();
    for (to, time) in [(Force::Open, None), (Force::Closed, Some(SECOND)), (Force::Open, Some(SECOND))] {
        hosts.force("a", to, time, "by hand");
        alone.force(to, time, "by hand");
    }
    hosts.auto("a");
    alone.auto();
    assert_eq!(told.0.words(), heard.words());
    hosts.reset("b");
    assert_eq!(before, 1, "a key that is reset is forgotten, which is not told");
}

mod observed {
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
        let refused = (0..10_000)
            .filter(|_| breaker.try_enter().map(|call| call.leave(Outcome::Failure)).is_err())
            .count();
        let told = told.take();
        assert!(refused > 0);
        assert_eq!(told.iter().filter(|told| told.starts_with("refused, shedding")).count(), refused);
        assert_eq!(told.iter().filter(|told| *told == "Failure after 0ns").count(), 10_000 - refused);
    }

    #[test]
    fn calls_of_keys_are_told_with_the_digest_of_the_key() {
        let (clock, told) = (ManualClock::default(), Arc::new(Told::default()));
        let law = CircuitBreaker::builder().consecutive(1).probes(1).jitter(0.0);
        let hosts =
            KeyedBreaker::new(law, 100).unwrap().with_clock(clock.clone()).with_observer(told.clone());
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
}
