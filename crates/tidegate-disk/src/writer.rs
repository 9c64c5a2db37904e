//! The writer thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::flush::Flush;
use crate::health::Watch;
use crate::orders::Orders;

/// State shared by the writer thread and the store.
#[derive(Debug)]
pub(crate) struct WriterState {
    pub(crate) orders: Orders,
    pub(crate) watch: Watch,
    /// The number of strict steps in progress. While there are any, no change is left out of a write.
    pub(crate) strict: AtomicUsize,
}

/// How often and how much is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    pub(crate) retry: Duration,
    pub(crate) bytes_per_second: u64,
}

/// Returns the present by the machine's clock, which paces writes. No decision uses it.
#[allow(
    clippy::disallowed_methods,
    reason = "writes are paced by the machine's time, whatever clock decides"
)]
pub(crate) fn present() -> Instant {
    Instant::now()
}

/// The longest pause after a write, however low the byte rate: a year, so that no point in time is out of range.
const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 86_400);

/// Fails all waiting callers if the thread ends by a panic, without having closed the store.
struct UntilClosed<'s>(&'s WriterState);

impl Drop for UntilClosed<'_> {
    fn drop(&mut self) {
        let reason = "the thread that writes the file has ended";
        if self.0.orders.end(reason) {
            self.0.watch.failed(reason.to_owned(), present());
        }
    }
}

/// Writes until the store is closed.
pub(crate) fn run(mut flush: Flush, shared: &Arc<WriterState>, pace: Pace) {
    let Pace { interval, retry, bytes_per_second } = pace;
    shared.orders.begin();
    let _until_closed = UntilClosed(shared);
    let (mut earliest, mut due) = (present(), present() + interval);
    loop {
        let order = shared.orders.next(earliest, due, present);
        let began = present();
        // Relaxed is enough: this is read for each slot after its mark was taken, and a strict step counts itself
        // before it sets the mark.
        let strict = || order.waited_for || order.last || shared.strict.load(Ordering::Relaxed) > 0;
        let written = flush.write(|| if strict() { Duration::ZERO } else { interval });
        let ended = present();
        let result = match written {
            Ok(bytes) => {
                shared.watch.saved(began, ended, bytes);
                // The pause that keeps the byte rate, from the size of the write just made: the next write is likely to
                // be as large.
                let pause =
                    Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64).min(LONGEST_PAUSE);
                (earliest, due) = (began + pause, began + interval.max(pause));
                Ok(())
            }
            Err(reason) => {
                shared.watch.failed(reason.clone(), ended);
                (earliest, due) = (ended + retry, ended + retry);
                Err(reason)
            }
        };
        if !order.last {
            shared.orders.answer(order, &result);
            continue;
        }
        let closed = result.and(flush.close());
        shared.orders.answer(order, &closed);
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that ended by a panic used to leave all its waiting callers blocked.
    #[test]
    fn a_thread_that_panics_answers_whoever_waits() {
        let shared =
            WriterState { orders: Orders::new(), watch: Watch::new(None, present()), strict: 0.into() };
        let number = shared.orders.take();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                shared.orders.begin();
                let _until_closed = UntilClosed(&shared);
                panic!("as a mistake would");
            });
            assert!(writer.join().is_err());
        });
        assert!(shared.orders.wait(number).is_err() && shared.orders.close().is_err());
        assert!(shared.watch.error().unwrap().contains("has ended"));
    }
}
