//! The result of one part of the bench.

use super::bars::Bar;

/// One part of the page, what the manual shows of it, its row for the README, and its bars.
pub(crate) struct Measured {
    pub(crate) page: String,
    pub(crate) short: String,
    pub(crate) row: Option<String>,
    pub(crate) bars: Vec<Bar>,
}
