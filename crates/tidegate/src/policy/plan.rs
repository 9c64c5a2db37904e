//! What a request is going to be charged: the list that a policy set makes and a store settles.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Quota, Replace};

use crate::store::Charge;

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
    /// The longest delay the policy accepts.
    pub max_wait: Duration,
    /// Whether a refusal refuses the request: `false` in shadow mode and for shadow limits.
    pub binding: bool,
    /// Whether an allowed check spends it: `false` where only failures are charged, by a report.
    pub spends: bool,
    /// How a changed quota takes over what was spent.
    pub replace: Replace,
}

/// All charges of one request, in the order of the policies.
#[derive(Clone, Debug, Default)]
pub struct Plan<'p> {
    /// One line per limit of each matching policy.
    pub lines: SmallVec<[Line<'p>; 4]>,
    /// The bytes of all keys.
    pub keys: SmallVec<[u8; 128]>,
}

impl Plan<'_> {
    /// Returns the lines as a store wants them.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.lines.iter().map(|line| Charge {
            key: &self.keys[line.key.clone()],
            quota: line.quota,
            cost: line.cost,
            max_wait: line.max_wait,
            binding: line.binding,
            spends: line.spends,
            replace: line.replace,
        })
    }
}
