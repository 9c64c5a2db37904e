//! The bounds of a request body.

pub(crate) use crate::requests::{MAX_ATTRIBUTES, MAX_COST, MAX_NAME, MAX_VALUE};

/// The longest body of one check: 64 attributes of ordinary size fit many times over.
pub(crate) const MAX_BODY: usize = 64 * 1024;
/// The longest body of a batch.
pub(crate) const MAX_BATCH_BODY: usize = 1024 * 1024;
/// The most checks in one batch.
pub(crate) const MAX_BATCH: usize = 1000;
/// After how many limits in a batch's answer no more of its checks are decided: an answer of about 5 MB.
pub(crate) const MAX_BATCH_LIMITS: usize = 20_000;
/// The longest text of proposed policies: some eight hundred policies. A longer file can be tried with `tidegate
/// replay`.
pub(crate) const MAX_PROPOSED: usize = 256 * 1024;
/// The longest body of a dry run: a check, and a text in which each line end and each quote is escaped.
pub(crate) const MAX_PROPOSED_BODY: usize = MAX_BODY + 2 * MAX_PROPOSED;
/// The most policy names in `policies`.
pub(super) const MAX_POLICIES: usize = 256;
