//! The result of a run.

use std::time::Duration;

use super::judge::Judge;
use super::tally::Tally;
use crate::args::Bench;

/// The result of a run.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) tally: Tally,
    pub(super) judge: Option<Judge>,
    pub(super) took: Duration,
    /// Asks that were due but never sent.
    pub(super) unsent: u64,
    pub(super) interrupted: bool,
}

/// A run with its parameters.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) bench: &'a Bench,
    pub(super) seed: u64,
    /// The attributes that hold the key.
    pub(super) by: &'a [String],
    pub(super) done: &'a Done,
}
