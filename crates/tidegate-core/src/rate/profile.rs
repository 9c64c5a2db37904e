//! The arithmetic of peers, reproduced for users who move from them and want the same answers at first.
//!
//! A profile follows the peer bit for bit, floats included, also where the peer breaks a law of [`crate::Algorithm`]; each says
//! where. Nothing else in this crate computes in floats.

mod guava;
mod mark;
mod uber;
mod x_time;

pub use guava::{GuavaBursty, GuavaState, GuavaWarming};
pub use uber::{UberPacer, UberPacerState};
pub use x_time::{XTime, XTimeState};
