//! A complete limit of any algorithm, and its state: what policies name and stores keep.

mod algorithms;
mod builder;
mod divided;
mod granted;
mod parts;

pub use algorithms::{Quota, State};
pub use builder::QuotaBuilder;
