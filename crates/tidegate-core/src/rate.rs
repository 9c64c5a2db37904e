//! The rate-limit algorithms, one file each.
//!
//! Each is an immutable set of parameters that implements [`Algorithm`]. All transitions are pure, allocate only
//! where the state itself grows, and never panic, whatever the state, even one decoded from hostile bytes.

mod book;
mod calendar;
pub(crate) mod exact;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod leaky_queue;
mod ledger;
mod profile;
mod schedule;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod warm_up;

pub use crate::algorithm::Algorithm;
pub use calendar::{CalendarUnit, zone_meant, zone_names};
pub use fixed_window::{FixedWindow, FixedWindowState, OneWindow};
pub use gcra::word::GcraWord;
pub use gcra::{Gcra, GcraReport, GcraState};
pub use leaky_bucket::{LeakyBucket, LeakyBucketState};
pub use leaky_queue::{LeakyQueue, LeakyQueueState};
pub use profile::{GuavaBursty, GuavaState, GuavaWarming, UberPacer, UberPacerState, XTime, XTimeState};
pub use sliding_counter::{SlidingCounter, SlidingCounterState};
pub use sliding_log::{SlidingLog, SlidingLogState};
pub use sliding_window::{SlidingWindow, SlidingWindowState};
pub use token_bucket::{Bandwidth, Refill, TokenBucket, TokenBucketState};
pub use warm_up::{ColdFactor, WarmUp, WarmUpState};

/// Requests to one limit, one after the other, with the expected answers: for the tests of several algorithms.
#[cfg(test)]
mod timeline {
    use core::time::Duration;

    use crate::algorithm::Algorithm;
    use crate::decision::{Ask, Cost, Transition};
    use crate::time::Tick;

    /// The tick in ms; the cost; the longest accepted wait in ms; the wait in ms, or the least further wait if denied;
    /// the units that remain afterwards.
    pub(crate) type Row = (u64, u64, u64, Result<u128, u128>, u64);

    /// Sends a fresh limit one request per row.
    ///
    /// # Panics
    /// When an answer differs from the expected one.
    pub(crate) fn holds<A: Algorithm>(limit: &A, rows: &[Row]) {
        let ms = |ms: u64| Tick::from_nanos(ms * 1_000_000);
        let mut state = limit.fresh(ms(0));
        for &(at, cost, max_wait, expected, remaining) in rows {
            let ask = Ask::within(ms(at), Cost::new(cost).unwrap(), Duration::from_millis(max_wait));
            let answer = match limit.decide(&state, ask) {
                Transition::Allowed { wait, next, .. } => {
                    state = next;
                    Ok(wait.as_millis())
                }
                Transition::Denied { retry } => Err(retry.after().unwrap().as_nanos().div_ceil(1_000_000)),
            };
            assert_eq!(answer, expected, "at {at}");
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }
}
