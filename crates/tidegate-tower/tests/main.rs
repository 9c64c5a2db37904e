//! All tests of this crate from outside, as one program: each module tests one subject.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod grpc;
mod hyper_client;
mod layers;
mod under_load;
