//! Says that a request was refused for its caller's own time: the limit would have delayed it, and its caller does not
//! wait that long.

use std::time::Duration;

use tidegate_core::Retry;

use crate::gate::GateDecision;
use crate::policy::{Descriptor, shortest_time_left};
use tidegate_limits::duration_text::in_words;

/// How long the caller of a request still waits, and the attribute that says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerTime {
    left: Duration,
    name: &'static str,
}

impl CallerTime {
    /// Reads the headers of a request; `None` if none states a time.
    pub(super) fn of(request: &Descriptor<'_>) -> Option<Self> {
        shortest_time_left(request).map(|(left, name, _)| Self { left, name })
    }

    /// Returns the end of a sentence about a refusal that this time has caused: the limit that binds would have delayed
    /// the request by no more than its `max_wait`. Empty for any other refusal.
    pub(super) fn note(self, decision: &GateDecision) -> String {
        let Some(turn) = self.turn(decision) else { return String::new() };
        let (turn, left) = (in_words(turn), in_words(self.left));
        format!("; it would pass after a wait of {turn}, and {} leaves {left}", self.name)
    }

    /// Returns how long the request would have had to wait, if it was refused for this time alone.
    fn turn(self, decision: &GateDecision) -> Option<Duration> {
        let bound = &decision.limits[decision.binding.filter(|_| decision.refusal.is_none())?];
        let longest = decision.policies.policies().get(bound.policy)?.limit(bound.limit)?.max_wait;
        // A refusal lasts until the wait that remains fits the time that the caller has.
        let Retry::After(refused_for) = bound.decision.retry() else { return None };
        let turn = refused_for.saturating_add(self.left);
        (self.left < longest && turn <= longest).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;
    use crate::http_answer::HttpAnswer;
    use crate::policy::{Limit, Policy, PolicySet};
    use tidegate_limits::{ManualClock, Quota};

    #[test]
    fn a_caller_whose_own_time_is_too_short_is_told_so() {
        let mut limit = Limit::new(Quota::per(2, Duration::from_secs(3)).burst(1).gcra().unwrap(), "2/3s");
        limit.max_wait = Duration::from_secs(2);
        let set = PolicySet::new(vec![Policy::new("W", limit)]).unwrap();
        let gate = Gate::in_memory(set, 1000).unwrap().with_clock(ManualClock::default());
        assert!(gate.check(&Descriptor::new()).unwrap().allowed);

        let told = |timeout: &str| {
            let request = Descriptor::new().with("request.header.grpc-timeout", timeout);
            let decision = gate.check(&request).unwrap();
            let text = HttpAnswer::of_gate(&decision, &request).body().unwrap_or_default();
            (decision.allowed, text)
        };
        let (allowed, text) = told("100m");
        let note = "try again in 1.4 s; it would pass after a wait of 1.5 s, and request.header.grpc-timeout leaves 100 ms";
        assert!(!allowed && text.contains(note), "{text}");
        assert!(told("1600m").0, "it waits for its turn");
        // The next turn is in 3 s, beyond what the limit lets anybody wait.
        for timeout in ["100m", "10S"] {
            let (allowed, text) = told(timeout);
            assert!(
                !allowed && text.contains("try again in") && !text.contains("leaves"),
                "{timeout}: {text}"
            );
        }
    }
}
