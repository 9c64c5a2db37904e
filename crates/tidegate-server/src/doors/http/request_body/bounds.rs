//! The bounds of what a body may hold.

use tidegate::Rate;
use tidegate::policy::Descriptor;

/// The longest body of one check: 64 attributes of ordinary size fit many times over.
pub(crate) const MAX_BODY: usize = 64 * 1024;
/// The longest body of a batch.
pub(crate) const MAX_BATCH_BODY: usize = 1024 * 1024;
/// The most checks in one batch.
pub(crate) const MAX_BATCH: usize = 1000;
/// How many limits the answer to a batch tells of before no more of its checks are decided: some 5 MB.
pub(crate) const MAX_BATCH_LIMITS: usize = 20_000;
/// The most attributes of one check: policies name a handful; a linear look-up stays cheap.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// The longest attribute name, in bytes.
pub(crate) const MAX_NAME: usize = Descriptor::MAX_NAME;
/// The longest attribute value, in bytes: a long URL or token fits.
pub(crate) const MAX_VALUE: usize = Descriptor::MAX_VALUE;
/// The most policy names in `policies`.
pub(super) const MAX_POLICIES: usize = 256;
/// The largest cost: the largest burst there can be. A larger one could never be allowed.
pub(crate) const MAX_COST: u64 = Rate::MAX_COUNT;
