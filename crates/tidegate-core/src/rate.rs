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
#[cfg(test)]
mod timeline;
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
