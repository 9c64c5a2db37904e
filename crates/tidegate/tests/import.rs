//! Files of other rate limiters: which limit each descriptor meets, which differences are reported, and what is
//! refused.
#![cfg(feature = "cel")]

mod door;
mod envoy;
mod limitador;
mod manifests;
mod model;
mod pages;
mod refused;
