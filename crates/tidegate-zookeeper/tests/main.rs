//! All tests of this crate from outside, as one program: each module tests one subject.

mod connecting;
mod cost;
mod faults;
mod laws;
mod server;
