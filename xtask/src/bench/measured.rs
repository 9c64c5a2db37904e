//! What one part of the bench found.

use super::bars::Bar;

/// One part of the page, the row of it that the README shows, and the bars it is held to.
pub(crate) struct Measured {
    pub(crate) page: String,
    pub(crate) row: Option<String>,
    pub(crate) bars: Vec<Bar>,
}
