//! The lanes of the curves of a whole run.

/// All requests.
pub(crate) const OFFERED: usize = 0;
/// Admitted requests.
pub(crate) const ADMITTED: usize = 1;
/// Denied requests.
pub(crate) const DENIED: usize = 2;
