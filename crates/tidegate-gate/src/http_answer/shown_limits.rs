//! Selects the limits of an answer that headers show, for all forms of headers; limits and windows as callers see them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Cost, Decision, Quota, QuotaError, Retry, Tick, Transition};

use super::HttpAnswer;
use super::refusal::Refusal;
use crate::gate::{GateDecision, LimitDecision};
use crate::policy::{Deny, Descriptor, Limit};
use tidegate_limits::duration_text::seconds_up;
use tidegate_limits::{Answer, Denied, NoPlace};

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
    /// Selects the tightest limit of each policy that can refuse: among refusals the one that lasts longest. `window`
    /// returns the window, in seconds, of the quota that applied under the policy at an index; `None` if time gives nothing
    /// back.
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

/// The time after which a used-up limit is full again; of a sliding window its length. Compute it once per quota, since it
/// costs a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// Whole seconds, rounded up, at least one.
    Seconds(u64),
    /// The current period of a calendar, whose length varies with the month.
    Calendar,
    /// Time gives nothing back, as with places.
    Never,
}

impl Window {
    /// Computes the window of a quota. It is derived from the quota's own decisions, so that all algorithms are treated
    /// alike.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Quota, http_answer::server_parts::Window};
    /// assert_eq!(Window::of(&Quota::per_second(100).burst(200).gcra()?), Window::Seconds(2));
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn of(quota: &Quota) -> Self {
        if matches!(quota, Quota::FixedWindow(window) if window.calendar_parts().is_some()) {
            return Self::Calendar;
        }
        // Their buckets and windows begin at fixed ticks, so the time until a used-up limit is full again depends on
        // when it was used up. The window is what both sides agree on.
        match quota {
            Quota::SlidingWindow(window) => return Self::Seconds(seconds_up(window.rate().period()).max(1)),
            Quota::SlidingCounter(window) => return Self::Seconds(seconds_up(window.rate().period()).max(1)),
            quota if quota.is_guard() => return Self::Never,
            _ => {}
        }
        // A bucket that refills by the clock takes longest if it was used up at the end of a period, as it is at tick 0 of a
        // quota that follows no wall clock.
        let bucket = matches!(quota, Quota::TokenBucket(_)).then(|| quota.clone());
        let (quota, now) =
            bucket.as_ref().map_or((quota, Tick::from_secs(1 << 32)), |own| (own, Tick::EPOCH));
        let fresh = quota.fresh(now);
        let Some(all) = Cost::new(quota.standing(&fresh, now).limit) else { return Self::Never };
        match quota.decide(&fresh, Ask::within(now, all, Duration::MAX)) {
            Transition::Allowed { next, .. } => {
                Self::Seconds(seconds_up(quota.standing(&next, now).reset_after).max(1))
            }
            Transition::Denied { .. } => Self::Never,
        }
    }

    /// Returns the window, in seconds, of a quota that is asked at `now`; `None` if time gives nothing back.
    #[must_use]
    pub fn seconds(self, quota: &Quota, now: Tick) -> Option<u64> {
        match self {
            Self::Seconds(seconds) => Some(seconds),
            Self::Calendar => {
                let Quota::FixedWindow(window) = quota else { return None };
                let (start, end) = window.window_at(now);
                Some(seconds_up(end.since(start)))
            }
            Self::Never => None,
        }
    }
}

/// The facts about a limiter or a bulkhead that callers are told: its name, its window, and the form of a refusal.
/// Create it once, beside the limiter.
///
/// # Examples
/// ```
/// use tidegate::clock::ManualClock;
/// use tidegate::http_answer::NamedLimit;
/// use tidegate::{KeyedLimiter, Quota};
///
/// let quota = Quota::per_minute(1);
/// let limiter = KeyedLimiter::new(quota, 100_000)?.with_clock(ManualClock::default());
/// let per_ip = NamedLimit::new("per-ip", quota)?;
///
/// let first = limiter.allow("203.0.113.9");
/// assert_eq!(per_ip.answer(&first).status(), 200);
/// let second = limiter.allow("203.0.113.9");
/// let refusal = per_ip.answer(&second).refusal::<String>().expect("one per minute");
/// assert_eq!(refusal.status(), 429);
/// assert_eq!(refusal.headers()["retry-after"], "60");
/// assert_eq!(refusal.headers()["ratelimit"], r#""per-ip";r=0;t=60"#);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NamedLimit {
    name: String,
    window: Option<u64>,
    concurrent: bool,
    deny: Deny,
}

impl NamedLimit {
    /// Describes a limit of `quota`, with status 429 for refusals (503 for guards). The window of a calendar limit
    /// is not shown, since months differ in length.
    ///
    /// # Errors
    /// [`QuotaError`] with the number that is not valid.
    pub fn new<Q>(name: impl Into<String>, quota: Q) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        let window = match Window::of(&quota) {
            Window::Calendar => None,
            window => window.seconds(&quota, Tick::EPOCH),
        };
        let concurrent = quota.is_guard();
        let deny = if concurrent { Deny::with_status(503) } else { Deny::default() };
        Ok(Self { name: name.into(), window, concurrent, deny })
    }

    /// Describes a [`Bulkhead`](tidegate_limits::Bulkhead), with status 503 for refusals: the service is short of
    /// capacity, and the caller did not ask too often.
    #[must_use]
    pub fn of_places(name: impl Into<String>) -> Self {
        Self { name: name.into(), window: None, concurrent: true, deny: Deny::with_status(503) }
    }

    /// Turns an answer into an HTTP answer.
    #[must_use]
    pub fn answer(&self, answer: &Answer) -> HttpAnswer<'_> {
        self.tell(answer, None)
    }

    /// Turns a refusal into an HTTP answer, whose problem document says why a bulkhead gave no place.
    #[must_use]
    pub fn denied(&self, denied: &Denied) -> HttpAnswer<'_> {
        self.tell(&denied.answer, denied.no_place)
    }

    fn tell(&self, answer: &Answer, no_place: Option<NoPlace>) -> HttpAnswer<'_> {
        let decision = answer.decision();
        let retry = decision.retry();
        let refused = !decision.is_allowed();
        let limit =
            ShownLimit::of(&self.name, &decision, decision.standing.remaining, self.window, self.concurrent);
        let mut shown = ShownLimits::none(refused.then_some(retry));
        shown.limits.push(limit);
        shown.binding = Some(0);
        let refusal = refused.then(|| Refusal::of_limit(&self.name, &self.deny, retry, no_place));
        HttpAnswer::new(shown, refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_time_from_used_up_to_full() {
        let window = |quota: Result<Quota, _>| Window::of(&quota.unwrap());
        assert_eq!(window(Quota::per_second(100).burst(200).gcra()), Window::Seconds(2));
        assert_eq!(window(Quota::per_second(3).burst(10).gcra()), Window::Seconds(4));
        assert_eq!(window(Quota::per_minute(60).fixed_window()), Window::Seconds(60));
        assert_eq!(window(Quota::per_second(3).burst(10).token_bucket()), Window::Seconds(4));
        assert_eq!(window(Quota::per_hour(100).burst(250).interval_bucket()), Window::Seconds(3 * 3600));
        let aligned = || Quota::per(100, Duration::from_secs(7000)).burst(250).aligned_bucket();
        assert_eq!(window(aligned()), Window::Seconds(21_000), "not by the hour of the day");
        let followed = aligned().unwrap();
        let wall = tidegate_core::time::WallAhead::default();
        wall.set(1_234_567_890);
        followed.follow_wall(&wall);
        assert_eq!(Window::of(&followed), Window::Seconds(21_000));
        assert_eq!(window(Quota::per_hour(3).sliding_log()), Window::Seconds(3600));
        // Regression: these were 104 and 62 seconds, by where the buckets of an arbitrary tick begin.
        assert_eq!(window(Quota::per_minute(60).sliding_counter()), Window::Seconds(60));
        assert_eq!(window(Quota::per_minute(60).sliding_window(10)), Window::Seconds(60));
        assert_eq!(window(Quota::concurrency(50, Duration::from_secs(30))), Window::Never);
    }
}
