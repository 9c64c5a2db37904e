//! How much may be in flight, one file for each algorithm: guards that admit by places, and not by units that time returns; and the laws
//! that move their limits.

mod fixed;
mod law;
mod partitions;

pub use fixed::{Concurrency, ConcurrencyState};
pub use law::{Law, Sample, Signal};
pub use partitions::{Partition, Partitions};
