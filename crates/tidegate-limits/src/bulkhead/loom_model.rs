//! Loom models: places and waiters, through all interleavings, or those with a bounded number of preemptions.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc as Plain;
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;
use tidegate_core::concurrency::{Law, Partition, Sample};
use tidegate_core::throttle::{Arrival, Throttle};
use tidegate_core::{Criticality, Outcome, Retry, Tick};

use super::build::BulkheadRules;
use super::moving::Moving;
use super::state::{Parts, Throttling};
use super::*;
use crate::answer::TakeError;
use crate::clock::ManualClock;
use crate::sync::{explore, short_or_long};

/// Wakes a thread of the model.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Plain<Self>) {
        self.0.unpark();
    }
}

fn built(rules: BulkheadRules, limit: u64, moving: Option<Moving>) -> Bulkhead {
    built_on(ManualClock::default(), rules, limit, moving)
}

/// A manual clock: loom would also explore the atomics of the system clock.
fn built_on(clock: ManualClock, rules: BulkheadRules, limit: u64, moving: Option<Moving>) -> Bulkhead {
    let clock = Arc::new(clock);
    let parts = Parts { clock, limit, moving, throttling: None, observer: None };
    let bulkhead = Bulkhead { shared: BulkheadState::new(parts, rules) };
    // Loom creates its cells on first use; this has to happen before the threads start.
    assert_eq!(bulkhead.standing().limit, limit);
    bulkhead
}

fn bulkhead(max: u64) -> Bulkhead {
    built(BulkheadRules { room: 9, ..Bulkhead::rules(false) }, max, None)
}

/// Waits for its turn without a bound. A lost place leaves this thread parked, which loom reports as a deadlock.
fn enter(bulkhead: &Bulkhead) -> Permit {
    turn(bulkhead.enter()).unwrap()
}

fn turn(entry: Enter) -> Result<Permit, TakeError> {
    let waker = Waker::from(Plain::new(Unpark(thread::current())));
    let mut entry = pin!(entry);
    loop {
        match entry.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once and then drops the entry, with the place or without it.
fn hang_up(bulkhead: &Bulkhead) {
    let waker = Waker::from(Plain::new(Unpark(thread::current())));
    let mut entry = Box::pin(bulkhead.enter());
    drop(entry.as_mut().poll(&mut Context::from_waker(&waker)));
}

fn is_empty(bulkhead: &Bulkhead) {
    assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (bulkhead.standing().limit, 0));
}

/// A permit is dropped while one caller waits and another hangs up: the waiter gets the place, even if it was given to
/// the other first.
#[test]
fn a_waiter_who_goes_passes_its_turn_on() {
    explore(Some(3), || {
        let bulkhead = bulkhead(1);
        let inside = bulkhead.try_enter().unwrap();
        let (one, two) = (bulkhead.clone(), bulkhead.clone());
        let goes = thread::spawn(move || hang_up(&one));
        let stays = thread::spawn(move || drop(enter(&two)));
        inside.leave(Outcome::Success);
        goes.join().unwrap();
        stays.join().unwrap();
        is_empty(&bulkhead);
    });
}

/// Two callers use one place in turn: neither waits for ever, and both are never inside at once.
#[test]
fn places_are_neither_lost_nor_doubled() {
    explore(short_or_long(Some(4), None), || {
        let bulkhead = bulkhead(1);
        let other = bulkhead.clone();
        let turns = |bulkhead: &Bulkhead| {
            for _ in 0..2 {
                let permit = enter(bulkhead);
                assert_eq!(bulkhead.standing().remaining, 0, "nobody else is inside");
                drop(permit);
            }
        };
        let thread = thread::spawn(move || turns(&other));
        turns(&bulkhead);
        thread.join().unwrap();
        is_empty(&bulkhead);
    });
}

/// A place is added while the caller that waits for it hangs up.
#[test]
fn a_change_meets_a_waiter_who_goes() {
    explore(None, || {
        let bulkhead = bulkhead(1);
        let inside = bulkhead.try_enter().unwrap();
        let other = bulkhead.clone();
        let goes = thread::spawn(move || hang_up(&other));
        bulkhead.change(2).unwrap();
        goes.join().unwrap();
        assert_eq!(bulkhead.standing().remaining, 1);
        drop(inside);
        is_empty(&bulkhead);
    });
}

/// Two callers use one place on the fast path: each is refused only while the other is inside.
#[test]
fn past_the_lock_never_are_two_at_one_place() {
    explore(short_or_long(Some(3), None), || {
        let bulkhead = bulkhead(1);
        let other = bulkhead.clone();
        let thread = thread::spawn(move || {
            for _ in 0..2 {
                if let Ok(permit) = other.try_enter() {
                    assert_eq!(other.standing().debt, 0);
                    drop(permit);
                }
            }
        });
        for _ in 0..2 {
            if let Ok(permit) = bulkhead.try_enter() {
                assert_eq!(bulkhead.standing().debt, 0);
                drop(permit);
            }
        }
        thread.join().unwrap();
        is_empty(&bulkhead);
    });
}

/// A bulkhead is dropped while its permits are dropped. Its counter goes to the pool once, so two bulkheads made
/// afterwards have different counters.
#[test]
fn a_bulkhead_that_goes_before_its_permits_leaves_its_counter_once() {
    explore(None, || {
        let gone = bulkhead(2);
        let (one, two) = (gone.try_enter().unwrap(), gone.try_enter().unwrap());
        let leaves = thread::spawn(move || drop(two));
        drop(gone);
        drop(one);
        leaves.join().unwrap();
        let (first, second) = (bulkhead(1), bulkhead(1));
        let [_one, _two] = [&first, &second].map(|bulkhead| bulkhead.try_enter().unwrap());
        assert_eq!((first.standing().remaining, second.standing().remaining), (0, 0));
    });
}

/// The last permit is dropped while the waiter hangs up and drops the bulkhead. A bulkhead made meanwhile, perhaps with
/// the same counter, has all its places afterwards.
#[test]
fn a_permit_never_returns_its_place_to_a_later_bulkhead() {
    explore(short_or_long(Some(3), None), || {
        let gone = bulkhead(1);
        let inside = gone.try_enter().unwrap();
        let leaves = thread::spawn(move || drop(inside));
        hang_up(&gone);
        drop(gone);
        let next = bulkhead(3);
        let held = next.try_enter().unwrap();
        leaves.join().unwrap();
        assert_eq!((next.standing().remaining, next.standing().debt), (2, 0));
        drop(held);
        is_empty(&next);
    });
}

/// A more important caller takes the only position in the queue while a place becomes free. The replaced waiter is
/// served or refused, and no caller is left waiting.
#[test]
fn a_place_in_the_queue_is_taken_while_a_place_becomes_free() {
    explore(Some(3), || {
        let bulkhead = built(BulkheadRules { room: 1, ..Bulkhead::rules(false) }, 1, None);
        let inside = bulkhead.try_enter().unwrap();
        let (one, two) = (bulkhead.clone(), bulkhead.clone());
        let low = thread::spawn(move || match turn(one.enter().priority(Criticality::Sheddable)) {
            Ok(permit) => drop(permit),
            Err(refused) => assert_eq!(refused.retry(), Retry::Unknown),
        });
        let high = thread::spawn(move || drop(turn(two.enter()).unwrap()));
        inside.leave(Outcome::Success);
        low.join().unwrap();
        high.join().unwrap();
        is_empty(&bulkhead);
    });
}

/// A law that adds one place after each sample.
#[derive(Clone, Debug)]
struct Grows;

impl Law for Grows {
    type State = u64;

    fn start(&self, _: Tick) -> u64 {
        1
    }

    fn limit(&self, limit: &u64) -> u64 {
        *limit
    }

    fn learn(&self, limit: &mut u64, _: &Sample) {
        *limit += 1;
    }
}

/// Two permits are left at once while one caller waits. A returned place or a place that the law adds serves the
/// waiter, and no sample is lost.
#[test]
fn a_law_learns_from_two_at_once_while_one_waits() {
    explore(short_or_long(Some(2), Some(3)), || {
        let moving = Moving::new(Grows, Tick::EPOCH);
        let bulkhead = built(Bulkhead::rules(true), 1, Some(moving));
        bulkhead.try_enter().unwrap().leave(Outcome::Success);
        let [inside, other] = [bulkhead.try_enter().unwrap(), bulkhead.try_enter().unwrap()];
        let waiting = bulkhead.clone();
        let waits = thread::spawn(move || drop(enter(&waiting)));
        let leaves = thread::spawn(move || other.leave(Outcome::Success));
        inside.leave(Outcome::Success);
        waits.join().unwrap();
        leaves.join().unwrap();
        is_empty(&bulkhead);
        // A sample that arrived while the law was locked is passed to the law with the next one.
        bulkhead.try_enter().unwrap().leave(Outcome::Success);
        assert_eq!(bulkhead.standing().limit, 5);
    });
}

/// Two tenants use one place, twice each: neither waits for ever.
#[test]
fn tenants_take_turns() {
    explore(Some(3), || {
        let tenants = Tenants::default().each(Partition::default(), 2).unwrap();
        let bulkhead = built(BulkheadRules { tenants: Some(tenants), ..Bulkhead::rules(false) }, 1, None);
        let other = bulkhead.clone();
        let turns = |bulkhead: &Bulkhead, tenant: &str| {
            for _ in 0..2 {
                let permit = turn(bulkhead.enter().of(tenant)).unwrap();
                assert_eq!(bulkhead.standing().remaining, 0, "nobody else is inside");
                drop(permit);
            }
        };
        let thread = thread::spawn(move || turns(&other, "ann"));
        turns(&bulkhead, "bob");
        thread.join().unwrap();
        is_empty(&bulkhead);
    });
}

/// A throttle that admits everybody, and counts the admitted callers and the outcomes.
#[derive(Clone, Debug)]
struct CountingThrottle(Plain<[std::sync::atomic::AtomicU64; 2]>);

impl Throttle for CountingThrottle {
    type State = ();

    fn start(&self, _: Tick) {}

    fn admit(&self, (): &mut (), _: &Arrival) -> bool {
        self.0[0].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        true
    }

    fn learn(&self, (): &mut (), _: Tick, _: Duration, _: Outcome) {
        self.0[1].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn refused_share(&self, (): &(), _: Tick) -> u32 {
        0
    }
}

/// Two callers come for one place: one does not wait and drops its permit, the other waits and leaves with an outcome.
/// The throttle learns of each caller's end exactly once, with a place or without one.
#[test]
fn a_throttle_hears_of_everybody_once() {
    explore(Some(3), || {
        let counts = CountingThrottle(Plain::default());
        let throttling = Some(Throttling::new(counts.clone(), Tick::EPOCH));
        let clock = Arc::new(ManualClock::default());
        let parts = Parts { clock, limit: 1, moving: None, throttling, observer: None };
        let bulkhead = Bulkhead {
            shared: BulkheadState::new(parts, BulkheadRules { room: 9, ..Bulkhead::rules(false) }),
        };
        drop(bulkhead.try_enter().unwrap());
        let other = bulkhead.clone();
        let thread = thread::spawn(move || drop(other.try_enter()));
        turn(bulkhead.enter()).unwrap().leave(Outcome::Success);
        thread.join().unwrap();
        is_empty(&bulkhead);
        let [let_in, ended] = [0, 1].map(|at: usize| counts.0[at].load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!((let_in, ended), (3, 3));
    });
}

mod waits {
    //! Loom models of waits that end early, of the orders of the queue, and of tenants with guarantees.

    use std::time::Duration;

    use tidegate_core::codel::Codel;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The longest wait of a caller ends while the place becomes free. The caller has the place or is refused, and the place
    /// is free afterwards.
    #[test]
    fn a_wait_ends_while_the_place_becomes_free() {
        explore(Some(3), || {
            let clock = ManualClock::default();
            let rules = BulkheadRules { room: 9, longest_wait: SECOND, ..Bulkhead::rules(false) };
            let bulkhead = built_on(clock.clone(), rules, 1, None);
            let inside = bulkhead.try_enter().unwrap();
            let other = bulkhead.clone();
            let waits = thread::spawn(move || match turn(other.enter()) {
                Ok(permit) => drop(permit),
                Err(TakeError::Denied(denied)) => assert_eq!(denied.no_place, Some(NoPlace::QueueTimeout)),
                Err(other) => panic!("{other}"),
            });
            clock.advance(SECOND);
            drop(inside);
            waits.join().unwrap();
            is_empty(&bulkhead);
            assert_eq!(clock.sleepers(), 0);
        });
    }

    /// Two callers wait, the newest first, while the place becomes free: both are served.
    #[test]
    fn the_newest_first_serves_all() {
        explore(short_or_long(Some(2), Some(3)), || {
            let bulkhead =
                built(BulkheadRules { room: 9, order: QueueOrder::Lifo, ..Bulkhead::rules(false) }, 1, None);
            let inside = bulkhead.try_enter().unwrap();
            let (one, two) = (bulkhead.clone(), bulkhead.clone());
            let waits = [one, two].map(|waiting| thread::spawn(move || drop(enter(&waiting))));
            inside.leave(Outcome::Success);
            waits.into_iter().for_each(|waits| waits.join().unwrap());
            is_empty(&bulkhead);
        });
    }

    /// Two callers wait in a queue that may not have been empty for an interval when the place becomes free. Each is served,
    /// or refused since the queue stands.
    #[test]
    fn a_standing_queue_serves_or_refuses_all() {
        explore(short_or_long(Some(2), Some(3)), || {
            let clock = ManualClock::default();
            let order = QueueOrder::Adaptive(Codel::default());
            let bulkhead =
                built_on(clock.clone(), BulkheadRules { room: 9, order, ..Bulkhead::rules(false) }, 1, None);
            let inside = bulkhead.try_enter().unwrap();
            let (one, two) = (bulkhead.clone(), bulkhead.clone());
            let waits = [one, two].map(|waiting| {
                thread::spawn(move || match turn(waiting.enter()) {
                    Ok(permit) => drop(permit),
                    Err(TakeError::Denied(denied)) => {
                        assert_eq!(denied.no_place, Some(NoPlace::StandingQueue));
                    }
                    Err(other) => panic!("{other}"),
                })
            });
            clock.advance(SECOND);
            inside.leave(Outcome::Success);
            waits.into_iter().for_each(|waits| waits.join().unwrap());
            is_empty(&bulkhead);
        });
    }

    /// One tenant waits for a place that it has lent, while the other comes for one that it does not lend: that one never
    /// waits, and the first gets its place back.
    #[test]
    fn a_tenant_that_lends_nothing_never_waits_for_one_that_does() {
        explore(short_or_long(Some(2), Some(3)), || {
            let half = Partition::default().guaranteed(50).unwrap();
            let tenants = Tenants::default().named("lender", half).unwrap();
            let tenants = tenants.named("keeper", half.lends(0).unwrap()).unwrap();
            let rules = BulkheadRules { room: 9, tenants: Some(tenants), ..Bulkhead::rules(false) };
            let bulkhead = built(rules, 2, None);
            let borrowed = bulkhead.enter().now().unwrap();
            let (one, two) = (bulkhead.clone(), bulkhead.clone());
            let lender = thread::spawn(move || drop(turn(one.enter().of("lender")).unwrap()));
            let keeper = thread::spawn(move || drop(two.enter().of("keeper").now().unwrap()));
            drop(borrowed);
            lender.join().unwrap();
            keeper.join().unwrap();
            is_empty(&bulkhead);
        });
    }
}
