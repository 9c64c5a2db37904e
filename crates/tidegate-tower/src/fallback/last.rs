//! The last good answer of a request's key, in place of a failure.
//!
//! What is kept is chosen by the service, and is not the response: a response has cookies, ranges and answers to
//! conditions of one caller, and its body can be read once.

use std::fmt;
use std::hash::Hash;

use http::header::AGE;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use tidegate::fallback::LastAnswers;
use tidegate::observer::RefusalCause;

use super::stand_in::{StandIn, StandsIn};
use crate::refused::Refused;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// What a [`FallbackLayer::last`](crate::FallbackLayer::last) is to keep of an answer: an extension of the response. The
/// layer takes it out. It has to hold the type that the layer's function shows; another type is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep<T>(pub T);

/// The last good answer of each key: see [`FallbackLayer::last`](crate::FallbackLayer::last).
#[derive(Clone)]
pub struct LastOfKey<K, T, G, W> {
    answers: LastAnswers<K, T>,
    key: G,
    show: W,
}

impl<K, T, G, W> LastOfKey<K, T, G, W> {
    pub(super) const fn new(answers: LastAnswers<K, T>, key: G, show: W) -> Self {
        Self { answers, key, show }
    }
}

impl<K, T, G, W> fmt::Debug for LastOfKey<K, T, G, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastOfKey").field("answers", &self.answers).finish_non_exhaustive()
    }
}

impl<K, T, G, W, Sent, Got, Err> StandsIn<Request<Sent>, Response<Got>, Err> for LastOfKey<K, T, G, W>
where
    K: Hash + Eq + Clone,
    T: Clone + Send + Sync + 'static,
    G: Fn(&Request<Sent>) -> K,
    W: Fn(T) -> Response<Got> + Clone,
    Err: 'static,
{
    type Call = LastOfCall<K, T, W>;

    fn of(&self, request: &Request<Sent>) -> LastOfCall<K, T, W> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let key = is_read.then(|| (self.key)(request));
        LastOfCall { answers: self.answers.clone(), key, show: self.show.clone() }
    }
}

/// The last good answer of one request's key.
pub struct LastOfCall<K, T, W> {
    answers: LastAnswers<K, T>,
    /// `None` for requests that change something.
    key: Option<K>,
    show: W,
}

impl<K, T, W> fmt::Debug for LastOfCall<K, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastOfCall").finish_non_exhaustive()
    }
}

impl<K, T, W, B, Err> StandIn<Response<B>, Err> for LastOfCall<K, T, W>
where
    K: Hash + Eq + Clone,
    T: Clone + Send + Sync + 'static,
    W: Fn(T) -> Response<B>,
    Err: 'static,
{
    fn keep(self, answer: &mut Response<B>) {
        if let (Some(Keep(kept)), Some(key)) = (answer.extensions_mut().remove(), self.key) {
            self.answers.keep(key, kept);
        }
    }

    fn in_place(self, failed: Result<Response<B>, Err>, tell: impl FnOnce()) -> Result<Response<B>, Err> {
        if is_for_this_caller(&failed) {
            return failed;
        }
        let Some((kept, age)) = self.key.and_then(|key| self.answers.last(&key)) else { return failed };
        tell();
        let mut answer = (self.show)(kept);
        let headers = answer.headers_mut();
        headers.append(CACHE_STATUS, status_of(&failed));
        headers.insert(AGE, age.as_secs().into());
        Ok(answer)
    }
}

/// Returns whether a failure tells this caller what it may do, so that a good answer would hide that.
fn is_for_this_caller<B, Err: 'static>(failed: &Result<Response<B>, Err>) -> bool {
    let cause = |refused: Option<&Refused>| refused.map(|refused| refused.cause);
    match failed {
        // A policy also refuses for the sake of an overloaded service: its status says which it is.
        Ok(answer) => {
            answer.status().is_client_error()
                || cause(Refused::of_response(answer)) == Some(RefusalCause::RateLimit)
        }
        Err(error) => matches!(
            cause(Refused::of_error(error)),
            Some(RefusalCause::RateLimit | RefusalCause::NoKey | RefusalCause::Policy)
        ),
    }
}

/// Says in the words of RFC 9211 that the request was passed on, because the kept answer was not fresh, and how that ended.
fn status_of<B, Err>(failed: &Result<Response<B>, Err>) -> HeaderValue {
    match failed {
        Ok(answer) => {
            let told = format!("tidegate; fwd=stale; fwd-status={}", answer.status().as_u16());
            HeaderValue::try_from(told).expect("words and a number are a header's value")
        }
        Err(_) => HeaderValue::from_static("tidegate; fwd=stale; detail=error"),
    }
}
