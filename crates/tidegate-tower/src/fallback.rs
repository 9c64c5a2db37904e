//! Fallback layer: replaces answers that failed.

use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::header::{AGE, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::{ByStatus, Classify};
use crate::guarded::EachKey;
use crate::layered::Layered;
use crate::refused::{Name, Refused};
use tidegate::Outcome;
use tidegate::breaker::fallback::LastAnswers;
use tidegate::observer::{LayerDid, Observer, RefusalCause};

/// Replaces an answer that failed, including a refusal by an inner layer, by the answer that a function returns.
///
/// The function is given the failed answer and may return it unchanged. Answers that succeeded, or that failed by the
/// caller's own mistake, are not touched. To choose by the request, take [`FallbackLayer::each`]; to show the last good
/// answer, [`FallbackLayer::last`]. A call that is dropped keeps and replaces nothing.
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

impl<F, G> FallbackLayer<EachKey<F, G>> {
    /// Makes a layer that chooses the answer in place of a failure by a part of the request, such as the path. `key` reads
    /// that part before the service is called; `in_place` gets it with the failed answer.
    ///
    /// Costs one call of `key` for each request, also when nothing fails.
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
        Self::new(EachKey { of: in_place, key })
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
    /// A caller that can send a request with the key of another is shown the other's answer while the service fails. Take
    /// the user from what an outer layer has verified: checks of inner layers or of the service may not have run when this
    /// layer answers. See [`LastAnswers`] for what bounds its memory, and which answer is evicted.
    ///
    /// * It acts on `GET` and `HEAD` only.
    /// * Answers of status 4xx, refusals by a rate limit, and refusals by a policy that come as an error are left as they
    ///   are: an answer such as 401, 403 or 429 is meant for this caller.
    /// * Only answers judged to be a success are kept, when their head is there: no cookie, no other header, no body.
    /// * The answer says that it is a stand-in: `cache-status: tidegate; fwd=stale; fwd-status=503` with the status of the failed
    ///   answer (for an error `detail=error` stands in its place), and `age` in seconds.
    ///
    /// Costs two reference counts and what `key` costs for each request, and [`LastAnswers::keep`] for an answer that is
    /// kept.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use axum::{Extension, Router, extract::Request, response::{IntoResponse, Response}, routing::get};
    /// use tidegate::breaker::fallback::LastAnswers;
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
        Self::new(LastOfKey { answers, key, show })
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
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, Req, F, C> Service<Req> for Layered<S, FallbackLayer<F, C>>
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
        let FallbackLayer { in_place, classify, name } = &self.layer;
        let stand_in = Some(in_place.of(&request));
        let future = self.inner.call(request);
        FallbackFuture { future, stand_in, classify: classify.clone(), name: name.clone() }
    }
}

pin_project! {
    /// A call with a fallback.
    #[derive(Debug)]
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

// What is kept of the last good answer is chosen by the service, and is not the response: that has cookies, ranges and
// answers to conditions of one caller, and its body can be read once.

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

/// What answers in place of failed calls of one kind: a function of the failed answer, a function of a request's key and
/// the failed answer ([`EachKey`](crate::parameter::EachKey)), or the last good answer of the key
/// ([`LastOfKey`](crate::parameter::LastOfKey)).
pub trait StandsIn<Req, Res, Err> {
    /// What answers in place of one call.
    type Call: StandIn<Res, Err>;

    /// Reads what it needs of a request, before the service is called.
    fn of(&self, request: &Req) -> Self::Call;
}

/// What answers in place of one call: see [`StandsIn`].
pub trait StandIn<Res, Err>: Sized {
    /// Is given an answer that is a success; keeps nothing by default.
    fn keep(self, answer: &mut Res) {
        let _ = answer;
    }

    /// Returns the answer in place of a failed one. Calls `tell` if it has one.
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err>;
}

impl<Req, Res, Err, F> StandsIn<Req, Res, Err> for F
where
    F: Fn(Result<Res, Err>) -> Result<Res, Err> + Clone,
{
    type Call = F;

    fn of(&self, _: &Req) -> F {
        self.clone()
    }
}

impl<Res, Err, F: Fn(Result<Res, Err>) -> Result<Res, Err>> StandIn<Res, Err> for F {
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err> {
        tell();
        self(failed)
    }
}

impl<Req, Res, Err, K, G, F> StandsIn<Req, Res, Err> for EachKey<F, G>
where
    G: Fn(&Req) -> K,
    F: Fn(K, Result<Res, Err>) -> Result<Res, Err> + Clone,
{
    type Call = WithKey<K, F>;

    fn of(&self, request: &Req) -> WithKey<K, F> {
        WithKey { key: (self.key)(request), in_place: self.of.clone() }
    }
}

/// The function and the key of one request.
#[derive(Debug)]
pub struct WithKey<K, F> {
    key: K,
    in_place: F,
}

impl<Res, Err, K, F> StandIn<Res, Err> for WithKey<K, F>
where
    F: Fn(K, Result<Res, Err>) -> Result<Res, Err>,
{
    fn in_place(self, failed: Result<Res, Err>, tell: impl FnOnce()) -> Result<Res, Err> {
        tell();
        (self.in_place)(self.key, failed)
    }
}
