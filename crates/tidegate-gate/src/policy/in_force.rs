//! What of a policy set is in force: which policies with conditions, which rate of a limit whose rate moves, and which
//! policies in a check of some of them.

use std::sync::Arc;

use tidegate_core::{Criticality, Priority, Quota, Rate};

use super::access::Refusal;
use super::compiled::{ALL_LEVELS, Stated};
use super::descriptor::Descriptor;
use super::plan::Plan;
use super::sensed::fresh;
use super::set::PolicySet;

/// Whether the conditions of a policy hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// All of them hold.
    Yes {
        /// Only for requests below this level, since a switch is off for those alone; `None`: for all requests.
        below: Option<Criticality>,
    },
    /// At least one does not hold, and its number is known.
    No,
    /// At least one does not hold because its number is not known: never read, or too long ago. All others hold.
    Unknown,
}

impl Holding {
    /// Reports whether the conditions hold for any request.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Yes { .. })
    }
}

impl PolicySet {
    /// Returns whether the conditions of the policy at this position held at the last readings; `None` if the policy has
    /// no conditions, or there is no such policy. Checks take readings, and so does
    /// [`Signals::read`](crate::gate::Signals::read). Takes a short lock that readings take too; checks do not.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Holding, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("signal queue-length above 1000".parse()?);
    /// let gate = Gate::in_memory(PolicySet::new(vec![careful])?, 1000)?;
    /// assert_eq!(gate.policies().holding(0), Some(Holding::Unknown));
    /// gate.signals().report("queue-length", 1200.0)?;
    /// assert_eq!(gate.policies().holding(0), Some(Holding::Yes { below: None }));
    /// gate.signals().report("queue-length", 700.0)?;
    /// assert_eq!(gate.policies().holding(0), Some(Holding::No));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn holding(&self, place: usize) -> Option<Holding> {
        let sensed = self.sensed()?;
        let at = sensed.conditioned.iter().position(|one| one.policy == place)?;
        let state = sensed.state.lock();
        let levels = self.compiled[place].levels_held();
        if levels > 0 {
            let below = (levels < ALL_LEVELS).then(|| Criticality::ALL[usize::from(levels)]);
            return Some(Holding::Yes { below });
        }
        let conditions = sensed.conditioned[at].conditions.iter().zip(&state.held[at]);
        let mut known = conditions.filter(|((source, condition), _)| {
            fresh(state.readings[*source], condition, state.compared).is_some()
        });
        Some(if known.any(|(_, held)| !held) { Holding::No } else { Holding::Unknown })
    }

    /// Returns the rate that a limit has now; `None` if the rate of this limit of the policy at this position does not
    /// move.
    #[must_use]
    pub fn rate_in_force(&self, place: usize, limit: usize) -> Option<Rate> {
        let follows = self.policies.get(place)?.limit(limit)?.follows.as_ref()?;
        follows.rate_at(self.compiled[place].limits.get(limit)?.level()?)
    }

    /// Returns the limit that is in force where a rate moves; `None` as in [`PolicySet::rate_in_force`].
    #[must_use]
    pub fn limit_in_force(&self, place: usize, limit: usize) -> Option<&Arc<Quota>> {
        let follows = self.policies.get(place)?.limit(limit)?.follows.as_ref()?;
        follows.levels().get(self.compiled[place].limits.get(limit)?.level()?)
    }
}

// Restricts a check to some of the policies of a set.

/// Some of the policies of a set, for a check that names the policies to apply.
///
/// Holds the set and one bit per policy, up to the last that is named; needs neither a copy nor a compilation.
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
