//! All tests of this crate from outside, as one program: each module tests one subject.

mod grpc;
mod hyper_client;
mod layers;
mod under_load;
