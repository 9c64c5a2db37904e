//! One caller of a shared call, and how a caller that goes hands the call on to the others.
//!
//! Whichever caller is polled polls the call. A call may be woken while one caller polls it. That wakes this caller, and
//! not another that came during the poll, since that one has only begun to wait. If the first caller then goes without
//! polling again, nobody would poll a call that is ready to go on. So a caller that goes wakes all who are left.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::{BoxFuture, Shared};

use crate::sync::Mutex;

/// The waker of a call, which wakes all callers that wait for it; `None` before the call was first polled.
#[derive(Debug)]
pub(super) struct Waiting(Mutex<Option<Waker>>);

impl Waiting {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps the waker of the call that awaits this. A shared call has the same one whenever it is polled.
    pub(super) async fn learn(&self) {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        *self.0.lock() = Some(waker);
    }

    fn wake(&self) {
        let waker = self.0.lock().clone();
        // After the lock is released, since wakers are foreign code.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A caller that waits for a shared call.
pub(super) struct Caller<T: Clone> {
    /// `None` once there is an answer.
    call: Option<Shared<BoxFuture<'static, T>>>,
    waiting: Arc<Waiting>,
}

impl<T: Clone> Caller<T> {
    pub(super) const fn new(call: Shared<BoxFuture<'static, T>>, waiting: Arc<Waiting>) -> Self {
        Self { call: Some(call), waiting }
    }
}

impl<T: Clone> Future for Caller<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let call = self.call.as_mut().expect("a caller with its answer is not polled again");
        let answer = Pin::new(call).poll(cx);
        if answer.is_ready() {
            self.call = None;
        }
        answer
    }
}

impl<T: Clone> Drop for Caller<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // Dropped first, since this caller is not to be woken.
            drop(call);
            self.waiting.wake();
        }
    }
}
