//! The lanes of the curves of a whole run.

/// All that was asked.
pub(crate) const OFFERED: usize = 0;
/// What was admitted.
pub(crate) const ADMITTED: usize = 1;
/// What was denied.
pub(crate) const DENIED: usize = 2;
