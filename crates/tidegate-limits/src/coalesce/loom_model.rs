//! Loom models of callers that share a call: they come, go, wait, and see it panic, in all interleavings
//! with a bounded number of preemptions.
//!
//! Loom switches threads at the list of calls and where a thread parks. The future that callers share is one of
//! `futures-util`, whose own atomics loom does not see; so each poll and each drop of a caller, and the work itself, first
//! change a number that loom sees. The clock is set by hand. A caller that is never answered stays parked, which loom reports as a deadlock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc as Plain;
use std::sync::atomic::AtomicU32 as Count;
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::AtomicU32 as Visible;

use super::*;
use crate::block_on::block_on;
use crate::clock::ManualClock;
use crate::sync::short_or_long;

use crate::sync::{explore, thread};

type Callers = Coalesce<&'static str, u32>;

/// Callers of nothing yet. Loom creates its cells on first use, which has to happen before the threads start.
fn callers(clock: &ManualClock) -> Callers {
    let callers = Coalesce::on(clock.clone());
    assert_eq!((callers.in_flight(), callers.begun.load(Ordering::Relaxed)), (0, 0));
    callers
}

/// The work of all calls. It counts itself where loom sees nothing: work that all have left ends with its last caller,
/// before loom switches threads.
#[derive(Clone, Debug, Default)]
struct Work {
    begun: Plain<Count>,
    under_way: Plain<Count>,
    turns: Plain<Visible>,
}

/// A caller whose polls and whose drop loom sees.
struct Seen<F> {
    work: Work,
    caller: Pin<Box<F>>,
}

impl<F: Future> Future for Seen<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.work.turn();
        self.caller.as_mut().poll(cx)
    }
}

impl<F> Drop for Seen<F> {
    fn drop(&mut self) {
        self.work.turn();
    }
}

/// One piece of work under way.
struct UnderWay(Plain<Count>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work {
    /// Work that ends with its number, or panics, at its second poll.
    fn make(&self, panics: bool) -> impl FnOnce() -> BoxFuture<'static, u32> + Send + 'static {
        let work = self.clone();
        move || {
            let number = work.begun.fetch_add(1, Ordering::SeqCst) + 1;
            work.under_way.fetch_add(1, Ordering::SeqCst);
            let under_way = UnderWay(Plain::clone(&work.under_way));
            let mut is_second = false;
            poll_fn(move |cx| {
                let _under_way = &under_way;
                if std::mem::replace(&mut is_second, true) {
                    work.turn();
                    if panics {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                    return Poll::Ready(number);
                }
                cx.waker().wake_by_ref();
                // Others may come here: after the call was woken, and before the poll has ended.
                work.turn();
                Poll::Pending
            })
            .boxed()
        }
    }

    /// As [`Work::make`], and no other work may be under way when it begins.
    fn alone(&self, panics: bool) -> impl FnOnce() -> BoxFuture<'static, u32> + Send + 'static {
        let (under_way, make) = (Plain::clone(&self.under_way), self.make(panics));
        move || {
            assert_eq!(under_way.load(Ordering::SeqCst), 0, "the work of a key is done twice at once");
            make()
        }
    }

    fn turn(&self) {
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    fn caller<F: Future>(&self, caller: F) -> Seen<F> {
        Seen { work: self.clone(), caller: Box::pin(caller) }
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }
}

fn poll_once<F: Future + Unpin>(mut future: F) -> bool {
    Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Two callers come while a third goes after its first poll, whichever of them makes the call. Both are answered, by
/// work that nobody else was doing at the time.
#[test]
fn a_caller_that_goes_leaves_the_call_to_the_others() {
    explore(short_or_long(Some(2), Some(3)), || {
        let (callers, work) = (callers(&ManualClock::default()), Work::default());
        let (one, of_one) = (callers.clone(), work.clone());
        let goes = thread::spawn(move || poll_once(of_one.caller(one.call("key", of_one.alone(false)))));
        let (two, of_two) = (callers.clone(), work.clone());
        let comes = thread::spawn(move || block_on(of_two.caller(two.call("key", of_two.alone(false)))));
        let first = block_on(work.caller(callers.call("key", work.alone(false))));
        goes.join().unwrap();
        for answer in [first, comes.join().unwrap()] {
            let number = answer.expect("work that does not panic");
            assert!((1..=work.begun()).contains(&number), "{number}");
        }
        assert_eq!(callers.in_flight(), 0, "a call that has ended is still listed");
    });
}

/// The call panics while another waits for it or comes: both learn of it, and nobody waits for ever.
#[test]
fn a_panic_reaches_all_who_wait() {
    explore(short_or_long(Some(2), Some(3)), || {
        let (callers, work) = (callers(&ManualClock::default()), Work::default());
        let (other, of_other) = (callers.clone(), work.clone());
        let other = thread::spawn(move || block_on(of_other.caller(other.call("key", of_other.alone(true)))));
        let panicked = Err(CoalesceError::Panicked { message: "on purpose".into() });
        assert_eq!(block_on(work.caller(callers.call("key", work.alone(true)))), panicked);
        assert_eq!(other.join().unwrap(), panicked);
        assert_eq!(callers.in_flight(), 0, "a call that has ended is still listed");
        let next = work.begun() + 1;
        assert_eq!(block_on(callers.call("key", work.alone(false))), Ok(next));
    });
}

/// All callers go at once: no call is left behind, and the next caller's call is made.
#[test]
fn callers_that_all_go_leave_nothing_behind() {
    explore(short_or_long(Some(2), Some(3)), || {
        let (callers, work) = (callers(&ManualClock::default()), Work::default());
        let (other, of_other) = (callers.clone(), work.clone());
        let other =
            thread::spawn(move || poll_once(of_other.caller(other.call("key", of_other.alone(false)))));
        let ended = poll_once(work.caller(callers.call("key", work.alone(false))));
        let other_ended = other.join().unwrap();
        assert!(!(ended && other_ended), "work ends at its second poll, for whoever makes that");
        assert_eq!(callers.in_flight(), 0, "a call that all have left is still listed");
        let next = work.begun() + 1;
        assert_eq!(block_on(callers.call("key", work.alone(false))), Ok(next));
    });
}

/// A call is too old to be joined. While it ends, or its last caller goes, another call is made in its place: the end
/// of the old one leaves the new one to whoever joins it.
#[test]
fn the_end_of_an_old_call_leaves_the_new_one_alone() {
    for waits in [true, false] {
        explore(None, move || {
            let (clock, work) = (ManualClock::default(), Work::default());
            let callers = callers(&clock).joinable_for(Duration::from_secs(1));
            let (first, makes) = (callers.clone(), work.make(false));
            let mut old = Box::pin(async move { first.call("key", makes).await });
            assert!(!poll_once(&mut old));
            clock.advance(Duration::from_secs(1));
            let ends = thread::spawn(move || if waits { block_on(old) } else { Ok(1) });
            let mut new = Box::pin(callers.call("key", work.make(false)));
            assert!(!poll_once(&mut new), "its work ends at the second poll");
            let joins = callers.call("key", work.make(false));
            assert_eq!((block_on(joins), block_on(new)), (Ok(2), Ok(2)));
            assert_eq!((ends.join().unwrap(), work.begun()), (Ok(1), 2));
            assert_eq!(callers.in_flight(), 0);
        });
    }
}
