//! Deadline layers of a client: one bounds a try and tells the next service how much time is left, the other bounds the
//! whole call, outside of the retries.

use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tidegate::deadline::{self, Timeouts};
use tidegate::observer::RefusalCause;
use tower_layer::{Identity, Layer};
use tower_service::Service;

use super::serve::{DeadlineFuture, DeadlineLayer, Scope, Until};
use super::{DeadlineRules, knobs, read, write};
use crate::answers::{Answers, Errors};
use crate::body::{AtBodyEnd, AtHead, BoundsUntil};
use crate::call_notes::is_only_ceiling;
use crate::classify::{GRPC_STATUS, LittleTime, is_grpc};
use crate::layered::{Layered, give_back};
use crate::refused::Refused;

/// Tells the next service how much time it has, for a client: the default of [`Timeouts`], or the time left to the
/// deadline that the task [carries](tidegate::deadline::carried) if that is less; minus the margin.
///
/// By itself it bounds one try: retries and waits in outer layers take time in addition. A
/// [`ClientStack`](crate::ClientStack) makes a second layer of it ([`WholeCallLayer`](crate::parameter::WholeCallLayer)),
/// which bounds the whole call by the ceiling.
///
/// gRPC requests get the header `grpc-timeout`, others `x-envoy-expected-rq-timeout-ms` or a [header of your
/// choice](Self::in_header). If the request already names a shorter time, that stays. A call with no time left is not
/// made. A call without an answer in time is given up. An error that comes after the time told to the service counts as
/// such a timeout too, since a channel of tonic ends a call by the same time; but a [`Refused`](crate::Refused) of a layer
/// inside is [returned as it is](crate::Refused::of_error). The cause of a timeout is
/// [`TimedOut`](tidegate::observer::RefusalCause::TimedOut) if the called service had at least half of the default time, or
/// the time that the request itself named. With less time left of the carried deadline it is
/// [`CutShort`](tidegate::observer::RefusalCause::CutShort), which does not count against the called service.
///
/// A called service that knows the deadline often answers first that its time was up: with 504, or with gRPC's
/// `DEADLINE_EXCEEDED`. The answer is returned unchanged. If less time was left than that half, it gets a
/// [`Refused`](crate::Refused) with the cause `CutShort` among its extensions, unless it has one, so that it does not
/// count against the service either.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use axum::http::{Request, Response};
/// use tidegate::deadline::Timeouts;
/// use tidegate_tower::ForwardDeadlineLayer;
/// use tower::{BoxError, Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let client = service_fn(|request: Request<String>| async move {
///     let told = request.headers()["x-envoy-expected-rq-timeout-ms"].to_str()?.to_owned();
///     Ok::<_, BoxError>(Response::new(told))
/// });
/// // One second for a try, or what is left of a carried deadline if that is less.
/// let timeouts = Timeouts::new(Duration::from_secs(1), Duration::from_secs(10))?;
/// let client = ForwardDeadlineLayer::new(timeouts).layer(client);
/// let told = client.oneshot(Request::get("/").body(String::new())?).await?.into_body();
/// assert!(told.parse::<u64>()? <= 1000, "{told}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ForwardDeadlineLayer<A = Errors, U = AtHead> {
    rules: Arc<DeadlineRules<A>>,
    until: PhantomData<U>,
}

impl ForwardDeadlineLayer {
    /// Makes a layer that tells the next service the time these rules leave it. The default is the time of one try.
    /// Refusals are [`Errors`] unless [chosen otherwise](Self::answering).
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        let rules = DeadlineRules { is_of_client: true, ..DeadlineRules::new(timeouts, Errors) };
        Self { rules: Arc::new(rules), until: PhantomData }
    }
}

impl<A> ForwardDeadlineLayer<A> {
    /// Bounds the body of an answer too: at the deadline of the call the body ends with an error, a
    /// [`Refused`](crate::Refused). By default the deadline bounds the head only. The service then answers with a
    /// [`TimedBody`](crate::body::TimedBody). An error of the body that comes once the time told to the service is over
    /// counts as the timeout.
    #[must_use]
    pub fn until_body_ends(self) -> ForwardDeadlineLayer<A, AtBodyEnd> {
        ForwardDeadlineLayer { rules: self.rules, until: PhantomData }
    }
}

knobs!(ForwardDeadlineLayer);

impl<S, A, U> Layer<S> for ForwardDeadlineLayer<A, U> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, A, B, R, U> Service<Request<B>> for Layered<S, ForwardDeadlineLayer<A, U>>
where
    S: Service<Request<B>, Response = Response<R>, Error: 'static> + Clone,
    A: Answers<Response<R>, S::Error>,
    U: BoundsUntil<Response<R>>,
{
    type Response = U::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, Response<R>, S::Error, A, U>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        let DeadlineRules { timeouts, needs, clock, header, .. } = &**rules;
        let now = clock.now();
        let by_default = timeouts.deadline(now, None);
        // A try takes no more than its own time, however much the caller gives: the rest is for another try.
        let carried = deadline::carried().map_or(by_default, |carried| carried.at(clock).min(by_default));
        let own = read(request.headers(), header);
        let until = timeouts.for_step(now, carried, own).map_or(now, |left| now.after(left));
        let left = timeouts.for_next_hop(now, until).filter(|_| timeouts.leaves(now, until, *needs));
        let is_grpc = is_grpc(request.headers());
        if left.is_none_or(|left| !write(request.headers_mut(), is_grpc, header, left)) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        let until = Until { tick: until, began: now, scope: Scope::Try { own_time: until != carried } };
        let mark = if is_grpc { mark_exceeded } else { mark_gateway_timeout };
        DeadlineFuture::until(self.inner.call(request), until, Arc::clone(rules), Some(mark))
    }
}

/// Marks an answer of status 504, by which the called service says that the time was up.
fn mark_gateway_timeout<B>(response: &mut Response<B>, cut_short: &dyn Fn() -> Option<Refused>) {
    if response.status() == StatusCode::GATEWAY_TIMEOUT {
        mark(response, cut_short);
    }
}

/// Marks a gRPC answer with the status `DEADLINE_EXCEEDED` in its headers, or one that may have it in its trailers.
fn mark_exceeded<B>(response: &mut Response<B>, cut_short: &dyn Fn() -> Option<Refused>) {
    match response.headers().get(GRPC_STATUS) {
        Some(status) if status == "4" => mark(response, cut_short),
        Some(_) => {}
        None => {
            if cut_short().is_some() {
                response.extensions_mut().insert(LittleTime);
            }
        }
    }
}

/// Marks an answer with the refusal that `cut_short` returns, if any, unless it has one. A breaker outside then does not
/// count it.
#[cold]
fn mark<B>(response: &mut Response<B>, cut_short: &dyn Fn() -> Option<Refused>) {
    if Refused::of_response(response).is_none()
        && let Some(refused) = cut_short()
    {
        response.extensions_mut().insert(refused);
    }
}

/// A deadline layer of a client that bounds each try, from which [`ClientStack`](crate::ClientStack) makes the layer that
/// bounds the whole call: [`ForwardDeadlineLayer`], or `Identity` for none. With a [`DeadlineLayer`] in that place nothing
/// bounds the whole call.
///
/// # Examples
/// A layer of the program's own that bounds each try, in a stack that does not bound the whole call:
/// ```
/// use std::time::Duration;
/// use tidegate_tower::ClientStack;
/// use tidegate_tower::parameter::BoundsCalls;
/// use tower_layer::{Identity, Layer};
///
/// #[derive(Clone)]
/// struct TryTimeout(Duration);
///
/// impl BoundsCalls for TryTimeout {
///     type WholeCall = Identity;
///     fn whole_call(&self) -> Identity {
///         Identity::new()
///     }
/// }
/// # impl<S> Layer<S> for TryTimeout {
/// #     type Service = S;
/// #     fn layer(&self, inner: S) -> S { inner }
/// # }
///
/// let stack = ClientStack::new().deadline(TryTimeout(Duration::from_secs(1)));
/// # let _ = stack;
/// ```
pub trait BoundsCalls {
    /// The layer around the retries.
    type WholeCall;

    /// Makes the layer around the retries.
    fn whole_call(&self) -> Self::WholeCall;
}

impl BoundsCalls for Identity {
    type WholeCall = Self;

    fn whole_call(&self) -> Self {
        Self::new()
    }
}

/// The time that a request names bounds a try, and nothing bounds the whole call.
impl<A, U> BoundsCalls for DeadlineLayer<A, U> {
    type WholeCall = Identity;

    fn whole_call(&self) -> Identity {
        Identity::new()
    }
}

impl<A, U> BoundsCalls for ForwardDeadlineLayer<A, U> {
    type WholeCall = WholeCallLayer<A>;

    fn whole_call(&self) -> WholeCallLayer<A> {
        WholeCallLayer { rules: Arc::clone(&self.rules) }
    }
}

/// Bounds a client's whole call by the ceiling of its [`ForwardDeadlineLayer`], or by the deadline that the task
/// [carries](tidegate::deadline::carried) if that is earlier: waits for a turn, tries, and waits between tries together.
/// [`ClientStack`](crate::ClientStack) puts it around the retries.
///
/// A call for which no time is left is refused before it takes anything. A call that is not done in time is given up;
/// usually the part of it that waits is the first to notice.
///
/// Costs a reading of the clock, and a timer for a call that is not answered at the first poll.
#[derive(Debug)]
pub struct WholeCallLayer<A = Errors> {
    rules: Arc<DeadlineRules<A>>,
}

impl<A> Clone for WholeCallLayer<A> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S, A> Layer<S> for WholeCallLayer<A> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, A, B> Service<Request<B>> for Layered<S, WholeCallLayer<A>>
where
    S: Service<Request<B>, Error: 'static> + Clone,
    A: Answers<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, S::Response, S::Error, A, AtHead>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        let (now, carried) = (rules.clock.now(), deadline::carried());
        let ceiling = now.after(rules.timeouts.ceiling());
        let tick = carried.map_or(ceiling, |carried| carried.at(&rules.clock).min(ceiling));
        if !rules.timeouts.leaves(now, tick, rules.needs) {
            give_back(&mut self.inner);
            return DeadlineFuture::refused(rules.refuse(RefusalCause::NoTimeLeft));
        }
        let only_ceiling = carried.is_none_or(is_only_ceiling);
        let until = Until { tick, began: now, scope: Scope::WholeCall { only_ceiling } };
        let future = until.within(|| self.inner.call(request));
        DeadlineFuture::until(future, until, Arc::clone(rules), None)
    }
}
