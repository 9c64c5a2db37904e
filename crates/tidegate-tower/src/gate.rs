//! Gate layer: puts the policies of a gate around a service. A request is charged to all policies or to none.

mod passing;

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use http::header::HeaderName;
use tower_layer::Layer;
use tower_service::Service;

pub use self::passing::HeldAdmission;
use crate::answers::{Answers, Problems};
use crate::body::{AtBodyEnd, AtHead, HoldsUntil};
use crate::classify::{ByStatus, Classify};
use crate::layered::{Layered, take_ready};
use crate::refused::Name;
use tidegate::http_answer::over;
use tidegate::observer::Observer;
use tidegate::policy::Descriptor;
use tidegate::priority::Priority;
use tidegate::{Cost, Gate, priority};

/// Puts a service behind the policies of a gate (rate limits, places, breakers). Clones share the gate.
///
/// [`Describe`] turns a request into the attributes that policies match and count by. If one limit refuses it, no other
/// limit is charged. Each policy says how its refusal is answered; the headers of the answer show all limits. When the
/// service has answered, limits are settled and places returned, with the outcome by [`Classify`]. A request that a queue
/// delays waits first; only then is the service asked whether it is ready.
///
/// The deadline that the task [carries](tidegate::deadline::carried), from a [`DeadlineLayer`](crate::DeadlineLayer)
/// outside, is stated to the policies ([`Gate::state_time_left`]): one with a
/// [deadline](tidegate::policy::Policy::deadline) refuses requests that have less time left, and no queue delays a request
/// beyond it. If an engine has not decided by then, the request is refused as by a deadline layer (504).
///
/// The service carries the [priority](tidegate::priority::carried) that the request was admitted with: the one from
/// `describe`, or a lower one if a policy demotes the request. A request that passes although it is over a limit
/// (`over: mark` and `over: demote` of the policy file) reaches the service with [headers](tidegate::http_answer::over)
/// that say so, in place of the caller's. If no policy of the gate marks or demotes, the caller's stay, since a proxy in
/// front may have written them; at the edge [remove](tidegate::http_answer::over::remove) them.
///
/// If a store fails when a request ends, the observer is told
/// ([`LayerDid::NotSettled`](tidegate::observer::LayerDid::NotSettled)), and the answer is returned unchanged. So it is if
/// an engine takes longer than a second, or longer than the carried deadline; it then settles in the background.
///
/// # Cancel safety
/// A request that is dropped before the service was called is charged nothing, and so is a request that a layer inside
/// refuses [before any work has begun](crate::Refused::is_before_work). A request that is dropped later returns its places
/// and settles what the handler has reported. All other charges stay: the service may have done the work, and a caller
/// could otherwise undo its charge by hanging up.
///
/// # Costs
/// As much as [`Gate::admit`], and an allocation for the future.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use axum::{Router, extract::Request, routing::get};
/// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
/// use tidegate::{Gate, Quota};
/// use tidegate_tower::GateLayer;
///
/// let all = Policy::new("all", Limit::new(Quota::per_second(1000).gcra()?, "1000/s"));
/// let gate = Arc::new(Gate::in_memory(PolicySet::new(vec![all])?, 100_000)?);
/// let describe = |request: &Request| {
///     Descriptor::new()
///         .with("request.method", request.method().as_str().to_owned())
///         .with("request.path", request.uri().path().to_owned())
/// };
/// let app: Router = Router::new().route("/", get(async || "the page")).layer(GateLayer::new(gate, describe));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GateLayer<D, C = ByStatus, A = Problems, U = AtHead> {
    rules: Arc<GateRules<D, C, A>>,
    until: PhantomData<U>,
}

impl<D> GateLayer<D> {
    /// Makes a layer that asks `gate` about each request, described by `describe`.
    #[must_use]
    pub fn new(gate: Arc<Gate>, describe: D) -> Self {
        Self { rules: Arc::new(GateRules::new(gate, describe)), until: PhantomData }
    }
}

impl<D: Clone, C: Clone, A: Clone, U> GateLayer<D, C, A, U> {
    /// Chooses how callers are told of refusals; the default is [`Problems`].
    #[must_use]
    pub fn answering<N>(self, answers: N) -> GateLayer<D, C, N, U> {
        self.with(|rules| rules.answering(answers))
    }

    /// Chooses how the outcome of a request is judged; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<N>(self, classify: N) -> GateLayer<D, N, A, U> {
        self.with(|rules| rules.judging(classify))
    }

    /// Adds a [`Spent`](crate::Spent) to the extensions of each request that passes, for policies that [settle by
    /// usage](tidegate::policy::SettleRule). What the handler reports counts if it does so before it answers, or with
    /// [`until_body_ends`](GateLayer::until_body_ends) before the body of the answer ends.
    #[must_use]
    pub fn settling(self) -> Self {
        self.with(|rules| GateRules { settling: true, ..rules })
    }

    /// Chooses what happens to requests that cannot be decided; the default is to refuse them. A request whose own
    /// deadline passes before it is decided is always refused: its caller could otherwise pass without a charge.
    #[must_use]
    pub fn when_undecided(self, undecided: WhenUndecided) -> Self {
        self.with(|rules| GateRules { undecided, ..rules })
    }

    /// Chooses the header that tells the service the lowered priority of a request that a policy demotes, in place of
    /// the caller's header of this name; the default is [`x-tidegate-priority`](tidegate::http_answer::over::PRIORITY). The
    /// headers of the priority layers are chosen at those.
    #[must_use]
    pub fn telling_priority_in(self, name: HeaderName) -> Self {
        self.with(|rules| GateRules { over: rules.over.priority_in(name), ..rules })
    }

    /// Chooses the name that observers are told; the default is `gate`. Callers are told the policy's name instead.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with(|rules| GateRules { name: rules.name.renamed(name), ..rules })
    }

    /// Tells `observer` of refusals and of how requests end ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| GateRules { name: rules.name.observed(observer), ..rules })
    }

    /// Ends a request when the body of its answer has ended, has failed or is dropped, for answers that are streamed.
    /// Until then it holds its places, and policies settle what was reported to [`Spent`](crate::Spent) up to then,
    /// such as the tokens of a language model. By default all of this happens at the head of the answer. The service
    /// then answers with a [`HeldBody`](crate::body::HeldBody), whose page says which end has which outcome. If the
    /// reader goes away before that, places are left, what was reported is settled, and all other charges stay.
    ///
    /// An engine is not awaited at the end of a body: it settles in the background
    /// ([`Finishing::unwatched`](tidegate::gate::Finishing::unwatched)), and the observer is not told if it fails.
    /// Adaptive limits and breakers of the policies take the whole time for the latency of the request, since a store is
    /// not told when the answer began: for streams use those of a [`ConcurrencyLayer`](crate::ConcurrencyLayer) and a
    /// [`BreakerLayer`](crate::BreakerLayer).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use axum::{Extension, Router, body::Body, extract::Request, routing::post};
    /// use http_body_util::BodyExt;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule};
    /// use tidegate::{Gate, Quota};
    /// use tidegate_tower::{GateLayer, Spent};
    ///
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(100_000).gcra()?, "100000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Cost));
    /// let gate = Arc::new(Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?);
    ///
    /// async fn complete(Extension(spent): Extension<Spent>) -> Body {
    ///     // Each frame is a token here; the number is known when the last one was sent.
    ///     let mut sent = 0;
    ///     Body::new(Body::from("the tokens").map_frame(move |frame| {
    ///         sent += 1;
    ///         spent.settle(sent);
    ///         frame
    ///     }))
    /// }
    ///
    /// let layer = GateLayer::new(gate, |_: &Request| Descriptor::new()).settling().until_body_ends();
    /// let app: Router = Router::new().route("/complete", post(complete)).layer(layer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn until_body_ends(self) -> GateLayer<D, C, A, AtBodyEnd> {
        GateLayer { rules: self.rules, until: PhantomData }
    }

    fn with<M, N>(
        self,
        change: impl FnOnce(GateRules<D, C, A>) -> GateRules<D, M, N>,
    ) -> GateLayer<D, M, N, U> {
        GateLayer { rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))), until: PhantomData }
    }
}

impl<D, C, A, U> Clone for GateLayer<D, C, A, U> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), until: PhantomData }
    }
}

impl<S, D, C, A, U> Layer<S> for GateLayer<D, C, A, U> {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: self.clone() }
    }
}

impl<S, D, C, A, B, U> Service<Request<B>> for Layered<S, GateLayer<D, C, A, U>>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    B: Send + 'static,
    D: Describe<Request<B>> + Send + Sync + 'static,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    A: Answers<S::Response, S::Error> + Send + Sync + 'static,
    U: HoldsUntil<S::Response, HeldAdmission> + 'static,
{
    type Response = U::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<U::Response, S::Error>> + Send>>;

    /// Asks whether the inner service is ready; charges nothing.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ready = take_ready(&mut self.inner);
        let later = self.inner.clone();
        let deadline = tidegate::deadline::carried();
        Box::pin(Arc::clone(&self.layer.rules).pass::<_, _, U>(ready, later, request, deadline))
    }
}

/// Describes requests to a gate. Implemented for functions that return a descriptor.
///
/// Do not trust what a stranger sends: take a client's address from the connection or from a known proxy, and its
/// account from the component that has authenticated it.
pub trait Describe<Req> {
    /// Returns the attributes that policies match and count by: see [`Descriptor`] for their names. Without a
    /// [`DeadlineLayer`](crate::DeadlineLayer) outside, policies with a deadline and queues read
    /// `request.header.grpc-timeout` and `request.header.x-envoy-expected-rq-timeout-ms`.
    fn describe(&self, request: &Req) -> Descriptor<'static>;

    /// Returns what the request costs, or its estimated cost. `None`, the default, leaves the cost to the policies.
    fn cost(&self, request: &Req) -> Option<Cost> {
        let _ = request;
        None
    }

    /// Returns how much the request matters. Unless overridden, that is the priority that the task
    /// [carries](tidegate::priority::carried), else [`Criticality::Critical`](tidegate::priority::Criticality::Critical). The
    /// priority decides who is refused first, so do not let strangers choose it.
    fn priority(&self, request: &Req) -> Priority {
        let _ = request;
        priority::carried().unwrap_or_default()
    }
}

impl<Req, F: Fn(&Req) -> Descriptor<'static>> Describe<Req> for F {
    fn describe(&self, request: &Req) -> Descriptor<'static> {
        self(request)
    }
}

/// What happens to requests that cannot be decided because a store does not answer and has no fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenUndecided {
    /// They are refused with 503. The default, because a limit that fails together with its store protects nothing.
    #[default]
    Refuse,
    /// They pass and are not charged.
    Pass,
}

/// The settings of a gate layer.
#[derive(Clone, Debug)]
struct GateRules<D, C, A> {
    gate: Arc<Gate>,
    describe: D,
    name: Name,
    classify: C,
    answers: A,
    settling: bool,
    undecided: WhenUndecided,
    over: over::Headers,
}

impl<D> GateRules<D, ByStatus, Problems> {
    fn new(gate: Arc<Gate>, describe: D) -> Self {
        Self {
            gate,
            describe,
            name: Name::new("gate"),
            classify: ByStatus,
            answers: Problems,
            settling: false,
            undecided: WhenUndecided::default(),
            over: over::Headers::default(),
        }
    }
}

impl<D, C, A> GateRules<D, C, A> {
    fn answering<N>(self, answers: N) -> GateRules<D, C, N> {
        let Self { gate, describe, name, classify, settling, undecided, over, .. } = self;
        GateRules { gate, describe, name, classify, answers, settling, undecided, over }
    }

    fn judging<N>(self, classify: N) -> GateRules<D, N, A> {
        let Self { gate, describe, name, answers, settling, undecided, over, .. } = self;
        GateRules { gate, describe, name, classify, answers, settling, undecided, over }
    }
}
