//! Compares a limiter's fast paths with plain ones: words, leases, the table, and clocks that lag.
//!
//! `TIDEGATE_MODEL_STEPS` sets the number of calls per trace, and the capacity of the tables that are flooded. The
//! default keeps each test under two seconds in a debug build.

mod bounds;
mod floods;
mod leases;
mod schedules;
mod twins;

use tidegate::Cost;
use tidegate::store::conformance::Random;

/// Returns the number of steps per trace.
fn steps(usual: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}
