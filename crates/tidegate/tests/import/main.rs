//! Files of other rate limiters: which limit each descriptor meets, what is said about differences, and what is refused.
#![cfg(feature = "cel")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod door;
mod envoy;
mod limitador;
mod model;
mod pages;
mod refused;
