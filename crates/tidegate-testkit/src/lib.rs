//! What tests of several crates have in common. No part of the product.
//!
//! * [`FaultyProxy`]: stands before a real server, and does to its connections what networks do

mod faulty_proxy;

pub use faulty_proxy::{Fault, FaultyProxy};
