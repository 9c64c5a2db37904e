//! Says what an explanation does not know.

use super::{Explanation, LimitReason, Reason};
use crate::policy::TIME_LEFT;

/// The most policies that a remark names.
const NAMED: usize = 5;

/// What is known of breakers and of places.
#[derive(Clone, Copy)]
pub(super) enum Guards {
    /// Those of the gate that is in use were asked.
    Asked,
    /// The gate was made for the explanation, and all its counters are fresh.
    Fresh,
}

impl Explanation {
    pub(super) fn remarks_with(&self, guards: Guards) -> Vec<String> {
        let with = |has: fn(&LimitReason) -> bool| self.named(|reason| reason.limits.iter().any(has));
        let breakers = with(|limit| limit.is_breaker);
        let places = with(|limit| limit.counts == "places" && !limit.is_breaker);
        let breakers = breakers.map(|of| match guards {
            Guards::Asked => format!(
                "whether the breaker of {of} is half-open or forced, and why, is not looked up here; Gate::handle_breaker tells it"
            ),
            Guards::Fresh => format!(
                "only a running server knows the state of the breaker of {of}, here it is new and closed; ask by tidegate explain --server URL, or by tidegate breaker list --server URL"
            ),
        });
        let places = places.filter(|_| matches!(guards, Guards::Fresh)).map(|of| {
            format!(
                "only a running server knows how many places of {of} are in use, here all are free; ask by tidegate explain --server URL"
            )
        });
        let untimed = self.named(|reason| reason.untimed).map(|of| {
            let [grpc, envoy] = TIME_LEFT;
            format!(
                "the deadline of {of} was not compared, since the request does not say how long its caller waits; {grpc} and {envoy} say it"
            )
        });
        [breakers, places, untimed].into_iter().flatten().collect()
    }

    /// Returns the names of some policies as a text; `None` if there are none.
    fn named(&self, among: impl Fn(&Reason) -> bool) -> Option<String> {
        let names: Vec<&str> =
            self.reasons.iter().filter(|reason| among(reason)).map(|reason| reason.policy.as_str()).collect();
        let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => None,
            count if count > NAMED => Some(format!("{shown} and {} more", count - NAMED)),
            _ => Some(shown),
        }
    }
}
