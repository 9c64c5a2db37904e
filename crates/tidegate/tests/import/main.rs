//! Files of other rate limiters: which limit each descriptor meets, what is said about differences, and what is refused.
#![cfg(feature = "cel")]

mod door;
mod envoy;
mod limitador;
mod model;
mod pages;
mod refused;
