//! Turns an answer into HTTP: a status, rate-limit headers, and a problem document that tells a refused caller what to
//! do.
//!
//! [`NamedLimit`] turns the answers of a limiter or a bulkhead into an [`HttpAnswer`], and [`HttpAnswer::of_gate`] the
//! decisions of a gate. The answer writes its headers into a `HeaderMap` of the `http` crate, or returns names and values
//! for other frameworks.
//!
//! # Examples
//! A handler of any framework that uses the `http` crate:
//! ```
//! use http::{HeaderMap, Response};
//! use tidegate::http_answer::NamedLimit;
//! use tidegate::{KeyedLimiter, Quota};
//!
//! struct Limits { limiter: KeyedLimiter, told: NamedLimit }
//!
//! fn handle(limits: &Limits, client: std::net::IpAddr) -> Response<String> {
//!     let answer = limits.limiter.allow(client);
//!     let told = limits.told.answer(&answer);
//!     if let Some(refusal) = told.refusal() {
//!         return refusal; // 429 with its headers and a problem
//!     }
//!     let mut response = Response::new("the page".to_owned());
//!     told.write_headers(response.headers_mut());
//!     response
//! }
//!
//! let quota = Quota::per_minute(1);
//! let limits = Limits { limiter: KeyedLimiter::new(quota, 100_000)?, told: NamedLimit::new("per-ip", quota)? };
//! let client = "203.0.113.9".parse()?;
//! assert_eq!(handle(&limits, client).headers()["ratelimit-policy"], r#""per-ip";q=1;w=60"#);
//! let refused = handle(&limits, client);
//! assert_eq!(refused.status(), 429);
//! assert!(refused.body().starts_with(r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Source
//! draft-ietf-httpapi-ratelimit-headers-11, RFC 9110 (`Retry-After`), RFC 6585 (429), RFC 9457 (problems).

mod json;
mod limit_headers;
pub mod over;
mod refusal;
mod shown_limits;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use self::refusal::Refusal;
pub use self::shown_limits::NamedLimit;
use self::shown_limits::{ShownLimits, Window};
use crate::gate::GateDecision;
pub use crate::header_form::HeaderForm;
use crate::policy::Descriptor;

/// What the decision server, a separate crate, shares with this module: it caches the windows of its quotas, and its
/// bodies contain more. May change with any release.
#[doc(hidden)]
pub mod server_parts {
    pub use super::json::{push_number, push_text, push_texts};
    pub use super::limit_headers::insert;
    pub use super::over::push_escaped;
    pub use super::refusal::{PublicRefusal, Refusal, RefusalProblem};
    pub use super::shown_limits::ShownLimits;
    pub use super::shown_limits::Window;
    pub use crate::policy::wrong_value::wrong_value;
    pub use tidegate_limits::duration_text::{in_words, millis_up, seconds_up};
}

/// The media type of a refusal's body.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// One answer in HTTP terms. All of it may be shown to any caller.
#[derive(Clone, Debug)]
pub struct HttpAnswer<'a> {
    shown: ShownLimits<'a>,
    refusal: Option<Refusal<'a>>,
    form: HeaderForm,
}

impl<'a> HttpAnswer<'a> {
    const fn new(shown: ShownLimits<'a>, refusal: Option<Refusal<'a>>) -> Self {
        Self { shown, refusal, form: HeaderForm::Draft11 }
    }

    /// Turns the decision of a gate about `request` into an HTTP answer.
    ///
    /// For each policy that can refuse, the headers show its tightest limit, with the window of the quota that applied:
    /// the one that the check brought ([`Check::quota`](field@crate::Check::quota)), or the policy's own. Computes the
    /// windows anew each time, which costs about as much as deciding the limits.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::http_answer::{HeaderForm, HttpAnswer};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(1).gcra()?, "1/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?.with_clock(ManualClock::default());
    /// let request = Descriptor::new();
    /// assert!(gate.check(&request).now()?.allowed);
    ///
    /// let decision = gate.check(&request).now()?;
    /// let told = HttpAnswer::of_gate(&decision, &request).with_form(HeaderForm::XRateLimit);
    /// assert_eq!((told.status().as_u16(), told.policy()), (429, Some("all")));
    /// let pairs = told.pairs();
    /// assert!(pairs.contains(&("x-ratelimit-remaining".to_owned(), "0".to_owned())), "{pairs:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_gate(decision: &'a GateDecision, request: &Descriptor<'_>) -> Self {
        let shown =
            ShownLimits::of(decision, request, |_, quota| Window::of(quota).seconds(quota, decision.at));
        Self::new(shown, (!decision.allowed).then(|| Refusal::of_gate(decision).for_request(request)))
    }

    /// Sets the form of the rate-limit headers; by default [`HeaderForm::Draft11`].
    #[must_use]
    pub fn with_form(self, form: HeaderForm) -> Self {
        Self { form, ..self }
    }

    /// Reports whether the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns the status: 200 if the request may pass; for a refusal 429, unless the policy that binds has another
    /// status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.refusal.map_or(StatusCode::OK, |refusal| refusal.status())
    }

    /// Returns the name of the policy or limit that refuses; `None` if the request may pass, or a deny-list of the
    /// whole set refuses it.
    #[must_use]
    pub fn policy(&self) -> Option<&'a str> {
        self.refusal?.policy()
    }

    /// Writes the rate-limit headers; headers of the same names are replaced.
    ///
    /// The lists of limits take at most 2,048 bytes: if there are more limits, those with most left are omitted, and a
    /// header says how many. For a refusal with a known wait, `retry-after` holds whole seconds, at least one, and
    /// `access-control-expose-headers` lets browser scripts read these headers.
    pub fn write_headers(&self, out: &mut HeaderMap) {
        self.shown.write(self.form, out);
    }

    /// Writes the rate-limit headers beside those of a limit further inside, or of the service.
    ///
    /// The lists of limits (`ratelimit`, `ratelimit-policy`) are continued behind those that are there. If they would
    /// take more than 2,048 bytes, this answer's limits are omitted, and a header says how many are. Headers that show
    /// one limit (`x-ratelimit-…`) stay, unless less is left of this answer's limit. So an answer that refuses keeps
    /// the limit that refuses.
    ///
    /// # Examples
    /// ```
    /// use http::HeaderMap;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::http_answer::NamedLimit;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let mut headers = HeaderMap::new();
    /// for (name, quota) in [("each", Quota::per_minute(9)), ("all", Quota::per_minute(1000))] {
    ///     let limiter = Limiter::new(quota)?.with_clock(ManualClock::default());
    ///     NamedLimit::new(name, quota)?.answer(&limiter.allow()).add_headers(&mut headers);
    /// }
    /// assert_eq!(headers["ratelimit-policy"], r#""each";q=9;w=60, "all";q=1000;w=60"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_headers(&self, out: &mut HeaderMap) {
        self.shown.write_beside(self.form, out);
    }

    /// Returns the rate-limit headers as pairs of names, in lower case, and values, for frameworks with types of their
    /// own.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        self.write_headers(&mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
        headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
    }

    /// Returns the body of a refusal, JSON of the type `application/problem+json`; `None` if the request may pass.
    ///
    /// # Examples
    /// ```
    /// use tidegate::http_answer::NamedLimit;
    /// use tidegate::Bulkhead;
    ///
    /// let reports = Bulkhead::new(1)?;
    /// let _permit = reports.try_enter()?;
    /// let refused = reports.try_enter().unwrap_err();
    /// let places = NamedLimit::of_places("reports");
    /// let told = places.denied(&refused);
    /// assert_eq!(told.status(), 503);
    /// assert_eq!(
    ///     told.body().as_deref(),
    ///     Some(concat!(
    ///         r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
    ///         r#""title":"Temporary reduced capacity","status":503,"#,
    ///         r#""detail":"limit \"reports\" refuses this request: all places are taken; try again later","violated-policies":["reports"],"#,
    ///         r#""retry":"unknown","retry_after_ms":null}"#,
    ///     ))
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn body(&self) -> Option<String> {
        let refusal = self.refusal?;
        Some(refusal.public(refusal.status(), None).to_json())
    }

    /// Returns the response to a refused request: status, rate-limit headers, a problem document as its body, and
    /// `cache-control: no-store`. `None` if the request may pass.
    #[must_use]
    pub fn refusal<B: From<String>>(&self) -> Option<Response<B>> {
        let mut response = Response::new(B::from(self.body()?));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.write_headers(headers);
        Some(response)
    }
}
