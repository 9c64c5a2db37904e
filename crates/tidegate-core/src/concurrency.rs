//! How much may be in flight, one file for each algorithm: guards that admit by places, and not by units that time returns.

mod fixed;

pub use fixed::{Concurrency, ConcurrencyState};
