//! Code that all doors share for requests, whatever the protocol: bounds, policy names, keys and outcomes of work.

mod inline_limit;
mod key;
mod named_policies;
mod outcome;

use tidegate::Rate;
use tidegate::policy::Descriptor;

pub(crate) use self::inline_limit::{InlineLimit, InlineQuotas};
pub(crate) use self::key::{key_of, network_of};
pub(crate) use self::named_policies::find;
pub(crate) use self::outcome::{STATUSES, WorkEnd};

/// The most attributes of one check. Policies name a handful, and a linear look-up stays cheap.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// The longest attribute name, in bytes.
pub(crate) const MAX_NAME: usize = Descriptor::MAX_NAME;
/// The longest attribute value, in bytes: a long URL or token fits.
pub(crate) const MAX_VALUE: usize = Descriptor::MAX_VALUE;
/// The largest cost, equal to the largest possible burst. A larger cost could never be allowed.
pub(crate) const MAX_COST: u64 = Rate::MAX_COUNT;
