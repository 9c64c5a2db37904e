//! What a limiter answers, and which of its quotas speaks.

use std::cmp::Reverse;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tidegate_core::decision::Outcome;
use tidegate_core::{Decision, Standing};

use crate::observer::Event;
use crate::store::Settled;

/// The decision of the quota that binds, and which one it is. Reads like the [`Decision`] it holds.
///
/// Of a refusal that is the quota with the longest `retry_after`, never being longest, so that waiting it out satisfies all. Of
/// a delay, the longest. Of a plain yes, the quota with the least remaining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was decided.
    pub decision: Decision,
    /// The place of the quota in the limiter's list; 0 where there is only one.
    pub binding: usize,
}

impl Answer {
    /// Finds the line that binds. A step has at least one.
    pub(crate) fn of(settled: &Settled) -> Self {
        let lines = settled.lines.iter().map(|line| line.decision).enumerate();
        let (binding, decision) = lines
            .filter(|(_, decision)| decision.is_allowed() == settled.allowed)
            // The first of equals: `max_by_key` would take the last.
            .min_by_key(|(_, decision)| match decision.outcome {
                Outcome::Denied { retry_after } => (Reverse(retry_after.unwrap_or(Duration::MAX)), None),
                Outcome::Allowed { wait } => (Reverse(wait), Some(Self::scarcity(&decision.standing))),
            })
            .expect("a step has a line that decides it");
        Self { decision, binding }
    }

    /// Orders standings, the scarcest first.
    pub(crate) const fn scarcity(standing: &Standing) -> (u64, Reverse<Duration>) {
        (standing.remaining, Reverse(standing.reset_after))
    }
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

impl Event {
    pub(crate) const fn answer(&self) -> Answer {
        Answer { decision: self.decision, binding: self.binding }
    }
}

/// A refusal, where an API promises something other than a decision: nothing was spent.
///
/// An `Error`, so that `?` works in code for which not being let through is the end of the matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The whole answer.
    pub answer: Answer,
}

impl Denied {
    /// Returns the least wait after which the same ask succeeds if nobody else asks; `None` when it never can.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.answer.decision.retry_after()
    }
}

impl From<Answer> for Denied {
    fn from(answer: Answer) -> Self {
        Self { answer }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => write!(f, "over the limit; retry after {} ms", wait.as_nanos().div_ceil(1_000_000)),
            None => f.write_str("over the limit for good: no wait can make room for this ask"),
        }
    }
}

impl std::error::Error for Denied {}
