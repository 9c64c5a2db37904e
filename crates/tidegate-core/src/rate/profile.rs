//! The arithmetic of other libraries, for users who move from them and want the same answers at first: bit for bit,
//! floats included, even where a library breaks a law of [`crate::Algorithm`]; each profile says where. No other
//! rate-limit algorithm computes in floats.

mod guava;
mod uber;
mod x_time;

pub use guava::{GuavaBursty, GuavaState, GuavaWarming};
pub use uber::{UberPacer, UberPacerState};
pub use x_time::{XTime, XTimeState};

/// Returns the second half of a receipt's mark: the profile, and a count of charges or changes. No other algorithm
/// sets the highest bit.
const fn counted(profile: u8, count: u64) -> u128 {
    (1 << 127) | ((profile as u128) << 64) | count as u128
}
