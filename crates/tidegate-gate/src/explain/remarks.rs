//! Says what an explanation does not know.

use super::{Explanation, LimitReason, Reason};
use crate::policy::TIME_LEFT;

/// The most policies that a remark names.
const NAMED: usize = 5;

/// What is known of breakers and of places.
#[derive(Clone, Copy)]
enum Guards {
    /// Those of the gate that is in use were asked.
    Asked,
    /// The gate was made for the explanation, and all its counters are fresh.
    Fresh,
}

impl Explanation {
    /// Says of each breaker and each limit of places that only a running server knows its present state, and how to ask
    /// it. For an explanation by a gate that was just made from a policy file, whose counters are all fresh.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let quota = Quota::from(tidegate::concurrency::Concurrency::new(5)?);
    /// let set = PolicySet::new(vec![Policy::new("work", Limit::new(quota, "concurrency 5"))])?;
    /// let told = Gate::in_memory(set, 1)?.explain(&Descriptor::new())?.over_fresh_counters();
    /// assert!(told.remarks[0].starts_with("only a running server knows how many places of work are in use"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn over_fresh_counters(self) -> Self {
        let remarks = self.remarks_with(Guards::Fresh);
        Self { remarks, ..self }
    }

    /// Says what an explanation by the gate that is in use does not know.
    pub(super) fn with_remarks(self) -> Self {
        let remarks = self.remarks_with(Guards::Asked);
        Self { remarks, ..self }
    }

    fn remarks_with(&self, guards: Guards) -> Vec<String> {
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
