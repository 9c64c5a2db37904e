//! What a check is decided under beside its policies: the time that its caller still waits, and the priority that is left of its own.

use tidegate::gate::Check;
use tidegate::policy::{Mode, Over, time_left};
use tidegate::{Deadline, GateDecision, Priority};

use super::{Engine, among};
use crate::live::Live;

impl Engine {
    /// Makes a check what it is decided as: with the time that is left for a wait, and the priority that is left.
    pub(super) async fn prepared<'a, 'd>(
        &self,
        live: &Live,
        check: Check<'a, 'd>,
        only: Option<&[usize]>,
    ) -> Check<'a, 'd> {
        let check = if live.delays { self.bounded(check) } else { check };
        if live.demotes { self.demoted(live, check, only).await } else { check }
    }

    /// Bounds the wait of a request by the time that its caller still waits.
    ///
    /// Only where the store decides on the spot: an engine that was given up for a time that a caller has named would leave the decision to
    /// `on_store_error`, and a caller would choose by a header to be let through.
    fn bounded<'a, 'd>(&self, check: Check<'a, 'd>) -> Check<'a, 'd> {
        if !self.store.caps().always_decides {
            return check;
        }
        let mut check = check;
        check.deadline = time_left(check.request).map(|(left, _)| Deadline::Tick(self.now().after(left)));
        check
    }

    /// Lowers the priority of a request that is over limits which demote, before all of its limits are decided together. `only` names the
    /// policies that are asked.
    async fn demoted<'a, 'd>(
        &self,
        live: &Live,
        check: Check<'a, 'd>,
        only: Option<&[usize]>,
    ) -> Check<'a, 'd> {
        let demoting: Vec<usize> = live
            .set
            .policies()
            .iter()
            .enumerate()
            .filter(|(at, policy)| {
                matches!(policy.over, Over::Demote { .. }) && only.is_none_or(|only| only.contains(at))
            })
            .map(|(at, _)| at)
            .collect();
        let among = among(live, &demoting);
        // Without an answer the request keeps its priority: nobody knows that it is over a limit.
        let Ok(looked) = self.gate.check_async(check.peek().among(&among)).await else { return check };
        check.priority(lowered(&looked, check.priority))
    }
}

/// Returns the priority that is left of a request's own by the limits that it is over.
fn lowered(decision: &GateDecision, own: Priority) -> Priority {
    over(decision).fold(own, |priority, (_, over)| over.lowered(priority))
}

/// Returns the policies that let a request through although it is over their limits: their names, each once, and what they do.
pub(crate) fn over(decision: &GateDecision) -> impl Iterator<Item = (&str, Over)> {
    let policies = decision.policies.policies();
    decision.limits.chunk_by(|one, next| one.policy == next.policy).filter_map(move |lines| {
        let policy = &policies[lines.first()?.policy];
        let is_over =
            lines.iter().any(|line| !line.decision.is_allowed() && !policy.is_shadow_limit(line.limit));
        let lets_through = policy.mode == Mode::Enforce && !policy.over.refuses();
        (lets_through && is_over).then_some((policy.name.as_str(), policy.over))
    })
}
