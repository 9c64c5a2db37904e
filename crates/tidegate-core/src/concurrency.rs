//! One file per law of how much may be in flight: guards that admit by places, and not by units that time returns.

mod fixed;

pub use fixed::{Concurrency, ConcurrencyState};
