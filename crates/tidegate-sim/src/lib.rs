//! A virtual clock and traffic, synthetic or recorded; drives a real gate; curves out.
//!
//! * [`source`]: opens files and standard input, plain or packed
//! * [`log`]: access logs, JSON lines and tables as one stream of requests in time order; [`order`] sorts it

pub mod log;
pub mod order;
pub mod source;
mod words;
