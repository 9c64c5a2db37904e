//! Answers in `application/problem+json`: what was wrong, with which value, and what would work.
//!
//! # Source
//! RFC 9457; the problem types of draft-ietf-httpapi-ratelimit-headers for refusals.

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};

/// The media type of every error.
pub(crate) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An answer that is no decision.
///
/// `detail` is a sentence for people; the members beside it are for programs. Boxed, because it rides in every `Result`.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    status: StatusCode,
    detail: String,
    members: Map<String, Value>,
    allow: Option<HeaderValue>,
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
        Self(Box::new(Inner { status, detail: detail.into(), members: Map::new(), allow: None }))
    }

    /// 400: the request cannot be understood, and nothing was charged.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 409: it was done already, or cannot be done in this state.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Adds a member for programs.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// Names the methods that would work.
    pub(crate) fn allowing(mut self, methods: &'static str) -> Self {
        self.0.allow = Some(HeaderValue::from_static(methods));
        self
    }

    /// Returns what it says as one answer of a batch.
    pub(crate) fn in_batch(self) -> Value {
        let Inner { status, detail, mut members, .. } = *self.0;
        members.insert("status".to_owned(), status.as_u16().into());
        members.insert("detail".to_owned(), detail.into());
        Value::Object(members)
    }

    /// Returns the sentence for people.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Inner { status, detail, members, allow } = *self.0;
        let title = status.canonical_reason().unwrap_or("Error");
        let body = Body {
            r#type: "about:blank",
            title,
            status: status.as_u16(),
            detail: &detail,
            members: &members,
        };
        let mut response = (status, json(&body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(allow) = allow {
            headers.insert(ALLOW, allow);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        if status == StatusCode::PAYLOAD_TOO_LARGE || status == StatusCode::REQUEST_TIMEOUT {
            // What is left of the body is not read, so the connection cannot be used again.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Writes a value of ours as JSON.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    // Our answers are structs with string keys and finite numbers: nothing in them can fail to be written.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Finds what was probably meant among the names there are.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long word is compared in time proportional to its length times the name's: an outsider's length is cut. So is the
    // number of names, for a file may have ten thousand policies and a caller may slip as often as he likes.
    let word: String = word.chars().take(64).collect();
    names
        .into_iter()
        .take(500)
        .map(|name| (strsim::damerau_levenshtein(&word, name), name))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Quotes an outsider's words, cut to a length that fits a sentence.
pub(crate) fn quoted(word: &str) -> String {
    format!("`{}`", tidegate::visible::excerpt(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_word_and_nonsense_finds_none() {
        let names = ["attributes", "cost", "policies"];
        assert_eq!(nearest("atributes", names), Some("attributes"));
        assert_eq!(nearest("Polices", names), Some("policies"));
        assert_eq!(nearest("xylophone", names), None);
    }

    #[test]
    fn quoted_words_are_cut_and_escaped() {
        assert_eq!(quoted("a\nb"), "`a\\nb`");
        assert!(quoted(&"é".repeat(1000)).len() < 200);
    }
}
