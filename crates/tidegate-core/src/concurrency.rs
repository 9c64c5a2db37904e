//! Concurrency limits: guards that bound how many pieces of work are in flight, and the control laws that move such a
//! limit. A unit of a concurrency limit is a *place*: work takes it on entry and returns it when it ends; time alone
//! does not refill it.

mod adaptive;
mod aimd;
mod bbr;
mod bounds;
mod fixed;
mod gradient;
mod hill_climb;
mod law;
mod min_latency;
mod moving;
mod partitions;
mod vegas;

pub use adaptive::{Adaptive, AdaptiveState, ParseLawError};
pub use aimd::{Aimd, AimdState};
pub use bbr::{Bbr, BbrState};
pub use bounds::Bounds;
pub use fixed::{Concurrency, ConcurrencyState};
pub use gradient::{Gradient, GradientState};
pub use hill_climb::{HillClimb, HillClimbState};
pub use law::{Law, Sample, Signal};
pub use min_latency::{MinLatency, MinLatencyState};
pub use moving::{AdaptiveConcurrency, AdaptiveConcurrencyState};
pub use partitions::{Partition, Partitions};
pub use vegas::{Vegas, VegasState};

#[cfg(test)]
mod tests;
