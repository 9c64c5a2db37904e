//! What every door does with a request, whatever its protocol: bounds, the names of policies, keys, and what follows a decision.

mod brought;
mod conclude;
mod key;
mod named;

use tidegate::Rate;
use tidegate::policy::Descriptor;

pub(crate) use self::brought::{Brought, BroughtQuotas};
pub(crate) use self::conclude::conclude;
pub(crate) use self::key::key_of;
pub(crate) use self::named::find;

/// The most attributes of one check: policies name a handful; a linear look-up stays cheap.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// The longest attribute name, in bytes.
pub(crate) const MAX_NAME: usize = Descriptor::MAX_NAME;
/// The longest attribute value, in bytes: a long URL or token fits.
pub(crate) const MAX_VALUE: usize = Descriptor::MAX_VALUE;
/// The largest cost: the largest burst there can be. A larger one could never be allowed.
pub(crate) const MAX_COST: u64 = Rate::MAX_COUNT;
