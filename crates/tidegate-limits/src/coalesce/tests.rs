use std::pin::{Pin, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::poll_fn;
use tidegate_core::{Criticality, Priority, Tick};

use super::*;
use crate::block_on::block_on;
use crate::clock::ManualClock;
use crate::deadline::Deadline;

/// A call that counts itself and ends at its third poll.
fn slow(calls: &Arc<AtomicU32>) -> impl FnOnce() -> BoxFuture<'static, u32> + Send + 'static {
    let calls = Arc::clone(calls);
    move || {
        let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
        let mut polls = 0;
        poll_fn(move |cx| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(number);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .boxed()
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn the_call_goes_on_when_the_caller_who_began_it_goes() {
    let (coalesce, calls) = (Coalesce::new(), Arc::default());
    let mut first = Box::pin(coalesce.call("key", slow(&calls)));
    let mut second = pin!(coalesce.call("key", slow(&calls)));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    assert_eq!(coalesce.in_flight(), 1);
    drop(first);
    assert_eq!(block_on(second.as_mut()), Ok(1));
    assert_eq!((calls.load(Ordering::Relaxed), coalesce.in_flight()), (1, 0));
}

#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Regression: the call was woken while the first caller polled it, which woke that caller alone; the second came during
/// that poll. When the first then went, nobody polled the call again, and the second waited for good.
#[test]
fn a_caller_that_goes_although_it_was_woken_hands_the_call_on() {
    let (coalesce, woken) = (Coalesce::new(), Arc::new(Woken::default()));
    let second: Arc<Mutex<Option<BoxFuture<'static, _>>>> = Arc::default();
    let (joins, waker, comes) = (coalesce.clone(), Waker::from(Arc::clone(&woken)), Arc::clone(&second));
    let mut is_second = false;
    let call = poll_fn(move |cx| {
        if std::mem::replace(&mut is_second, true) {
            return Poll::Ready(7);
        }
        cx.waker().wake_by_ref();
        let joins = joins.clone();
        let mut waits = async move { joins.call("key", std::future::pending).await }.boxed();
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        *comes.lock() = Some(waits);
        Poll::Pending
    });
    let mut first = Box::pin(coalesce.call("key", || call));
    assert!(poll(first.as_mut()).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed), "the first was woken");
    drop(first);
    assert!(woken.0.load(Ordering::Relaxed), "it is the second's turn");
    let second = second.lock().take().expect("it waits");
    assert_eq!((block_on(second), coalesce.in_flight()), (Ok(7), 0));
}

#[test]
fn a_call_that_all_have_left_is_dropped_and_the_next_is_a_new_one() {
    let (coalesce, calls) = (Coalesce::new(), Arc::default());
    let mut first = Box::pin(coalesce.call("key", slow(&calls)));
    assert!(poll(first.as_mut()).is_pending());
    drop(first);
    assert_eq!(coalesce.in_flight(), 0);
    assert_eq!(block_on(coalesce.call("key", slow(&calls))), Ok(2));
    assert_eq!(block_on(coalesce.call("key", slow(&calls))), Ok(3), "an answer is not kept");
}

#[test]
fn a_call_that_hangs_is_not_joined_for_ever() {
    let (clock, calls) = (ManualClock::default(), Arc::new(AtomicU32::new(0)));
    let coalesce = Coalesce::new().joinable_for(Duration::from_secs(5)).with_clock(clock.clone());
    let hangs = || std::future::pending::<u32>();
    let mut first = Box::pin(coalesce.call("key", hangs));
    assert!(poll(first.as_mut()).is_pending());
    clock.advance(Duration::from_secs(5) - Duration::from_nanos(1));
    let mut joins = pin!(coalesce.call("key", slow(&calls)));
    assert!(poll(joins.as_mut()).is_pending());
    assert_eq!(calls.load(Ordering::Relaxed), 0, "still joined");
    clock.advance(Duration::from_nanos(1));
    let mut fresh = pin!(coalesce.call("key", slow(&calls)));
    assert!(poll(fresh.as_mut()).is_pending());
    let mut joins_fresh = pin!(coalesce.call("key", slow(&calls)));
    assert!(poll(joins_fresh.as_mut()).is_pending());
    assert_eq!(coalesce.in_flight(), 1);
    // The end of the old call leaves the entry of the new one alone.
    drop(first);
    assert!(poll(joins.as_mut()).is_pending());
    assert_eq!((block_on(fresh), block_on(joins_fresh)), (Ok(1), Ok(1)));
    assert_eq!((calls.load(Ordering::Relaxed), coalesce.in_flight()), (1, 0));
}

#[test]
fn other_keys_have_calls_of_their_own() {
    let (coalesce, calls) = (Coalesce::new(), Arc::default());
    let mut one = pin!(coalesce.call(1, slow(&calls)));
    let mut two = pin!(coalesce.call(2, slow(&calls)));
    assert!(poll(one.as_mut()).is_pending() && poll(two.as_mut()).is_pending());
    assert_eq!(coalesce.in_flight(), 2);
    assert_eq!((block_on(two), block_on(one)), (Ok(2), Ok(1)));
}

#[test]
fn a_panic_is_told_to_all_and_then_forgotten() {
    let coalesce: Coalesce<&str, u32> = Coalesce::new();
    let panics = || async { panic!("the database does") };
    let mut one = pin!(coalesce.call("key", panics));
    let mut two = pin!(coalesce.call("key", panics));
    let told = Err(CoalesceError::Panicked { message: "the database does".into() });
    assert_eq!(poll(one.as_mut()), Poll::Ready(told.clone()));
    assert_eq!(block_on(two.as_mut()), told, "a call of its own, which panics too");
    assert_eq!(coalesce.in_flight(), 0);
    assert_eq!(block_on(coalesce.call("key", || async { 5 })), Ok(5));
}

/// The first caller's deadline used to bound the answers of all: work that read the time left found that of the
/// last caller that polled it.
#[test]
fn the_call_carries_nobodys_deadline_and_nobodys_priority() {
    let coalesce: Coalesce<&str, Option<Deadline>> = Coalesce::new().with_clock(ManualClock::default());
    let asks = || async { deadline::carried() };
    let ranks: Coalesce<&str, Option<Priority>> = Coalesce::new();
    let rank = ranks.call("key", || async { priority::carried() });
    assert_eq!(block_on(priority::carry_through(Criticality::Sheddable, rank)), Ok(None));
    let mine = Deadline::from(Tick::from_secs(1));
    let answer = block_on(deadline::carry_through(mine, coalesce.call("key", asks)));
    assert_eq!(answer, Ok(None));
    let own = move || deadline::carry_through(Tick::from_secs(9), asks());
    let answer = block_on(deadline::carry_through(mine, coalesce.call("key", own)));
    assert_eq!(answer, Ok(Some(Tick::from_secs(9).into())));
}

/// Each caller has its own deadline: the one with the least time leaves, and the call goes on for the other.
#[test]
fn a_caller_waits_until_its_own_deadline() {
    let clock = ManualClock::default();
    let coalesce: Coalesce<&str, u32> = Coalesce::new().with_clock(clock.clone());
    let done = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&done);
    let ends = move || {
        poll_fn(move |_| match seen.load(Ordering::Relaxed) {
            0 => Poll::Pending,
            answer => Poll::Ready(answer),
        })
    };
    let mut brief = Box::pin(deadline::carry_through(Tick::from_secs(1), coalesce.call("key", ends)));
    let mut patient = Box::pin(deadline::carry_through(
        Tick::from_secs(9),
        coalesce.call("key", || async { unreachable!("the first call answers both") }),
    ));
    assert!(poll(brief.as_mut()).is_pending() && poll(patient.as_mut()).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(poll(brief.as_mut()), Poll::Ready(Err(CoalesceError::TimedOut)));
    assert!(poll(patient.as_mut()).is_pending());
    let late = deadline::carry_through(Tick::from_secs(1), coalesce.call("other", || async { 6 }));
    assert_eq!(block_on(late), Err(CoalesceError::TimedOut), "it had passed before");
    done.store(5, Ordering::Relaxed);
    assert_eq!(block_on(patient), Ok(5));
    assert_eq!(coalesce.in_flight(), 0);
}

/// The last waiting caller goes on one thread while another comes on a second one: the new caller gets an answer,
/// from the old call or a new one, and the end of the old call does not remove the new one from the list.
#[test]
fn whoever_comes_while_the_last_one_goes_gets_an_answer() {
    let coalesce: Coalesce<&str, u32> = Coalesce::new();
    let (together, mut wrong) = (Barrier::new(2), Vec::new());
    std::thread::scope(|scope| {
        let (coalesce_too, together) = (coalesce.clone(), &together);
        scope.spawn(move || {
            for _ in 0..2000 {
                let mut last = Box::pin(coalesce_too.call("key", slow(&Arc::default())));
                let _ = poll(last.as_mut());
                together.wait();
                drop(last);
                together.wait();
                together.wait();
            }
        });
        for _ in 0..2000 {
            together.wait();
            let mut comes = Box::pin(coalesce.call("key", slow(&Arc::default())));
            let at_once = poll(comes.as_mut());
            together.wait();
            // The old call has ended or was dropped by now, so the list has the new one or none.
            let listed = coalesce.in_flight();
            let answer = if at_once.is_pending() { block_on(comes) } else { Ok(1) };
            let seen = (listed, answer, coalesce.in_flight());
            if seen != (usize::from(at_once.is_pending()), Ok(1), 0) {
                wrong.push(seen);
            }
            together.wait();
        }
    });
    assert_eq!(wrong, []);
}

/// Many threads over few keys: each call's answer reaches all that share it, none is lost, and the list is empty
/// afterwards.
#[test]
fn threads_that_come_and_go_leave_nothing_behind() {
    let coalesce: Coalesce<u32, u32> = Coalesce::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let coalesce = coalesce.clone();
            scope.spawn(move || {
                let calls = Arc::default();
                for round in 0..500 {
                    let mut call = Box::pin(coalesce.call(round % 3, slow(&calls)));
                    if (round + thread) % 5 == 0 {
                        let _ = poll(call.as_mut());
                    } else {
                        assert!(block_on(call).is_ok());
                    }
                }
            });
        }
    });
    assert_eq!(coalesce.in_flight(), 0);
}

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<CoalesceDid>>);

impl Observer for Heard {
    fn on_coalesce(&self, did: CoalesceDid) {
        self.0.lock().push(did);
    }
}

#[test]
fn an_observer_hears_who_calls_and_who_waits_for_it() {
    let (heard, calls) = (Arc::new(Heard::default()), Arc::default());
    let coalesce = Coalesce::new().with_observer(heard.clone());
    let mut first = pin!(coalesce.call("key", slow(&calls)));
    assert!(poll(first.as_mut()).is_pending());
    assert_eq!(block_on(coalesce.clone().call("key", slow(&calls))), Ok(1));
    assert_eq!(block_on(first), Ok(1));
    assert!(block_on(coalesce.call("key", || async { panic!("on purpose") })).is_err());
    let ended = |panicked| CoalesceDid::Ended { panicked };
    let expected = [CoalesceDid::Called, CoalesceDid::Joined, ended(false), CoalesceDid::Called, ended(true)];
    assert_eq!(*heard.0.lock(), expected);
}
