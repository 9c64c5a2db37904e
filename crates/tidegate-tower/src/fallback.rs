//! Fallback layer: replaces answers that failed.

mod last;
mod stand_in;

use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate::Outcome;
use tidegate::fallback::LastAnswers;
use tidegate::observer::{LayerDid, Observer};
use tower_layer::Layer;
use tower_service::Service;

pub use self::last::{Keep, LastOfKey};
pub use self::stand_in::{OfKey, StandIn, StandsIn};
use crate::classify::{ByStatus, Classify};
use crate::name::Name;

/// Replaces an answer that failed, including a refusal by an inner layer, by the answer that a function returns.
///
/// The function is given the failed answer and may return it unchanged. Answers that succeeded, or that failed by the
/// caller's own mistake, are not touched. The function does not see the request: to choose by it, take
/// [`FallbackLayer::each`]; to show the last good answer, [`FallbackLayer::last`].
///
/// A future that is dropped drops the call, and keeps and replaces nothing.
///
/// # Examples
/// ```
/// use std::convert::Infallible;
/// use axum::{Router, response::Response, routing::get};
/// use tidegate_tower::FallbackLayer;
///
/// let in_place = |_: Result<Response, Infallible>| Ok::<_, Infallible>(Response::new("what everybody reads".into()));
/// let app: Router = Router::new().route("/", get(async || "for you")).layer(FallbackLayer::new(in_place));
/// ```
#[derive(Clone, Debug)]
pub struct FallbackLayer<F, C = ByStatus> {
    in_place: F,
    classify: C,
    name: Name,
}

impl<F> FallbackLayer<F> {
    /// Makes a layer that asks `in_place` for the answer in place of a failure.
    #[must_use]
    pub fn new(in_place: F) -> Self {
        Self { in_place, classify: ByStatus, name: Name::new("fallback") }
    }
}

impl<G, F> FallbackLayer<OfKey<G, F>> {
    /// Makes a layer that chooses the answer in place of a failure by a part of the request, such as the path: `key` reads
    /// that part before the service is called, and `in_place` gets it together with the failed answer.
    ///
    /// Costs one call of `key` for each request, also when nothing fails. Cloning a shared part of the request, such as its
    /// `Uri`, allocates nothing.
    ///
    /// # Examples
    /// ```
    /// use std::convert::Infallible;
    /// use axum::{Router, extract::Request, http::Uri, response::Response, routing::get};
    /// use tidegate_tower::FallbackLayer;
    ///
    /// let key = |request: &Request| request.uri().clone();
    /// let in_place = |uri: Uri, failed: Result<Response, Infallible>| match uri.path() {
    ///     "/menu" => Ok(Response::new("the menu of last week".into())),
    ///     _ => failed,
    /// };
    /// let app: Router = Router::new().route("/menu", get(async || "today's")).layer(FallbackLayer::each(key, in_place));
    /// ```
    #[must_use]
    pub fn each(key: G, in_place: F) -> Self {
        Self::new(OfKey::new(key, in_place))
    }
}

impl<K: Hash + Eq + Clone, T: Clone, G, W> FallbackLayer<LastOfKey<K, T, G, W>> {
    /// Makes a layer that shows the last good answer of a request's key in place of a failure, until it is too old.
    ///
    /// The service adds what is to be kept to the extensions of a good answer, as a [`Keep`], and `show` makes an answer
    /// from it. `key` reads the key of a request before the service is called. A failed answer is left as it is if there
    /// is nothing recent enough for its key.
    ///
    /// **The key has to include everything that the answer depends on**: the path, the user or the tenant, the language.
    /// A caller that can send a request with the key of another is shown the other's answer while the service fails. So
    /// take the user from what a layer outside of this one has verified, and not from a header that anybody can send: checks
    /// of inner layers or of the service may not have run when this layer answers. See [`LastAnswers`] for what
    /// bounds its memory, and which answer is evicted.
    ///
    /// * It acts on `GET` and `HEAD` only: answers to other methods are neither kept nor replaced.
    /// * Answers of status 4xx, refusals by a rate limit, and refusals by a policy that come as an error are left as they
    ///   are, whatever the judge says: an answer such as 401, 403 or 429 is meant for this caller.
    /// * Only answers judged to be a success are kept, when their head is there. Nothing else of them is kept: no cookie, no
    ///   other header, no body.
    /// * The answer says that it is a stand-in: `cache-status: tidegate; fwd=stale; fwd-status=503` with the status of the failed
    ///   answer (for an error `detail=error` stands in its place), and `age` in seconds.
    ///
    /// Costs two reference counts and what `key` costs for each request, and what [`LastAnswers::keep`] costs for an answer that is
    /// kept.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use axum::{Extension, Router, extract::Request, response::{IntoResponse, Response}, routing::get};
    /// use tidegate::fallback::LastAnswers;
    /// use tidegate_tower::FallbackLayer;
    /// use tidegate_tower::parameter::Keep;
    ///
    /// async fn prices() -> impl IntoResponse {
    ///     let prices = String::from("tea 17");
    ///     (Extension(Keep(prices.clone())), prices)
    /// }
    ///
    /// // The same for all callers, so the path is the whole key.
    /// let key = |request: &Request| request.uri().path().to_owned();
    /// let last = LastAnswers::new(1000, Duration::from_secs(300))?;
    /// let layer = FallbackLayer::last(last, key, |prices: String| Response::new(prices.into()));
    /// let app: Router = Router::new().route("/prices", get(prices)).layer(layer);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    ///
    /// # Source
    /// RFC 5861 for serving stale answers on errors, RFC 9211 for `cache-status`, RFC 9111 for `age`.
    #[must_use]
    pub fn last(answers: LastAnswers<K, T>, key: G, show: W) -> Self {
        Self::new(LastOfKey::new(answers, key, show))
    }
}

impl<F, C> FallbackLayer<F, C> {
    /// Chooses which answers are failures; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<D>(self, classify: D) -> FallbackLayer<F, D> {
        FallbackLayer { in_place: self.in_place, classify, name: self.name }
    }

    /// Chooses the name that observers are told; the default is `fallback`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: self.name.renamed(name), ..self }
    }

    /// Tells `observer` each time an answer is replaced ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { name: self.name.observed(observer), ..self }
    }
}

impl<S, F: Clone, C: Clone> Layer<S> for FallbackLayer<F, C> {
    type Service = FallbackService<S, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        FallbackService {
            inner,
            in_place: self.in_place.clone(),
            classify: self.classify.clone(),
            name: self.name.clone(),
        }
    }
}

/// A service with a fallback: see [`FallbackLayer`].
#[derive(Clone, Debug)]
pub struct FallbackService<S, F, C = ByStatus> {
    inner: S,
    in_place: F,
    classify: C,
    name: Name,
}

impl<S, Req, F, C> Service<Req> for FallbackService<S, F, C>
where
    S: Service<Req>,
    F: StandsIn<Req, S::Response, S::Error>,
    C: Classify<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = FallbackFuture<S::Future, F::Call, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let stand_in = Some(self.in_place.of(&request));
        let future = self.inner.call(request);
        FallbackFuture { future, stand_in, classify: self.classify.clone(), name: self.name.clone() }
    }
}

pin_project! {
    /// The future of [`FallbackService`](crate::service::FallbackService).
    pub struct FallbackFuture<Fut, P, C> {
        #[pin]
        future: Fut,
        // Taken when the call has ended.
        stand_in: Option<P>,
        classify: C,
        name: Name,
    }
}

impl<Fut, P, C, Res, Err> Future for FallbackFuture<Fut, P, C>
where
    Fut: Future<Output = Result<Res, Err>>,
    P: StandIn<Res, Err>,
    C: Classify<Res, Err>,
{
    type Output = Result<Res, Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut result = ready!(this.future.poll(cx));
        let Some(stand_in) = this.stand_in.take() else { return Poll::Ready(result) };
        Poll::Ready(match this.classify.classify(&result).outcome {
            Outcome::Success => {
                if let Ok(answer) = &mut result {
                    stand_in.keep(answer);
                }
                result
            }
            Outcome::CallersFault => result,
            Outcome::Failure | Outcome::Overloaded | Outcome::Ignored => {
                stand_in.in_place(result, || this.name.notify(LayerDid::FellBack))
            }
        })
    }
}

impl<Fut, P, C> fmt::Debug for FallbackFuture<Fut, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackFuture").finish_non_exhaustive()
    }
}
