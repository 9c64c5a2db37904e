//! The plan of a request: the list of charges that a policy set makes and a store executes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota};

use super::compiled::LimitRules;
use tidegate_limits::store::Charge;

/// One charge of a plan, with the policy it comes from.
#[derive(Clone, Debug)]
pub struct Line<'p> {
    /// Index of the policy in its set.
    pub policy: usize,
    /// Index of the limit within the policy; the policy's own limits first, its shadow limit last.
    pub limit: usize,
    /// The range of the key's bytes in [`Plan::keys`].
    pub key: Range<usize>,
    /// The quota that applies to this key.
    pub quota: &'p Arc<Quota>,
    /// The units to charge.
    pub cost: Cost,
    /// How much the request must leave of the limit, see [`Charge::kept_back`].
    pub kept_back: u64,
    /// The longest delay that the policy accepts.
    pub max_wait: Duration,
    /// Whether a refusal refuses the request: `false` in shadow mode and for shadow limits.
    pub binding: bool,
    /// The rules of the limit.
    pub rules: LimitRules,
    /// Whether the quota belongs to this one check, as in [`Charge::inline_quota`].
    pub inline_quota: bool,
    /// After charging: whether the fallback store charged it in place of an engine.
    pub by_fallback: bool,
}

/// The number of lines that a plan holds without allocating. Few requests meet 16 limits, and a plan is filled in
/// place, so unused room costs nothing.
pub(crate) const LINES: usize = 16;

impl Line<'_> {
    /// Reports whether the policy could not determine what the request costs, and refuses it for that
    /// ([`OnCostError::Deny`](super::OnCostError::Deny)).
    #[must_use]
    pub fn cost_is_unknown(&self) -> bool {
        self.cost == super::UNKNOWN_COST
    }

    /// Reports whether the line either permits at once or refuses the step: it is not a shadow and has no delay.
    pub(crate) const fn is_plain(&self) -> bool {
        self.binding && self.max_wait.is_zero()
    }
}

/// All charges of one request, in the order of the policies.
///
/// Takes more than a kilobyte, for 16 lines without allocation: fill it in place rather than moving it.
#[derive(Clone, Debug, Default)]
pub struct Plan<'p> {
    /// One line per limit of each matching policy.
    pub lines: SmallVec<[Line<'p>; LINES]>,
    /// The bytes of all keys, and of some that were not needed. A key of an address takes about 40 bytes.
    pub keys: Vec<u8>,
}

impl Plan<'_> {
    /// Removes all lines and keeps the memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.keys.clear();
    }

    /// Returns the lines as charges for a store.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.lines.iter().map(|line| self.charge(line))
    }

    /// Returns one of the lines as a charge for a store.
    #[inline]
    pub(crate) fn charge<'c>(&'c self, line: &Line<'c>) -> Charge<'c> {
        Charge {
            key: &self.keys[line.key.clone()],
            quota: line.quota,
            cost: line.cost,
            kept_back: line.kept_back,
            max_wait: line.max_wait,
            binding: line.binding,
            rules: line.rules.charge,
            by_fallback: line.by_fallback,
            inline_quota: line.inline_quota,
        }
    }
}
