//! What happens to a request over a limit, besides a refusal.

use std::time::Duration;

use tidegate_core::{Criticality, Priority};

/// What happens to a request over a limit of a policy. That limit is not charged in any case.
///
/// A gate lowers the priority before it decides the other limits, and its decision lists the policies that let the
/// request pass ([`GateDecision::over`](crate::GateDecision::over)). The limit itself appears there as refusing and not
/// binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Over {
    /// The request is refused, or must wait if the limit delays.
    #[default]
    Deny,
    /// The request is refused as by [`Over::Deny`], and its key is blocked: all its requests that the policy matches are
    /// refused for this time. The time counts from the refusal; refusals during the block do not make it longer. A
    /// request that the limit never grants, whatever was spent before, is refused and blocks nobody.
    ///
    /// Blocks are kept where the policy's counters are: they outlive the process on disk, and other gates over the same
    /// engine know them, at most a second late. In memory they end with the process. In shadow mode nobody is blocked;
    /// requests of a key that would be blocked count as ones that the policy would deny.
    Block {
        /// How long the key is blocked.
        lasts: Duration,
    },
    /// The request passes, and the service is told.
    Mark,
    /// The request passes with a lower priority, and the service is told.
    Demote {
        /// The highest level that the request may keep; `None`: one level below its own.
        to: Option<Criticality>,
    },
}

impl Over {
    /// Reports whether the request is refused.
    #[must_use]
    pub const fn refuses(self) -> bool {
        matches!(self, Self::Deny | Self::Block { .. })
    }

    /// Returns the lowered priority of a request over the limit that had `priority`. The cohort within the level stays.
    pub(crate) fn lowered(self, priority: Priority) -> Priority {
        let Self::Demote { to } = self else { return priority };
        let own = priority.level();
        let below = Criticality::ALL.into_iter().rfind(|level| *level < own).unwrap_or(own);
        let level = to.unwrap_or(below).min(own);
        // The cohort of a valid priority is in range.
        Priority::of(level).in_cohort(priority.cohort()).unwrap_or(Priority::of(level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_lowered_by_one_level_or_to_one_and_never_raised() {
        let of = |level: Criticality| Priority::of(level).in_cohort(7).unwrap();
        for (own, one_less, to_plus) in [
            (Criticality::CriticalPlus, Criticality::Critical, Criticality::SheddablePlus),
            (Criticality::Critical, Criticality::SheddablePlus, Criticality::SheddablePlus),
            (Criticality::Sheddable, Criticality::Sheddable, Criticality::Sheddable),
        ] {
            assert_eq!(Over::Demote { to: None }.lowered(of(own)), of(one_less));
            let to = Some(Criticality::SheddablePlus);
            assert_eq!(Over::Demote { to }.lowered(of(own)), of(to_plus));
            assert_eq!(Over::Mark.lowered(of(own)), of(own));
        }
    }
}
