//! So many requests at once, with a bounded line before them.

mod future;
mod rules;

use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate::Bulkhead;
use tidegate::http_answer::NamedLimit;
use tower_layer::Layer;
use tower_service::Service;

pub use self::future::ConcurrencyFuture;
use self::rules::Rules;
use crate::answers::{Answers, Problems};
use crate::classify::{ByStatus, Classify};
use crate::ready::take_ready;

/// Limits how many calls a service works on at once. Clones share the places.
///
/// Who finds no place stands in the bulkhead's line, as long as there is room in it and until the deadline that the task carries; everybody
/// else is refused. A place is taken when the request's turn comes and is returned when the answer's head is there, or when the future is
/// dropped.
///
/// # Examples
/// ```
/// use axum::{Router, routing::get};
/// use tidegate::Bulkhead;
/// use tidegate_tower::ConcurrencyLayer;
///
/// // 64 at once; 128 more wait.
/// let places = Bulkhead::new(64)?.with_room(128);
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(ConcurrencyLayer::new("pages", places));
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLayer<C = ByStatus, A = Problems> {
    bulkhead: Bulkhead,
    rules: Arc<Rules<C, A>>,
}

impl ConcurrencyLayer {
    /// Limits calls to the places of a bulkhead, under a name that callers are told.
    #[must_use]
    pub fn new(name: &str, bulkhead: Bulkhead) -> Self {
        let told = NamedLimit::of_places(name);
        Self {
            bulkhead,
            rules: Arc::new(Rules { name: name.into(), told, classify: ByStatus, answers: Problems }),
        }
    }
}

impl<C: Clone, A: Clone> ConcurrencyLayer<C, A> {
    /// Chooses how refusals are told; [`Problems`] unless chosen.
    #[must_use]
    pub fn answering<B>(self, answers: B) -> ConcurrencyLayer<C, B> {
        let Rules { name, told, classify, .. } = Arc::unwrap_or_clone(self.rules);
        ConcurrencyLayer { bulkhead: self.bulkhead, rules: Arc::new(Rules { name, told, classify, answers }) }
    }

    /// Chooses how the end of a call is judged, for limits that move; [`ByStatus`] unless chosen.
    #[must_use]
    pub fn judging<D>(self, classify: D) -> ConcurrencyLayer<D, A> {
        let Rules { name, told, answers, .. } = Arc::unwrap_or_clone(self.rules);
        ConcurrencyLayer { bulkhead: self.bulkhead, rules: Arc::new(Rules { name, told, classify, answers }) }
    }
}

impl<S, C, A> Layer<S> for ConcurrencyLayer<C, A> {
    type Service = Concurrency<S, C, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Concurrency { inner, bulkhead: self.bulkhead.clone(), rules: Arc::clone(&self.rules) }
    }
}

/// A service of which so many calls are worked on at once: see [`ConcurrencyLayer`].
#[derive(Clone, Debug)]
pub struct Concurrency<S, C = ByStatus, A = Problems> {
    inner: S,
    bulkhead: Bulkhead,
    rules: Arc<Rules<C, A>>,
}

impl<S, Req, C, A> Service<Req> for Concurrency<S, C, A>
where
    S: Service<Req> + Clone,
    C: Classify<S::Response, S::Error>,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, Req, C, A>;

    /// Says whether the service within is ready; takes no place.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let rules = Arc::clone(&self.rules);
        if let Ok(permit) = self.bulkhead.try_enter() {
            return ConcurrencyFuture::called(permit, self.inner.call(request), rules);
        }
        let mut entry = self.bulkhead.enter();
        if let Some(deadline) = tidegate::deadline::carried() {
            entry = entry.until(deadline);
        }
        ConcurrencyFuture::in_line(entry, take_ready(&mut self.inner), request, rules)
    }
}
