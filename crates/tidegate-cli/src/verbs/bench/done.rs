//! A run that is over.

use std::time::Duration;

use super::judge::Judge;
use super::tally::Tally;
use crate::args::Bench;

/// What a run came to.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) tally: Tally,
    pub(super) judge: Option<Judge>,
    pub(super) took: Duration,
    /// Asks that were due and never sent.
    pub(super) unsent: u64,
    pub(super) interrupted: bool,
}

/// A run and what was asked of it.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) bench: &'a Bench,
    pub(super) seed: u64,
    /// The attributes that held the key.
    pub(super) by: &'a [String],
    pub(super) done: &'a Done,
}
