//! What an observer is told of places: each entry ends once, and each that entered leaves once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::bulkhead::NoPlace::{
    self, DeadlineExceeded, Displaced, Full, KeptForOthers, QueueFull, QueueTimeout, Throttled, TooManyPlaces,
};
use tidegate::bulkhead::Tenants;
use tidegate::clock::ManualClock;
use tidegate::concurrency::throttle::Shedding;
use tidegate::concurrency::{Partition, Vegas};
use tidegate::observer::PlaceDid::{self, Dropped, Entered, Left, Refused};
use tidegate::observer::{LimitMoved, Observer};
use tidegate::policy::{KeepFor, Kept};
use tidegate::priority::Criticality;
use tidegate::{Bulkhead, Outcome, Tick};

use super::throttled::Hears;
use super::{Waiter, ready};

const SECOND: Duration = Duration::from_secs(1);
const NO_WAIT: Duration = Duration::ZERO;
const AT_ONCE: PlaceDid = Entered { waited: NO_WAIT };

#[derive(Debug, Default)]
struct Told(Mutex<Vec<PlaceDid>>);

impl Observer for Told {
    fn on_place(&self, did: PlaceDid) {
        self.0.lock().unwrap().push(did);
    }
}

impl Told {
    /// Returns what was told since the last call.
    fn take(&self) -> Vec<PlaceDid> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

const fn refused(cause: NoPlace) -> PlaceDid {
    Refused { cause, waited: NO_WAIT }
}

const fn left(outcome: Outcome, held: Duration) -> PlaceDid {
    Left { outcome, held }
}

fn observed(bulkhead: Bulkhead) -> (Bulkhead, ManualClock, Arc<Told>) {
    let (clock, told) = (ManualClock::at(Tick::from_secs(9)), Arc::new(Told::default()));
    (bulkhead.with_clock(clock.clone()).with_observer(told.clone()), clock, told)
}

#[test]
fn work_that_enters_at_once_is_told_when_it_enters_and_when_it_leaves() {
    let plain = || Bulkhead::new(2).unwrap();
    let divided = || plain().with_tenants(Tenants::default());
    let kinds = [plain(), divided(), plain().with_short_queue(), plain().with_throttle(Shedding::default())];
    for kind in kinds.into_iter().chain([Bulkhead::adaptive(Vegas::default())]) {
        let (bulkhead, clock, told) = observed(kind);
        let permit = bulkhead.try_enter().unwrap();
        assert_eq!(told.take(), [AT_ONCE]);
        clock.advance(SECOND);
        permit.leave(Outcome::Failure);
        assert_eq!(told.take(), [left(Outcome::Failure, SECOND)]);
        drop(bulkhead.enter().now().unwrap());
        drop(bulkhead.enter().try_now().unwrap());
        drop(ready(Waiter::new(bulkhead.enter()).poll()).unwrap());
        drop(bulkhead.enter_n(2).now().unwrap());
        let pair = [AT_ONCE, left(Outcome::Ignored, NO_WAIT)];
        assert_eq!(told.take(), [pair; 4].concat());
    }
}

#[test]
fn a_refusal_is_told_once_with_its_cause_on_each_way_in() {
    let (full, _, told) = observed(Bulkhead::new(1).unwrap());
    let _permit = full.try_enter().unwrap();
    told.take();
    assert!(full.try_enter().is_err());
    assert!(full.enter_n(2).now().is_err());
    assert!(full.enter().now().is_err());
    assert!(full.enter_n(2).now().is_err());
    assert!(ready(Waiter::new(full.enter().within(NO_WAIT)).poll()).is_err());
    assert!(ready(Waiter::new(full.enter().until(Tick::from_secs(8))).poll()).is_err());
    let expected = [Full, TooManyPlaces, Full, TooManyPlaces, Full, DeadlineExceeded];
    assert_eq!(told.take(), expected.map(refused));
    assert!(full.enter_n(0).now().is_err());
    assert_eq!(told.take(), [], "nobody asked for a place");

    let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
    let (kept, _, told) = observed(Bulkhead::new(2).unwrap().with_keep_for(kept).unwrap());
    let low = || kept.enter().priority(Criticality::Sheddable);
    let _permit = low().now().unwrap();
    assert!(low().now().is_err());
    let promised = Partition::default().guaranteed(100).unwrap().lends(0).unwrap();
    let tenants = Tenants::default().named("checkout", promised).unwrap();
    assert_eq!(told.take(), [AT_ONCE, refused(KeptForOthers)]);
    let (divided, _, told) = observed(Bulkhead::new(1).unwrap().with_tenants(tenants));
    assert!(divided.enter().of("search").now().is_err());
    assert!(divided.enter().of("checkout").now().is_ok());
    assert_eq!(told.take()[..2], [refused(TooManyPlaces), AT_ONCE]);
}

#[test]
fn what_a_throttle_sheds_is_told() {
    let (bulkhead, _, told) = observed(Bulkhead::new(1).unwrap().with_throttle(Hears::default()));
    let low = || bulkhead.enter().priority(Criticality::Sheddable);
    assert!(low().now().is_err());
    assert!(ready(Waiter::new(low()).poll()).is_err());
    assert!(tidegate::priority::carry(Criticality::Sheddable, || bulkhead.try_enter()).is_err());
    assert!(bulkhead.enter_n(2).now().is_err());
    assert_eq!(told.take(), [Throttled, Throttled, Throttled, TooManyPlaces].map(refused));
    let permit = bulkhead.try_enter().unwrap();
    assert!(bulkhead.try_enter().is_err());
    drop(permit);
    assert_eq!(told.take(), [AT_ONCE, refused(Full), left(Outcome::Ignored, NO_WAIT)]);
}

#[test]
fn waits_are_told_with_how_long_they_lasted_and_how_they_ended() {
    let (bulkhead, clock, told) =
        observed(Bulkhead::new(1).unwrap().with_room(2).with_longest_wait(4 * SECOND));
    let permit = bulkhead.try_enter().unwrap();
    let low = || Waiter::new(bulkhead.enter().priority(Criticality::Sheddable));
    let (mut served, mut displaced, mut high) =
        (Waiter::new(bulkhead.enter()), low(), Waiter::new(bulkhead.enter()));
    assert!(served.poll().is_pending() && displaced.poll().is_pending());
    clock.advance(SECOND);
    assert!(ready(low().poll()).is_err());
    assert!(high.poll().is_pending());
    assert_eq!(told.take(), [AT_ONCE, refused(QueueFull)], "whoever gave way has not heard of it");
    assert!(ready(displaced.poll()).is_err());
    assert_eq!(told.take(), [Refused { cause: Displaced, waited: SECOND }]);
    clock.advance(SECOND);
    permit.leave(Outcome::Success);
    let permit = ready(served.poll()).unwrap();
    assert_eq!(told.take(), [left(Outcome::Success, 2 * SECOND), Entered { waited: 2 * SECOND }]);
    clock.advance(3 * SECOND);
    assert!(ready(high.poll()).is_err());
    assert_eq!(told.take(), [Refused { cause: QueueTimeout, waited: 4 * SECOND }]);
    drop(permit);
    assert_eq!(told.take(), [left(Outcome::Ignored, 3 * SECOND)], "from when it had its place");
}

#[test]
fn an_entry_that_is_dropped_without_an_answer_is_told() {
    let (bulkhead, clock, told) = observed(Bulkhead::new(1).unwrap().with_room(1));
    let permit = bulkhead.try_enter().unwrap();
    told.take();
    let low = || bulkhead.enter().priority(Criticality::Sheddable);
    let [mut displaced, mut first] = [Waiter::new(low()), Waiter::new(bulkhead.enter())];
    assert!(displaced.poll().is_pending());
    clock.advance(SECOND);
    assert!(first.poll().is_pending());
    drop(displaced);
    assert_eq!(told.take(), [Dropped { waited: SECOND }], "it gave way, and did not hear of it");
    permit.leave(Outcome::Success);
    clock.advance(SECOND);
    drop(first);
    assert_eq!(told.take()[1..], [Dropped { waited: SECOND }], "it had a place, and did not hear of it");
    assert_eq!(bulkhead.standing().remaining, 1);

    let _permit = bulkhead.try_enter().unwrap();
    let mut tried = bulkhead.enter();
    assert!(tried.try_now().is_none());
    let mut waits = Waiter::new(tried);
    assert!(waits.poll().is_pending());
    told.take();
    drop(waits);
    assert_eq!(told.take(), [Dropped { waited: NO_WAIT }]);
    drop(bulkhead.enter());
    assert_eq!(told.take(), [], "an entry that was neither tried nor polled asks for nothing");
    let (throttled, _, shed) = observed(Bulkhead::new(1).unwrap().with_throttle(Hears::default()));
    let low = throttled.enter().priority(Criticality::Sheddable);
    let late = bulkhead.enter().until(Tick::from_secs(8));
    for mut tried in [bulkhead.enter(), late, throttled.enter_n(2), low] {
        assert!(tried.try_now().is_none());
    }
    assert_eq!([told.take(), shed.take()].concat(), [Dropped { waited: NO_WAIT }; 4]);
}

/// An entry that was refused before it counted as an arrival is an arrival like any other when it is awaited.
#[test]
fn a_throttle_is_asked_for_an_entry_that_was_tried_in_vain() {
    let (bulkhead, _, told) = observed(Bulkhead::new(1).unwrap().with_throttle(Hears::default()));
    let mut wide = bulkhead.enter_n(2).priority(Criticality::Sheddable);
    assert!(wide.try_now().is_none());
    bulkhead.change(2).unwrap();
    assert!(ready(Waiter::new(wide).poll()).is_err());
    assert_eq!(told.take(), [refused(Throttled)]);
}

/// Panics each time, and counts.
#[derive(Debug, Default)]
struct Panics(Mutex<u32>);

impl Observer for Panics {
    fn on_place(&self, did: PlaceDid) {
        *self.0.lock().unwrap() += 1;
        panic!("the observer is broken: {did:?}");
    }

    fn on_limit(&self, moved: &LimitMoved) {
        panic!("the observer is broken: {moved:?}");
    }
}

/// The permit of an entry whose observer panics is dropped under that panic, and tells the observer again.
#[test]
fn an_observer_that_panics_loses_no_place_and_forgets_no_waiter() {
    let plain = || Bulkhead::new(2).unwrap();
    let kinds = [plain(), plain().with_tenants(Tenants::default()), plain().with_throttle(Hears::default())];
    for kind in kinds {
        let panics = Arc::new(Panics::default());
        let bulkhead = kind.with_clock(ManualClock::default()).with_observer(panics.clone());
        let panics_in = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
        assert!(panics_in(&|| drop(bulkhead.try_enter())));
        assert!(panics_in(&|| drop(bulkhead.enter().now())));
        assert!(panics_in(&|| drop(ready(Waiter::new(bulkhead.enter()).poll()))));
        assert!(panics_in(&|| drop(bulkhead.enter_n(9).now())));
        assert_eq!(*panics.0.lock().unwrap(), 3 * 2 + 1);
        assert_eq!(bulkhead.standing().remaining, 2);
    }

    let bulkhead = plain();
    let observed = bulkhead.with_observer(Panics::default());
    // Entered under another panic, in which the observer's own is swallowed.
    let held = Mutex::new(Vec::new());
    struct Enters<'a>(&'a Bulkhead, &'a Mutex<Vec<tidegate::bulkhead::Permit>>);
    impl Drop for Enters<'_> {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0.enter_n(2).now().unwrap());
        }
    }
    let work = AssertUnwindSafe(|| {
        let _enters = Enters(&observed, &held);
        panic!("on purpose");
    });
    assert!(catch_unwind(work).is_err());
    let permit = held.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).pop().unwrap();
    let [mut first, mut second] = [Waiter::new(observed.enter()), Waiter::new(observed.enter())];
    assert!(first.poll().is_pending() && second.poll().is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(permit))).is_err());
    assert!(first.was_woken() && second.was_woken(), "places are passed on before anybody is told");
    assert!(catch_unwind(AssertUnwindSafe(|| drop(first))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ready(second.poll())))).is_err());
    assert_eq!((observed.standing().remaining, observed.waiting()), (2, 0));
}

/// An observer may use the bulkhead that it observes: it is called with no lock held.
#[test]
fn an_observer_may_ask_the_bulkhead() {
    #[derive(Debug, Default)]
    struct Asks(Mutex<Option<Bulkhead>>, Mutex<Vec<usize>>);
    impl Observer for Asks {
        fn on_place(&self, _: PlaceDid) {
            if let Some(bulkhead) = &*self.0.lock().unwrap() {
                bulkhead.sense(tidegate::concurrency::Signal::Memory(1));
                self.1.lock().unwrap().push(bulkhead.waiting());
            }
        }
    }
    let asks = Arc::new(Asks::default());
    let bulkhead = Bulkhead::adaptive(Vegas::default())
        .with_tenants(Tenants::default())
        .with_throttle(Shedding::default())
        .with_clock(ManualClock::default())
        .with_observer(asks.clone());
    *asks.0.lock().unwrap() = Some(bulkhead.clone());
    let all = bulkhead.enter_n(bulkhead.standing().limit).now().unwrap();
    assert!(bulkhead.try_enter().is_err());
    let mut waits = Waiter::new(bulkhead.enter());
    assert!(waits.poll().is_pending());
    all.leave(Outcome::Success);
    drop(waits);
    assert_eq!(*asks.1.lock().unwrap(), [0, 0, 0, 0]);
    *asks.0.lock().unwrap() = None;
}

/// On many threads, with time-outs and dropped entries: each entry ends once, and each that entered leaves once.
#[test]
fn each_entry_ends_once_and_each_that_entered_leaves_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let told = Arc::new(Told::default());
    let bulkhead = Bulkhead::new(2).unwrap().with_room(1).with_observer(told.clone());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let bulkhead = &bulkhead;
            scope.spawn(move || {
                for turn in 0..EACH {
                    match (thread + turn) % 4 {
                        0 => drop(bulkhead.try_enter()),
                        1 => drop(Waiter::new(bulkhead.enter()).poll()),
                        2 => drop(bulkhead.enter().try_now()),
                        _ => drop(bulkhead.enter().within(SECOND / 1000).blocking()),
                    }
                }
            });
        }
    });
    let told = told.take();
    let count = |is: fn(&PlaceDid) -> bool| told.iter().filter(|did| is(did)).count() as u64;
    let entered = count(|did| matches!(did, Entered { .. }));
    let others = count(|did| matches!(did, Refused { .. } | Dropped { .. }));
    assert_eq!(entered + others, THREADS * EACH);
    assert_eq!(count(|did| matches!(did, Left { .. })), entered);
}
