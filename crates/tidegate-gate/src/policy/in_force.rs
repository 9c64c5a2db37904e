//! What of a policy set is in force now: which policies with conditions, and which rate of a limit whose rate moves.

use std::sync::Arc;

use tidegate_core::{Criticality, Quota, Rate};

use super::compiled::ALL_LEVELS;
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
    /// [`Gate::take_readings`](tidegate_limits::Gate::take_readings). Takes a short lock that readings take too; checks do not.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Holding, Limit};
    /// use tidegate::{Gate, Policy, PolicySet, Quota};
    ///
    /// let careful = Policy::new("careful", Limit::new(Quota::per_second(1).gcra()?, "1/s"))
    ///     .when("signal queue-length above 1000".parse()?);
    /// let gate = Gate::in_memory(PolicySet::new(vec![careful])?, 1000)?;
    /// assert_eq!(gate.policies().holding(0), Some(Holding::Unknown));
    /// gate.report_signal("queue-length", 1200.0)?;
    /// assert_eq!(gate.policies().holding(0), Some(Holding::Yes { below: None }));
    /// gate.report_signal("queue-length", 700.0)?;
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

    /// Returns the rate that a limit has now whose rate follows a number; `None` if the rate of this limit of the policy at this
    /// position does not move.
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
