//! Places and waiters, through all interleavings.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc as Plain;
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;

use super::*;
use crate::clock::ManualClock;
use crate::sync::explore;
use tidegate_core::Outcome;

/// Wakes a thread of the model.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Plain<Self>) {
        self.0.unpark();
    }
}

fn bulkhead(max: u64) -> Bulkhead {
    // A manual clock: loom would follow the atomics of the system clock.
    let line = Line::new(Concurrency::new(max).unwrap(), 9);
    Bulkhead { shared: Shared::new(Arc::new(ManualClock::default()), line) }
}

/// Waits for its turn, however long; a place that is lost leaves this thread parked, which loom reports as a deadlock.
fn enter(bulkhead: &Bulkhead) -> Permit {
    let waker = Waker::from(Plain::new(Unpark(thread::current())));
    let mut entry = pin!(bulkhead.enter());
    loop {
        match entry.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(permit) => return permit.unwrap(),
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once and goes, with the place or without it.
fn hang_up(bulkhead: &Bulkhead) {
    let waker = Waker::from(Plain::new(Unpark(thread::current())));
    let mut entry = Box::pin(bulkhead.enter());
    drop(entry.as_mut().poll(&mut Context::from_waker(&waker)));
}

fn is_empty(bulkhead: &Bulkhead) {
    assert_eq!((bulkhead.standing().remaining, bulkhead.waiting()), (bulkhead.standing().limit, 0));
}

/// One leaves while one waits and one hangs up: the place comes to the one who waits, whoever it was given to first.
#[test]
fn a_waiter_who_goes_passes_its_turn_on() {
    explore(None, || {
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

/// Two take turns at one place: nobody waits for ever, and never are both inside.
#[test]
fn places_are_neither_lost_nor_doubled() {
    explore(None, || {
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

/// A place is added while the one who waits for it goes.
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
