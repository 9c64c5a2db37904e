//! Runs futures on threads without an executor.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::thread;
use crate::sync::thread::Thread;

pub(crate) fn thread_waker() -> Waker {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Runs a future to its end on the calling thread, which it blocks: not for async code.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            // If it was woken since the poll, `park` returns at once: `unpark` leaves a token.
            Poll::Pending => thread::park(),
        }
    }
}
