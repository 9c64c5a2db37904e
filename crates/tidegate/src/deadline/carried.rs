//! The deadline that a task carries, so that code deep within it knows how long its work may take.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::Deadline;

thread_local! {
    static CARRIED: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// Returns the deadline of the work that is being done: the one that the innermost [`carry`] or [`carry_through`] around it was given. `None` outside
/// of them, and in tasks and threads that were started from within: what they are to carry is handed to them.
///
/// A load from a thread's own memory.
#[must_use]
pub fn carried() -> Option<Deadline> {
    CARRIED.get()
}

/// Runs a function that finds `deadline` in [`carried`].
///
/// # Examples
/// ```
/// use tidegate::{Deadline, Tick, deadline};
///
/// let until = Deadline::from(Tick::from_secs(5));
/// assert_eq!(deadline::carry(until, deadline::carried), Some(until));
/// assert_eq!(deadline::carried(), None);
/// ```
pub fn carry<T>(deadline: impl Into<Deadline>, work: impl FnOnce() -> T) -> T {
    let _before = Restored(CARRIED.replace(Some(deadline.into())));
    work()
}

/// Returns a future that finds `deadline` in [`carried`] while it is polled, on whatever thread that is.
///
/// It does not end at the deadline by itself; whoever runs it sees to that.
///
/// # Cancel safety
/// Dropping it drops the future.
///
/// # Examples
/// ```
/// use tidegate::{Deadline, Tick, deadline};
///
/// async fn deep_within() -> Option<Deadline> {
///     deadline::carried()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let until = Deadline::from(Tick::from_secs(5));
/// assert_eq!(deadline::carry_through(until, deep_within()).await, Some(until));
/// # }
/// ```
pub fn carry_through<F: Future>(deadline: impl Into<Deadline>, future: F) -> Carrying<F> {
    Carrying { deadline: Some(deadline.into()), future }
}

/// As [`carry_through`], for work that is no one request's: it finds no deadline.
pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    Carrying { deadline: None, future }
}

pin_project! {
    /// A future with a deadline: see [`carry_through`].
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Carrying<F> {
        deadline: Option<Deadline>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Carrying<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _before = Restored(CARRIED.replace(*this.deadline));
        this.future.poll(cx)
    }
}

/// Puts back what was carried before, also where the work panics.
struct Restored(Option<Deadline>);

impl Drop for Restored {
    fn drop(&mut self) {
        CARRIED.set(self.0);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    use tidegate_core::Tick;

    use super::*;

    fn at(secs: u64) -> Deadline {
        Tick::from_secs(secs).into()
    }

    #[test]
    fn the_innermost_is_found_and_the_outer_one_is_put_back() {
        carry(at(9), || {
            assert_eq!(carry(at(3), carried), Some(at(3)));
            assert_eq!(carried(), Some(at(9)));
            let panicked = catch_unwind(AssertUnwindSafe(|| carry(at(1), || panic!("work does"))));
            assert!(panicked.is_err());
            assert_eq!(carried(), Some(at(9)));
        });
        assert_eq!(carried(), None);
    }

    /// Two futures polled in turn by one thread, as a runtime does.
    #[test]
    fn futures_on_one_thread_do_not_see_each_others() {
        let work = || {
            let mut polled = 0;
            poll_fn(move |_| {
                polled += 1;
                if polled == 3 { Poll::Ready(carried()) } else { Poll::Pending }
            })
        };
        let (mut one, mut two) = (pin!(carry_through(at(1), work())), pin!(carry_through(at(2), work())));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(one.as_mut().poll(&mut cx).is_pending() && two.as_mut().poll(&mut cx).is_pending());
            assert_eq!(carried(), None);
        }
        assert_eq!(one.as_mut().poll(&mut cx), Poll::Ready(Some(at(1))));
        assert_eq!(two.as_mut().poll(&mut cx), Poll::Ready(Some(at(2))));
    }
}
