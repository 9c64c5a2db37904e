//! Restricts a check to some of the policies of a set.

use std::sync::Arc;

use tidegate_core::Priority;

use super::access::Refusal;
use super::compiled::Stated;
use super::descriptor::Descriptor;
use super::plan::Plan;
use super::set::PolicySet;

/// Some of the policies of a set, for a check that names the policies to apply.
///
/// Holds the set and one bit per policy, up to the last that is named. Uses the set's own index, so naming policies
/// needs neither a copy nor a compilation.
#[derive(Clone, Debug)]
pub struct Among {
    set: Arc<PolicySet>,
    words: Vec<u64>,
}

impl Among {
    /// Selects policies by their indices; an index outside the set is ignored.
    #[must_use]
    pub fn new(set: Arc<PolicySet>, indices: impl IntoIterator<Item = usize>) -> Self {
        let mut words = Vec::new();
        for index in indices.into_iter().filter(|index| *index < set.len()) {
            if words.len() <= index / 64 {
                words.resize(index / 64 + 1, 0);
            }
            words[index / 64] |= 1 << (index % 64);
        }
        Self { set, words }
    }

    /// Returns the whole set.
    #[must_use]
    pub fn set(&self) -> &Arc<PolicySet> {
        &self.set
    }

    /// Reports whether the policy with this index is selected.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

impl PolicySet {
    /// Like [`PolicySet::access`], with only the lists of the selected policies and of the set.
    #[must_use]
    #[inline(always)]
    pub(crate) fn refusal(
        &self,
        request: &Descriptor<'_>,
        priority: Priority,
        among: Option<&Among>,
    ) -> Option<Refusal> {
        self.refuse(request, priority, |place| among.is_none_or(|among| among.has(place)))
    }

    /// Like [`PolicySet::plan_for`], with only the lines of the selected policies.
    pub(crate) fn plan_among<'p>(
        &'p self,
        descriptor: &Descriptor<'_>,
        stated: Stated,
        among: &Among,
        plan: &mut Plan<'p>,
    ) {
        self.fill(descriptor, stated, plan, |place| among.has(place));
    }
}
