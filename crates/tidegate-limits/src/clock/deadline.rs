//! Runs a future until a tick at most.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, ready};

use tidegate_core::Tick;

use super::{Clock, Sleep};

/// Awaits a future until the clock reaches a tick. Returns `None` if the future was not ready by then, and drops it.
///
/// A future that is ready when first polled is in time, and no sleep is started for it.
///
/// # Cancel safety
/// Dropping this future drops the inner future.
pub async fn before<T>(clock: &dyn Clock, until: Tick, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep: Option<Sleep> = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // The clock decides, and the timer only wakes: if another timer for the same tick wakes the task first, the time is
        // up all the same. Sleeps may end early.
        while clock.now() < until {
            let sleeping = sleep.get_or_insert_with(|| clock.sleep_until(until));
            ready!(sleeping.as_mut().poll(cx));
            sleep = None;
        }
        Poll::Ready(None)
    })
    .await
}
