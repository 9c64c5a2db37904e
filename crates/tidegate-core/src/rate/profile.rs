//! The arithmetic of other libraries, reproduced for users who move from them and want the same answers at first.
//!
//! A profile follows its library bit for bit, floats included, even where the library breaks a law of
//! [`crate::Algorithm`]; each profile says where. No other rate-limit algorithm computes in floats.

mod guava;
mod receipt_marks;
mod uber;
mod x_time;

pub use guava::{GuavaBursty, GuavaState, GuavaWarming};
pub use uber::{UberPacer, UberPacerState};
pub use x_time::{XTime, XTimeState};
