//! The workloads for the contenders.

pub(crate) mod disk;
pub(crate) mod gate;
pub(crate) mod growth;
mod keyed;
mod one;
pub(crate) mod permits;

pub(crate) use keyed::{BATCH, Keyed, Question};
pub(crate) use one::One;
