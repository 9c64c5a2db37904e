//! Futures that are given up at a tick.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, ready};

use tidegate_core::Tick;

use super::{Clock, Sleep};

/// Awaits a future until a clock has come to a tick; `None` is that it was not ready by then, and it is dropped.
///
/// A future that is ready when it is first polled is never too late, and no sleep is begun for it.
///
/// # Cancel safety
/// Dropped before it ends, it drops the future.
pub(crate) async fn before<T>(clock: &dyn Clock, until: Tick, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep: Option<Sleep> = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        loop {
            let sleeping = sleep.get_or_insert_with(|| clock.sleep_until(until));
            ready!(sleeping.as_mut().poll(cx));
            if clock.now() >= until {
                return Poll::Ready(None);
            }
            // Sleeps may end early.
            sleep = None;
        }
    })
    .await
}
