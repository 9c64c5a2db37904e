//! Selects the limits of an answer that headers show, for all forms of headers.

use std::cmp::Reverse;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Decision, Quota, Retry};

use crate::gate::{GateDecision, LimitDecision};
use crate::policy::{Descriptor, Limit};
use tidegate_limits::duration_text::seconds_up;

/// One limit as shown in headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownLimit<'a> {
    /// The policy's name.
    pub(super) name: &'a str,
    /// The most that the limit grants at once.
    pub(super) quota: u64,
    /// The whole seconds after which a used-up limit is full again; `None` if time gives nothing back.
    pub(super) window: Option<u64>,
    /// Whether the limit counts requests in flight.
    pub(super) concurrent: bool,
    /// What is left.
    pub(super) remaining: u64,
    /// Whether the limit refuses.
    pub(super) refused: bool,
    /// Whole seconds to wait: for a refusal until the request could pass, otherwise until the limit is full. `None` if
    /// the limit is full, if it never is, or if it counts requests in flight.
    pub(super) wait: Option<u64>,
}

impl<'a> ShownLimit<'a> {
    pub(super) fn of(
        name: &'a str,
        decision: &Decision,
        remaining: u64,
        window: Option<u64>,
        concurrent: bool,
    ) -> Self {
        let standing = decision.standing;
        let wait = if concurrent {
            // Places return when other requests end, which no number of seconds can predict.
            None
        } else if decision.is_allowed() {
            Some(standing.reset_after).filter(|wait| !wait.is_zero())
        } else {
            decision.retry().after()
        };
        Self {
            name,
            quota: standing.limit,
            window,
            concurrent,
            remaining: remaining.min(standing.limit),
            refused: !decision.is_allowed(),
            wait: wait.map(seconds_up),
        }
    }
}

/// The limits of one answer as shown in headers: those that can refuse, in the order of the policies, at most one per
/// policy.
///
/// For servers that cache the [`Window`](super::Window)s of their quotas; other callers use
/// [`HttpAnswer::of_gate`](super::HttpAnswer::of_gate).
#[derive(Clone, Debug, Default)]
pub struct ShownLimits<'a> {
    pub(super) limits: SmallVec<[ShownLimit<'a>; 4]>,
    /// Index of the limit that binds.
    pub(super) binding: Option<usize>,
    /// For a refusal: when asking again is worthwhile.
    pub(super) refused: Option<Retry>,
}

impl<'a> ShownLimits<'a> {
    /// Selects the tightest limit of each policy that can refuse: among refusals the one that lasts longest. `window` returns the window, in seconds, of the quota
    /// that applied under the policy at an index; `None` if time gives nothing back.
    #[must_use]
    pub fn of(
        decision: &'a GateDecision,
        request: &Descriptor<'_>,
        mut window: impl FnMut(usize, &Arc<Quota>) -> Option<u64>,
    ) -> Self {
        let mut shown = Self { refused: (!decision.allowed).then(|| decision.retry()), ..Self::default() };
        let policies = decision.policies.policies();
        let bound = decision.binding.map(|at| decision.limits[at].policy);
        for lines in decision.limits.chunk_by(|one, next| one.policy == next.policy) {
            let policy = lines.first().map(|line| &policies[line.policy]);
            // A breaker has no number that helps a caller; when to ask again is part of the refusal.
            let is_limit = |line: &&LimitDecision| {
                !policy.and_then(|policy| policy.limit(line.limit)).is_some_and(Limit::is_breaker)
            };
            let enforced = lines.iter().filter(|line| line.binding).filter(is_limit);
            // Among refusals the one that lasts longest, as for the whole answer: its wait is the one to obey.
            let tightest = enforced.min_by_key(|line| {
                let retry = (!line.decision.is_allowed()).then(|| line.decision.retry());
                let left = u128::from(line.remaining()) << 64;
                (Reverse(retry), left / u128::from(line.decision.standing.limit.max(1)))
            });
            let Some(line) = tightest else { continue };
            let policy = &policies[line.policy];
            if bound == Some(line.policy) {
                shown.binding = Some(shown.limits.len());
            }
            let quota = decision.quota_of(line, request).map(|(quota, _)| quota);
            let window = quota.and_then(|quota| window(line.policy, quota));
            let concurrent = quota.is_some_and(|quota| quota.is_guard());
            shown.limits.push(ShownLimit::of(
                &policy.name,
                &line.decision,
                line.remaining(),
                window,
                concurrent,
            ));
        }
        shown
    }

    /// Creates an answer without limits; for a refusal, with when to ask again.
    #[must_use]
    pub fn none(refused: Option<Retry>) -> Self {
        Self { refused, ..Self::default() }
    }
}
