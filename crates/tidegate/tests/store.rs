//! The stores of this crate: laws that all keep, and what each one adds.
//!
//! `TIDEGATE_MODEL_STEPS` sets the number of steps of each trace; the default is a short form.

mod cas;
mod cas_clocks;
mod cas_together;
mod cell_bytes;
mod conformance;
mod fallback_bound;
mod first_meeting;
mod memory_shares;
mod regional;
mod shares;
mod split;
mod successor;
mod wrappers;

/// Returns the number of steps per trace.
fn steps(usual: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}
