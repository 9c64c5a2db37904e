//! The answer of a limiter: the decision, and the quota it comes from.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use tidegate_core::decision::Ruling;
use tidegate_core::rate::GcraReport;
use tidegate_core::{Cost, Decision, NotACost, Retry, Standing, Tick};

use crate::duration_text::in_words;
use crate::observer::Event;
use crate::refusal_reason::NoPlace;
use crate::store::Executed;

/// The decision of the binding quota, and its index.
///
/// Denied: the quota with the longest [`Retry`], [`Retry::Never`] above all; after that wait, every quota allows the
/// cost. Delayed: the longest wait. Allowed at once: the least remaining.
///
/// The other values are computed on demand, since a division costs as much as the decision itself. All values describe
/// the moment of the decision, even if they are read much later.
#[derive(Clone, Copy)]
pub struct Answer {
    allowed: bool,
    detail: Detail,
}

#[derive(Clone, Copy)]
enum Detail {
    /// A decision by a limit in one word: its report after the decision, and the refused units (0 if permitted).
    Word {
        report: GcraReport,
        refused: u64,
    },
    Decision {
        decision: Decision,
        binding: usize,
    },
}

impl Answer {
    pub(crate) fn binding_of(executed: &Executed) -> Self {
        let lines = executed.lines.iter().map(|line| line.decision).enumerate();
        let (binding, decision) = lines
            .filter(|(_, decision)| decision.is_allowed() == executed.allowed)
            // `min_by_key` returns the first of equals, `max_by_key` the last.
            .min_by_key(|(_, decision)| match decision.ruling {
                Ruling::Denied { retry } => (Reverse(retry), None),
                Ruling::Allowed { wait } => {
                    (Reverse(Retry::After(wait)), Some(Self::scarcity(&decision.standing)))
                }
            })
            .expect("a step has a line that decides it");
        Self::decided(decision, binding)
    }

    pub(crate) const fn decided(decision: Decision, binding: usize) -> Self {
        Self { allowed: decision.is_allowed(), detail: Detail::Decision { decision, binding } }
    }

    /// Makes the answer for units of a limit in one word that are refused, because they would have to wait for longer than
    /// `max_wait`.
    pub(crate) fn refused_to_wait(report: GcraReport, units: u64, max_wait: Duration) -> Self {
        let retry = match report.retry(units) {
            Retry::After(wait) => Retry::After(wait.saturating_sub(max_wait)),
            retry => retry,
        };
        Self::decided(Decision { ruling: Ruling::Denied { retry }, standing: report.standing() }, 0)
    }

    pub(crate) const fn scarcity(standing: &Standing) -> (u64, Reverse<Duration>) {
        (standing.remaining, Reverse(standing.reset_after))
    }

    /// Returns whether the cost was granted, at once or after a delay.
    #[must_use]
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the index of the binding quota in the limiter's list; 0 if there is only one.
    #[must_use]
    pub const fn binding(&self) -> usize {
        match &self.detail {
            Detail::Word { .. } => 0,
            Detail::Decision { binding, .. } => *binding,
        }
    }

    /// Returns the whole decision.
    #[must_use]
    pub fn decision(&self) -> Decision {
        match self.detail {
            Detail::Decision { decision, .. } => decision,
            Detail::Word { report, refused } => {
                let ruling = if self.allowed {
                    Ruling::Allowed { wait: Duration::ZERO }
                } else {
                    Ruling::Denied { retry: report.retry(refused) }
                };
                Decision { ruling, standing: report.standing() }
            }
        }
    }

    /// Returns the state of the binding limit after this decision.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.decision().standing
    }

    /// Returns the units left after this decision.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.standing().remaining
    }

    /// Returns the delay before the work may start; zero for a refusal.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        match &self.detail {
            Detail::Word { .. } => Duration::ZERO,
            Detail::Decision { decision, .. } => decision.wait(),
        }
    }

    /// Returns when repeating the request is worthwhile; after no time if it was allowed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.decision().retry()
    }

    /// Returns whether this charge took the last unit.
    #[must_use]
    pub fn used_up(&self) -> bool {
        self.decision().used_up()
    }

    /// Returns the answer if the cost was granted, and a refusal as an error.
    ///
    /// # Errors
    /// [`Denied`] if the cost was refused.
    ///
    /// # Examples
    /// ```
    /// use tidegate::limiter::Denied;
    /// use tidegate::{Limiter, Quota};
    ///
    /// fn work(limiter: &Limiter) -> Result<u64, Denied> {
    ///     let answer = limiter.allow().into_result()?;
    ///     Ok(answer.remaining())
    /// }
    ///
    /// let limiter = Limiter::new(Quota::per_day(1))?;
    /// assert_eq!(work(&limiter), Ok(0));
    /// assert!(work(&limiter).unwrap_err().to_string().starts_with("refused; retry after"));
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn into_result(self) -> Result<Self, Denied> {
        if self.allowed { Ok(self) } else { Err(self.into()) }
    }

    pub(crate) fn never(&self) -> Self {
        let ruling = Ruling::Denied { retry: Retry::Never };
        Self::decided(Decision { ruling, ..self.decision() }, self.binding())
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("decision", &self.decision())
            .field("binding", &self.binding())
            .finish()
    }
}

impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        self.decision() == other.decision() && self.binding() == other.binding()
    }
}

impl Eq for Answer {}

impl Event {
    /// The event of an enforced decision, without a key.
    pub(crate) fn of(answer: Answer, at: Tick, cost: Cost, max_wait: Duration) -> Self {
        let (decision, binding) = (answer.decision(), answer.binding());
        Self { at, cost, max_wait, decision, binding, key: None, shadow: false }
    }

    pub(crate) const fn answer(&self) -> Answer {
        Answer::decided(self.decision, self.binding)
    }
}

/// The result type of a check: the whole answer, or only whether it is allowed.
///
/// The deciding code is generic over it: a check that returns only a `bool` costs half as much, since an answer of five
/// numbers passes through memory and needs divisions.
pub(crate) trait CheckResult: Copy {
    fn permitted(report: GcraReport) -> Self;

    /// Makes the answer for a permit; `report` is computed only if the type needs it. `None` if computing it fails.
    fn permitted_after(report: impl FnOnce() -> Option<GcraReport>) -> Option<Self>;

    fn refused(report: GcraReport, units: u64) -> Self;

    fn of(answer: Answer) -> Self;
}

impl CheckResult for Answer {
    #[inline]
    fn permitted(report: GcraReport) -> Self {
        Self { allowed: true, detail: Detail::Word { report, refused: 0 } }
    }

    #[inline]
    fn permitted_after(report: impl FnOnce() -> Option<GcraReport>) -> Option<Self> {
        report().map(Self::permitted)
    }

    #[inline]
    fn refused(report: GcraReport, units: u64) -> Self {
        Self { allowed: false, detail: Detail::Word { report, refused: units } }
    }

    fn of(answer: Answer) -> Self {
        answer
    }
}

impl CheckResult for bool {
    #[inline]
    fn permitted(_: GcraReport) -> Self {
        true
    }

    #[inline]
    fn permitted_after(_: impl FnOnce() -> Option<GcraReport>) -> Option<Self> {
        Some(true)
    }

    #[inline]
    fn refused(_: GcraReport, _: u64) -> Self {
        false
    }

    fn of(answer: Answer) -> Self {
        answer.is_allowed()
    }
}

/// A refusal as an error; no units were spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The whole answer.
    pub answer: Answer,
    /// Why a [`Bulkhead`](crate::Bulkhead) gave no place; `None` for refusals by a limiter or a breaker.
    pub no_place: Option<NoPlace>,
}

impl Denied {
    /// Returns when repeating the same request is worthwhile.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.answer.retry()
    }
}

impl From<Answer> for Denied {
    fn from(answer: Answer) -> Self {
        Self { answer, no_place: None }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry() {
            Retry::After(wait) => {
                write!(f, "refused; retry after {}", in_words(wait))
            }
            retry => {
                match (self.no_place, retry) {
                    (Some(why), _) => write!(f, "refused: {why}")?,
                    (None, Retry::Never) => f.write_str("refused for good")?,
                    (None, _) => f.write_str("refused now")?,
                }
                f.write_str(match retry {
                    Retry::Never => "; no retry of the same request can pass",
                    _ => "; it is unknown when a retry can pass",
                })
            }
        }
    }
}

impl std::error::Error for Denied {}

/// Why a reservation, a wait or an entry into a bulkhead took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// It was refused.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The given number is not a valid cost (zero or less): no decision was made.
    #[error(transparent)]
    NotACost(#[from] NotACost),
}

impl TakeError {
    /// Returns when repeating the same request is worthwhile; [`Retry::Never`] if the number is not a valid cost.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.answer().map_or(Retry::Never, |answer| answer.retry())
    }

    /// Returns the answer of a refusal; `None` if no decision was made.
    #[must_use]
    pub const fn answer(&self) -> Option<Answer> {
        match self {
            Self::Denied(denied) => Some(denied.answer),
            Self::NotACost(_) => None,
        }
    }
}

impl From<Answer> for TakeError {
    fn from(answer: Answer) -> Self {
        Self::Denied(answer.into())
    }
}
