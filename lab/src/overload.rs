//! Simulates overload: services that suffer from it, callers who retry, and the protections between them.
//!
//! [`figures`] has the tables and pictures of the manual. A run is a function of its seed, bit for bit.

mod backend;
mod controllers;
pub mod figures;
mod front;
mod ideal;
mod load;
mod meter;
mod scenario;
mod station;
mod world;

#[cfg(test)]
mod tests;

/// The examples of the manual's page.
#[cfg(doctest)]
#[doc = include_str!("../../docs/protection/overload.md")]
mod page {}
