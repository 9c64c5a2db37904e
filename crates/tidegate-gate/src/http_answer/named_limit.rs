//! Describes a limit to callers over HTTP.

use tidegate_core::{Quota, QuotaError, Tick};

use super::HttpAnswer;
use super::refusal::Refusal;
use super::shown_limits::{ShownLimit, ShownLimits};
use super::window::Window;
use crate::policy::Deny;
use tidegate_limits::{Answer, Denied, NoPlace};

/// The facts about a limiter or a bulkhead that callers are told: its name, its window, and the form of a refusal.
/// Create it once, beside the limiter.
///
/// # Examples
/// ```
/// use tidegate::http_answer::NamedLimit;
/// use tidegate::{KeyedLimiter, ManualClock, Quota};
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
    /// Creates it for a limit of `quota`, with status 429 for refusals (503 for guards). The window of a calendar limit
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

    /// Creates it for a [`Bulkhead`](tidegate_limits::Bulkhead), with status 503 for refusals: the service is short of capacity,
    /// and the caller did not ask too often.
    #[must_use]
    pub fn of_places(name: impl Into<String>) -> Self {
        Self { name: name.into(), window: None, concurrent: true, deny: Deny::with_status(503) }
    }

    /// Sets how refusals are answered. An invalid HTTP status is replaced by 429.
    #[must_use]
    pub fn with_deny(self, deny: Deny) -> Self {
        Self { deny, ..self }
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
