//! Values that a task carries for code deep within it: one of each type, such as its [deadline](crate::deadline) or its
//! [priority](crate::priority).
//!
//! They are on the thread while the task runs, as those of tokio's `task_local!`: programs set them around work and read
//! them in functions that get no request, below code that knows nothing of them.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;

use pin_project_lite::pin_project;

/// A type of value that tasks carry.
pub trait Carried: Copy + 'static {
    /// Returns the thread-local slot that holds the value of the work in progress.
    #[doc(hidden)]
    fn slot() -> &'static LocalKey<Cell<Option<Self>>>;
}

pub(crate) fn carry<T: Carried, R>(carried: Option<T>, work: impl FnOnce() -> R) -> R {
    let _before = Restored(T::slot().replace(carried));
    work()
}

pub(crate) fn carry_through<T: Carried, F: Future>(carried: Option<T>, future: F) -> Carrying<T, F> {
    Carrying { carried, future }
}

pin_project! {
    /// A future that carries a value: see [`deadline::carry_through`](crate::deadline::carry_through) and
    /// [`priority::carry_through`](crate::priority::carry_through).
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Carrying<T, F> {
        carried: Option<T>,
        #[pin]
        future: F,
    }
}

impl<T: Carried, F: Future> Future for Carrying<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _before = Restored(T::slot().replace(*this.carried));
        this.future.poll(cx)
    }
}

/// Restores the previously carried value when dropped, also if the work panics.
struct Restored<T: Carried>(Option<T>);

impl<T: Carried> Drop for Restored<T> {
    fn drop(&mut self) {
        T::slot().set(self.0);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    thread_local! {
        static NUMBER: Cell<Option<u8>> = const { Cell::new(None) };
    }

    impl Carried for u8 {
        fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
            &NUMBER
        }
    }

    #[test]
    fn the_innermost_is_found_and_the_outer_one_is_put_back() {
        carry(Some(9), || {
            assert_eq!(carry(Some(3), || NUMBER.get()), Some(3));
            assert_eq!(NUMBER.get(), Some(9));
            assert_eq!(carry(None::<u8>, || NUMBER.get()), None);
            let panicked = catch_unwind(AssertUnwindSafe(|| carry(Some(1), || panic!("work does"))));
            assert!(panicked.is_err());
            assert_eq!(NUMBER.get(), Some(9));
        });
        assert_eq!(NUMBER.get(), None);
    }

    /// One thread polls two futures in turn, as a runtime does.
    #[test]
    fn futures_on_one_thread_do_not_see_each_others() {
        let work = || {
            let mut polled = 0;
            poll_fn(move |_| {
                polled += 1;
                if polled == 3 { Poll::Ready(NUMBER.get()) } else { Poll::Pending }
            })
        };
        let (mut one, mut two) = (pin!(carry_through(Some(1), work())), pin!(carry_through(Some(2), work())));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(one.as_mut().poll(&mut cx).is_pending() && two.as_mut().poll(&mut cx).is_pending());
            assert_eq!(NUMBER.get(), None);
        }
        assert_eq!(one.as_mut().poll(&mut cx), Poll::Ready(Some(1)));
        assert_eq!(two.as_mut().poll(&mut cx), Poll::Ready(Some(2)));
    }
}
