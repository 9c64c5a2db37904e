//! Peers' arithmetic, reproduced: for those who move their limits over before they change them.
//!
//! A profile follows the peer bit for bit, floats included, also where the peer breaks a law of [`crate::Algorithm`]; each says
//! where. Nothing else in this crate computes in floats.

mod guava;
mod uber;
mod x_time;

pub use guava::{GuavaBursty, GuavaState, GuavaWarming};
pub use uber::{UberPacer, UberPacerState};
pub use x_time::{XTime, XTimeState};

/// The second half of a receipt's mark: whose it is, and a count of charges or changes. No other algorithm sets the highest bit, so
/// that after a change of the algorithm no receipt is taken for one of the new.
const fn counted(profile: u8, count: u64) -> u128 {
    (1 << 127) | ((profile as u128) << 64) | count as u128
}
