//! Error answers in `application/problem+json`: what was wrong, the value, and what would work.
//!
//! # Source
//! RFC 9457; the problem types of draft-ietf-httpapi-ratelimit-headers for refusals.

use std::time::Duration;

use http::StatusCode;
use http::header::{self, ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::http_answer::PROBLEM_JSON;

use crate::body::{self, Response, json};

/// How long a caller should wait if the store did not answer: long enough not to add to its load.
pub(crate) const STORE_RETRY: Duration = Duration::from_secs(1);

/// How long the answer to a wrong token waits. The caller's connection waits with it, and nobody else.
pub(crate) const WRONG_TOKEN: Duration = Duration::from_millis(250);

/// A response extension: the answer waits for so long, and its connection can lose its place like an idle one. With
/// zero it waits for others' turn, since it was long work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delayed(pub(crate) Duration);

/// Any answer but a decision: the request is malformed, not allowed, or failed.
///
/// `detail` is for people; the other members are for programs. Boxed: it is the error type of most results here.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<ProblemParts>);

#[derive(Clone, Debug)]
struct ProblemParts {
    status: StatusCode,
    detail: String,
    members: Map<String, Value>,
    allow: Option<HeaderValue>,
    /// Whether the same request may work a little later.
    passes: bool,
    /// Whether the caller showed a wrong token.
    guess: bool,
    /// Whether the proxy is set up wrongly, whoever its caller is.
    of_proxy: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(flatten)]
    members: &'a Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemParts {
            status,
            detail: detail.into(),
            members: Map::new(),
            allow: None,
            passes: false,
            guess: false,
            of_proxy: false,
        }))
    }

    /// 400: the request is malformed, and nothing was charged.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 503: something is short or gone for a while. Says when to try again.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        problem.0.passes = true;
        problem
    }

    /// 409: done already, or impossible in this state.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Replaces `detail`.
    pub(crate) fn saying(mut self, detail: String) -> Self {
        self.0.detail = detail;
        self
    }

    /// Adds a member to the JSON object.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn allowing(mut self, methods: &str) -> Self {
        self.0.allow = HeaderValue::from_str(methods).ok();
        self
    }

    /// Makes the answer wait, as a wrong token's does.
    pub(crate) fn of_guess(mut self) -> Self {
        self.0.guess = true;
        self
    }

    /// Returns whether the caller showed a wrong token.
    pub(crate) fn is_guess(&self) -> bool {
        self.0.guess
    }

    pub(crate) fn of_proxy(mut self) -> Self {
        self.0.of_proxy = true;
        self
    }

    /// Returns whether the proxy that asks is set up wrongly.
    pub(crate) fn is_of_proxy(&self) -> bool {
        self.0.of_proxy
    }

    /// As one entry of a batch's answer.
    pub(crate) fn in_batch(self) -> Value {
        serde_json::to_value(self.0.body()).unwrap_or_default()
    }

    /// Returns the status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Returns `detail`.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }
}

impl ProblemParts {
    fn body(&self) -> Body<'_> {
        Body {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            members: &self.members,
        }
    }
}

impl Problem {
    pub(crate) fn into_response(self) -> Response {
        let body = json::bytes(&self.0.body());
        let ProblemParts { status, allow, passes, guess, .. } = *self.0;
        let mut response = body::answer(status, PROBLEM_JSON, body);
        if guess {
            response.extensions_mut().insert(Delayed(WRONG_TOKEN));
        }
        let headers = response.headers_mut();
        if let Some(allow) = allow {
            headers.insert(ALLOW, allow);
        }
        if passes {
            headers.insert(RETRY_AFTER, STORE_RETRY.as_secs().into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        if status == StatusCode::PAYLOAD_TOO_LARGE || status == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body is not read, so the connection cannot be used again.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
