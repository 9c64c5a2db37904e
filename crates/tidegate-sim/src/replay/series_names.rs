//! The lanes of the curves of a whole run.

/// All requests.
pub(crate) const OFFERED: usize = 0;
/// Admitted requests.
pub(crate) const ADMITTED: usize = 1;
/// Denied requests.
pub(crate) const DENIED: usize = 2;
/// Admitted requests that a policy in shadow mode, or a shadow limit, would have denied.
pub(crate) const WOULD_DENY: usize = 3;
/// The number of lanes.
pub(crate) const LANES: usize = 4;
