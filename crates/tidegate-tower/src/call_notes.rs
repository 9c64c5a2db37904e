//! What the layers around one call tell each other beside its request and its answer.
//!
//! Breaker, concurrency and client layers take requests and answers of any type, which have no extensions, and layers of
//! other crates may stand in between. What reaches through all of them is the work itself: on one thread a layer calls,
//! polls and drops what is inside it. So these notes are left on the thread for the length of one such step. No other file
//! reads or writes them:
//!
//! | note | left by | for | why it cannot travel as a value |
//! |---|---|---|---|
//! | `DROPPED` | a deadline that drops what is inside it; a wait for a turn that is dropped with it | the guards in there and around the wait, which are dropped | a future is dropped without an argument and returns nothing, and a guard of requests of any type cannot have been handed a value before |
//! | `TURN_CAME` | a wait for a turn that ends | the breakers around it | they measure from then on, long before there is an answer |
//! | `CEILING` | the bound of a whole call | such a bound inside it | it goes where the carried deadline goes, also to calls whose requests are made inside |
//! | `AROUND` | clients, and tries after the first | refusals made in there | layers that refuse requests of any type; the refusal takes it along as a value |
//!
//! Each is put back when the step ends, except `TURN_CAME`, which is cleared before the poll that it tells about.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;

use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::deadline::Deadline;

thread_local! {
    static DROPPED: Cell<Dropped> = const { Cell::new(Dropped::NoFault) };
    static TURN_CAME: Cell<bool> = const { Cell::new(false) };
    static CEILING: Cell<Option<Deadline>> = const { Cell::new(None) };
    static AROUND: Cell<Surroundings> = const { Cell::new(Surroundings { clients: 0, further_tries: 0 }) };
}

/// Puts a note back when dropped, also if the work panics.
struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);

impl<T: Copy + 'static> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Leaves a note for the length of `work`.
#[inline]
fn during<T: Copy + 'static, R>(note: &'static LocalKey<Cell<T>>, value: T, work: impl FnOnce() -> R) -> R {
    let _before = Restore(note, note.replace(value));
    work()
}

/// Why a future or a body is being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    /// Nobody waits for it any more, or it had too little time: this says nothing about the work.
    NoFault,
    /// Its time is up, which is a failure of the called service.
    TooLate,
    /// The same, but it waited for its turn here, so that the service was not called.
    TooLateInLine,
}

/// Runs `work`, which drops a future or a body because its time is up. What is dropped learns whether that counts as its
/// failure: otherwise a service that hangs would never lower a limit that adapts to latencies.
pub(crate) fn dropping_for_timeout<T>(timeout_is_failure: bool, work: impl FnOnce() -> T) -> T {
    during(&DROPPED, if timeout_is_failure { Dropped::TooLate } else { Dropped::NoFault }, work)
}

/// Returns the outcome of work that is being dropped: a failure within [`dropping_for_timeout`] if the timeout counts and
/// the service was called, else ignored.
pub(crate) fn outcome_of_drop() -> Outcome {
    match DROPPED.get() {
        Dropped::TooLate => Outcome::Failure,
        Dropped::NoFault | Dropped::TooLateInLine => Outcome::Ignored,
    }
}

/// Returns the outcome of an answer whose body is being dropped before it has ended: as [`outcome_of_drop`], and the
/// service was called.
pub(crate) fn outcome_of_dropped_body() -> Outcome {
    match DROPPED.get() {
        Dropped::TooLate | Dropped::TooLateInLine => Outcome::Failure,
        Dropped::NoFault => Outcome::Ignored,
    }
}

/// Part of a call that waits for its turn, in a concurrency layer's queue or for a rate limit layer's permit. Dropped for a
/// timeout, it tells the layers around the call, which are dropped after it, that the service was not called, so that the
/// timeout is not its failure.
#[derive(Debug)]
pub(crate) struct NotCalled;

impl Drop for NotCalled {
    fn drop(&mut self) {
        if DROPPED.get() == Dropped::TooLate {
            DROPPED.set(Dropped::TooLateInLine);
        }
    }
}

pin_project! {
    /// The future of the inner service of a layer that reports how calls end. When it is dropped, it first takes back what
    /// a [`NotCalled`] has said, so that the note then tells about this call and not about one beside it.
    #[derive(Debug)]
    pub(crate) struct Made<F> {
        // Comes first, so it is dropped before the future.
        begin: Begin,
        #[pin]
        future: F,
    }
}

/// Forgets, when dropped, that a call beside this one was not made.
#[derive(Debug)]
struct Begin;

impl Drop for Begin {
    fn drop(&mut self) {
        if DROPPED.get() == Dropped::TooLateInLine {
            DROPPED.set(Dropped::TooLate);
        }
    }
}

impl<F> Made<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { begin: Begin, future }
    }
}

impl<F: Future> Future for Made<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Notes that the turn of the call that is being polled has come: until now it waited.
///
/// A breaker is outside the rate limit and the queue, so that a call which it refuses takes no turn. The wait for a turn says
/// nothing of the called service, so the breaker begins to measure anew.
pub(crate) fn turn_came() {
    TURN_CAME.set(true);
}

/// Polls a call, and returns whether its turn came during this poll.
pub(crate) fn watching_for_turn<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    let before = TURN_CAME.replace(false);
    let polled = poll();
    let came = TURN_CAME.get();
    // A layer further outside looks too.
    TURN_CAME.set(before || came);
    (polled, came)
}

/// Runs a part of a client's whole call. `ceiling` is the deadline that it carries, if that is only the ceiling of the
/// whole call and nobody has set one.
pub(crate) fn within_ceiling<R>(ceiling: Option<Deadline>, work: impl FnOnce() -> R) -> R {
    during(&CEILING, ceiling, work)
}

/// Says whether a carried deadline is only the ceiling of a client's whole call, and nobody has set one.
pub(crate) fn is_only_ceiling(carried: Deadline) -> bool {
    CEILING.get() == Some(carried)
}

/// What surrounds the running code; in a refusal, what surrounded the code that made it.
///
/// A limit gives back the charge of a request that a layer inside refused before any work began. Two refusals look like
/// that, and are not: that of a client which the service called in its work, and that of a further try. So each refusal
/// records how many clients and further tries surrounded it. If these are more than surround the limit, the charge stays.
/// Layers in a task of their own, such as those inside tower's `Buffer`, do not see what surrounds that task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    clients: u16,
    further_tries: u16,
}

impl Surroundings {
    /// Returns what surrounds the running code.
    pub(crate) fn now() -> Self {
        AROUND.get()
    }

    /// Returns the same inside a client: as they are if a client is among them already.
    pub(crate) fn in_some_client(self) -> Self {
        Self { clients: self.clients.max(1), ..self }
    }

    /// Returns whether what was made there was made by a client, or in a further try, inside the running code: more of
    /// them surrounded it.
    pub(crate) fn is_further_inside(self) -> bool {
        let now = Self::now();
        self.clients > now.clients || self.further_tries > now.further_tries
    }
}

/// Runs `work` as a part of a client.
pub(crate) fn inside_client<R>(work: impl FnOnce() -> R) -> R {
    let outside = Surroundings::now();
    during(&AROUND, Surroundings { clients: outside.clients.saturating_add(1), ..outside }, work)
}

pin_project! {
    /// A try after the first.
    pub(crate) struct FurtherTry<F> {
        #[pin]
        future: F,
    }
}

impl<F> FurtherTry<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { future }
    }
}

impl<F: Future> Future for FurtherTry<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.project().future;
        let outside = Surroundings::now();
        let inside = Surroundings { further_tries: outside.further_tries.saturating_add(1), ..outside };
        during(&AROUND, inside, || future.poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::pin::pin;
    use std::task::Waker;

    use tidegate::Tick;

    use super::*;

    /// A note that stayed would tell about the next call on the thread.
    #[test]
    fn work_that_panics_leaves_no_note() {
        fn panics() {
            panic!("work does");
        }
        let panicked = [
            catch_unwind(|| dropping_for_timeout(true, panics)),
            catch_unwind(|| within_ceiling(Some(Tick::EPOCH.into()), panics)),
            catch_unwind(|| inside_client(panics)),
        ];
        assert!(panicked.iter().all(Result::is_err));
        assert_eq!(outcome_of_drop(), Outcome::Ignored);
        assert!(!is_only_ceiling(Tick::EPOCH.into()));
        assert_eq!(Surroundings::now().clients, 0);
    }

    #[test]
    fn every_layer_around_learns_that_the_turn_came() {
        let (((), inner), outer) = watching_for_turn(|| watching_for_turn(turn_came));
        assert!(inner && outer);
        let ((), came) = watching_for_turn(|| ());
        assert!(!came, "it came in an earlier poll");
    }

    #[test]
    fn a_timeout_is_no_failure_of_a_service_that_was_not_called() {
        let outcomes = |timeout_is_failure: bool| {
            dropping_for_timeout(timeout_is_failure, || {
                let called = outcome_of_drop();
                drop(NotCalled);
                let in_line = (outcome_of_drop(), outcome_of_dropped_body());
                // Another call, dropped next.
                drop(Made::new(()));
                (called, in_line, outcome_of_drop())
            })
        };
        let (failure, ignored) = (Outcome::Failure, Outcome::Ignored);
        assert_eq!(outcomes(true), (failure, (ignored, failure), failure));
        assert_eq!(outcomes(false), (ignored, (ignored, ignored), ignored));
        drop(NotCalled);
        assert_eq!(outcome_of_drop(), ignored, "nothing is left behind");
    }

    #[test]
    fn what_a_client_inside_has_made_is_known_outside() {
        let made = inside_client(|| inside_client(Surroundings::now));
        assert!(made.is_further_inside());
        assert!(inside_client(|| made.is_further_inside()));
        assert!(!inside_client(|| inside_client(|| made.is_further_inside())));
        let made = inside_client(|| Surroundings::now().in_some_client());
        assert!(made.is_further_inside());
        assert!(!inside_client(|| made.is_further_inside()));
        assert!(Surroundings::now().in_some_client().is_further_inside(), "no client was around it");
    }

    #[test]
    fn what_a_further_try_has_made_is_known_outside_of_it() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut tried = pin!(FurtherTry::new(async {
            let made = Surroundings::now();
            (made, made.is_further_inside())
        }));
        let Poll::Ready((made, there)) = tried.as_mut().poll(&mut cx) else { panic!("nothing to wait for") };
        assert!(made.is_further_inside() && !there);
        assert!(inside_client(|| made.is_further_inside()), "in a client of another try");
    }
}
