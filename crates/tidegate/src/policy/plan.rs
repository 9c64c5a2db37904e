//! What a request is going to be charged: the list that a policy set makes and a store settles.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Replace};

use super::share::Share;
use crate::store::{Charge, Durable, OnStoreError};

/// One charge of a plan, with the policy it comes from.
#[derive(Clone, Debug)]
pub struct Line<'p> {
    /// Index of the policy in its set.
    pub policy: usize,
    /// Index of the limit within the policy; the policy's own limits first, its shadow limit last.
    pub limit: usize,
    /// Where the key stands in [`Plan::keys`].
    pub key: Range<usize>,
    /// The limit that holds for this key.
    pub quota: &'p Arc<Quota>,
    /// How much.
    pub cost: Cost,
    /// How much the limit keeps back from this request, see [`Charge::kept_back`].
    pub kept_back: u64,
    /// The longest delay the policy accepts.
    pub max_wait: Duration,
    /// Whether a refusal refuses the request: `false` in shadow mode and for shadow limits.
    pub binding: bool,
    /// Whether a report decides if the charge stays: of a policy that charges failures only.
    pub on_failure: bool,
    /// What becomes of the charge when an engine cannot decide.
    pub on_error: OnStoreError,
    /// When the charge has to be on disk.
    pub durable: Durable,
    /// Where the policy is decided; `None` is by the gate's own store.
    pub share: Option<Share>,
    /// Whether the quota is of this one check, as [`Charge::passing`] says.
    pub passing: bool,
    /// Once it is charged: whether the store did that which stands in for an engine.
    pub by_fallback: bool,
    /// How a changed quota takes over what was spent.
    pub replace: Replace,
    /// The number of its policy, see [`Charge::owner`].
    pub owner: u32,
}

/// How many lines a plan holds without allocating: 16 limits on one request are many, and a plan is filled where it lies,
/// so that unused room costs nothing.
pub(crate) const LINES: usize = 16;

impl Line<'_> {
    /// Says whether it permits at once or refuses the step: no shadow, no queue.
    pub(crate) const fn is_plain(&self) -> bool {
        self.binding && self.max_wait.is_zero()
    }
}

/// All charges of one request, in the order of the policies.
///
/// More than a kilobyte, for sixteen lines without allocation: make one and have it filled rather than moved.
#[derive(Clone, Debug, Default)]
pub struct Plan<'p> {
    /// One line per limit of each matching policy.
    pub lines: SmallVec<[Line<'p>; LINES]>,
    /// The bytes of all keys, and of some that were not needed; one has about 40, for an address under a policy of a word or two.
    pub keys: Vec<u8>,
}

impl Plan<'_> {
    /// Takes out all lines, and keeps the memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.keys.clear();
    }

    /// Returns the lines as a store wants them.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.lines.iter().map(|line| self.charge(line))
    }

    /// Returns one of the lines as a store wants it.
    #[inline]
    pub(crate) fn charge<'c>(&'c self, line: &Line<'c>) -> Charge<'c> {
        Charge {
            key: &self.keys[line.key.clone()],
            quota: line.quota,
            cost: line.cost,
            kept_back: line.kept_back,
            max_wait: line.max_wait,
            binding: line.binding,
            replace: line.replace,
            owner: line.owner,
            on_error: line.on_error,
            durable: line.durable,
            by_fallback: line.by_fallback,
            passing: line.passing,
        }
    }
}
