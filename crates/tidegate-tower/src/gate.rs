//! Gate layer: puts the policies of a gate around a service. A request is charged to all policies or to none.

mod describe;
mod inside;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderName, Request};
use tidegate::http_answer::{HttpAnswer, over};
use tidegate::observer::{Observer, RefusalCause};
use tidegate::store::{DecidedBy, StoreError};
use tidegate::{Admission, Check, Entry, Gate, GateDecision, Priority, Retry, priority};
use tower_layer::Layer;
use tower_service::Service;

pub use self::describe::Describe;
use self::inside::InGate;
use crate::answers::{Answers, Problems};
use crate::classify::{ByStatus, Classify};
use crate::given_up::Made;
use crate::name::Name;
use crate::poll_notes::TURN_CAME;
use crate::ready::take_ready;
use crate::spent::Spent;

/// Puts a service behind the policies of a gate (rate limits, places, breakers). Clones share the gate.
///
/// [`Describe`] turns a request into the attributes that policies match and count by. The request is admitted or
/// refused as a whole: if one limit refuses it, no other limit is charged. Each policy says how its refusal is
/// answered; the headers of the answer show all limits. When the service has answered, limits are settled and places
/// returned, with the outcome by [`Classify`]. A request that a queue delays waits first; only then is the service
/// asked whether it is ready.
///
/// The deadline that the task [carries](tidegate::deadline::carried), from a [`DeadlineLayer`](crate::DeadlineLayer)
/// outside, is stated to the policies in force ([`Gate::state_time_left`]): one with a
/// [deadline](tidegate::Policy::deadline) refuses requests that have less time left, and no queue delays a request
/// beyond it. If an engine has not decided by then, the request is refused as by a deadline layer (504), whatever
/// [`when_undecided`](GateLayer::when_undecided) says.
///
/// The service carries the [priority](tidegate::priority::carried) that the request was admitted with: the one from
/// `describe`, or a lower one if a policy demotes the request. A request that passes although it is over a limit
/// (`over: mark` and `over: demote` of the policy file) tells the service so in [headers](tidegate::http_answer::over),
/// which replace the caller's headers of these names.
///
/// If a store fails when a request ends, the observer is told
/// ([`LayerDid::NotSettled`](tidegate::observer::LayerDid::NotSettled)), and the answer is returned unchanged.
///
/// A request that is dropped before the service was called has spent nothing. A request that is dropped later leaves
/// its places but keeps what limits were charged, because the service may have done the work: otherwise a caller could
/// undo its charge by hanging up.
///
/// Costs as much as [`Gate::admit`], and an allocation for the future.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use axum::{Router, extract::Request, routing::get};
/// use tidegate::policy::Limit;
/// use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
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
pub struct GateLayer<D, C = ByStatus, A = Problems> {
    rules: Arc<Rules<D, C, A>>,
}

/// What happens to requests that cannot be decided because a store does not answer and has no fallback. Requests that run
/// out of their own time first are refused with 504 in both cases.
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
struct Rules<D, C, A> {
    gate: Arc<Gate>,
    describe: D,
    name: Name,
    classify: C,
    answers: A,
    settling: bool,
    undecided: WhenUndecided,
    over: over::Headers,
}

impl<D> GateLayer<D> {
    /// Makes a layer that asks `gate` about each request, described by `describe`.
    #[must_use]
    pub fn new(gate: Arc<Gate>, describe: D) -> Self {
        let rules = Rules {
            gate,
            describe,
            name: Name::new("gate"),
            classify: ByStatus,
            answers: Problems,
            settling: false,
            undecided: WhenUndecided::default(),
            over: over::Headers::default(),
        };
        Self { rules: Arc::new(rules) }
    }
}

impl<D: Clone, C: Clone, A: Clone> GateLayer<D, C, A> {
    /// Chooses how callers are told of refusals; the default is [`Problems`].
    #[must_use]
    pub fn answering<N>(self, answers: N) -> GateLayer<D, C, N> {
        let Rules { gate, describe, name, classify, settling, undecided, over, .. } =
            Arc::unwrap_or_clone(self.rules);
        let rules = Rules { gate, describe, name, classify, answers, settling, undecided, over };
        GateLayer { rules: Arc::new(rules) }
    }

    /// Chooses how the outcome of a request is judged; the default is [`ByStatus`].
    #[must_use]
    pub fn judging<N>(self, classify: N) -> GateLayer<D, N, A> {
        let Rules { gate, describe, name, answers, settling, undecided, over, .. } =
            Arc::unwrap_or_clone(self.rules);
        let rules = Rules { gate, describe, name, classify, answers, settling, undecided, over };
        GateLayer { rules: Arc::new(rules) }
    }

    /// Adds a [`Spent`] to the extensions of each request that passes. Policies that [settle by
    /// usage](tidegate::policy::SettleRule) settle what the handler reports to it before it answers.
    #[must_use]
    pub fn settling(self) -> Self {
        self.with(|rules| Rules { settling: true, ..rules })
    }

    /// Chooses what happens to requests that cannot be decided; the default is to refuse them. A request whose own
    /// deadline passes before it is decided is always refused: its caller chooses the time, and is not to get through
    /// uncharged by choosing little.
    #[must_use]
    pub fn when_undecided(self, undecided: WhenUndecided) -> Self {
        self.with(|rules| Rules { undecided, ..rules })
    }

    /// Chooses the header that tells the service the lowered priority of a request that a policy demotes, in place of
    /// the caller's header of this name; the default is [`x-tidegate-priority`](over::PRIORITY). The headers that
    /// [`PriorityLayer`](crate::PriorityLayer) reads and [`ForwardPriorityLayer`](crate::ForwardPriorityLayer) writes
    /// are chosen at those layers.
    #[must_use]
    pub fn telling_priority_in(self, name: HeaderName) -> Self {
        self.with(|rules| Rules { over: rules.over.priority_in(name), ..rules })
    }

    /// Chooses the name that observers are told; the default is `gate`. Callers are told the policy's name instead.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with(|rules| Rules { name: rules.name.renamed(name), ..rules })
    }

    /// Tells `observer` of refusals and of how requests end ([`Observer::on_layer`]).
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.with(|rules| Rules { name: rules.name.observed(observer), ..rules })
    }

    fn with(self, change: impl FnOnce(Rules<D, C, A>) -> Rules<D, C, A>) -> Self {
        Self { rules: Arc::new(change(Arc::unwrap_or_clone(self.rules))) }
    }
}

impl<D, C, A> Clone for GateLayer<D, C, A> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S, D, C, A> Layer<S> for GateLayer<D, C, A> {
    type Service = GateService<S, D, C, A>;

    fn layer(&self, inner: S) -> Self::Service {
        GateService { inner, rules: Arc::clone(&self.rules) }
    }
}

/// A service behind a gate: see [`GateLayer`].
#[derive(Debug)]
pub struct GateService<S, D, C = ByStatus, A = Problems> {
    inner: S,
    rules: Arc<Rules<D, C, A>>,
}

impl<S: Clone, D, C, A> Clone for GateService<S, D, C, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, D, C, A, B> Service<Request<B>> for GateService<S, D, C, A>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    B: Send + 'static,
    D: Describe<Request<B>> + Send + Sync + 'static,
    C: Classify<S::Response, S::Error> + Send + Sync + 'static,
    A: Answers<S::Response, S::Error> + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = GateFuture<S::Response, S::Error>;

    /// Asks whether the inner service is ready; charges nothing.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ready = take_ready(&mut self.inner);
        let later = self.inner.clone();
        let deadline = tidegate::deadline::carried();
        let passing = Arc::clone(&self.rules).pass(ready, later, request, deadline);
        GateFuture { passing: Box::pin(passing) }
    }
}

impl<D, C, A> Rules<D, C, A> {
    /// Asks the gate, calls the service, and settles.
    #[allow(clippy::manual_async_fn, reason = "an async fn keeps each of its arguments twice")]
    fn pass<S, B>(
        self: Arc<Self>,
        mut ready: S,
        mut later: S,
        mut request: Request<B>,
        deadline: Option<tidegate::Deadline>,
    ) -> impl Future<Output = Result<S::Response, S::Error>>
    where
        S: Service<Request<B>>,
        D: Describe<Request<B>>,
        C: Classify<S::Response, S::Error>,
        A: Answers<S::Response, S::Error>,
    {
        async move {
            let mut described = self.describe.describe(&request);
            if let Some(deadline) = deadline {
                self.gate.state_time_left(&mut described, deadline);
            }
            let mut check = Check::of(&described)
                .maybe_cost(self.describe.cost(&request))
                .priority(self.describe.priority(&request));
            check.deadline = deadline;
            let entry = self.gate.admit_owned_async(check).await;
            if self.passes_undecided(&entry) {
                drop(entry);
                if self.gate.policies().lets_through() {
                    self.over.remove(request.headers_mut());
                }
                return ready.call(request).await;
            }
            let mut admission = match entry {
                Ok(Entry::Admitted(admission)) => admission.undo_if_dropped(true),
                Ok(Entry::Refused(decision)) => {
                    let limit_answer = HttpAnswer::of_gate(&decision, &described);
                    return self.refuse(&decision, &limit_answer);
                }
                Err(error) => {
                    let cause = match error {
                        StoreError::DeadlinePassed => RefusalCause::NoTimeLeft,
                        _ => RefusalCause::Undecided,
                    };
                    return self.answers.refuse(self.name.refuse(cause, Retry::Unknown), None);
                }
            };
            if !admission.wait.is_zero() {
                drop(ready);
                // Boxed, because few requests are delayed.
                admission = Box::pin(delayed(admission, &mut later)).await?;
                ready = later;
            }
            if !admission.wait.is_zero() || matches!(admission.by, DecidedBy::Engine | DecidedBy::Fallback) {
                TURN_CAME.leave();
            }
            let spent = self.settling.then(Spent::awaiting_report);
            if let Some(spent) = &spent {
                request.extensions_mut().insert(spent.clone());
            }
            self.over.replace(&admission, request.headers_mut());
            let inside = InGate::new(admission.undo_if_dropped(false), &self.name);
            let mut result = carrying(inside.decision().priority, || Made::new(ready.call(request))).await;
            if let Ok(response) = &mut result {
                self.answers.add_limit_state(response, &HttpAnswer::of_gate(inside.decision(), &described));
            }
            let outcome = self.classify.classify(&result).outcome;
            // If a store fails now, the charge stays and the answer is returned all the same: the work is done.
            let settled = match spent.as_ref().and_then(Spent::usage) {
                // Boxed, because few handlers report what was spent.
                Some(usage) => Box::pin(inside.ended(outcome).finish_by_async(outcome, &usage)).await,
                None => inside.ended(outcome).finish_async(outcome).await,
            };
            if let Err(error) = settled {
                self.name.not_settled(&error);
            }
            result
        }
    }

    /// Returns whether a request passes although no decision about it could be made. It does not if the reason is its
    /// own deadline: its caller chooses that, and would get through uncharged by choosing a short one.
    fn passes_undecided<T>(&self, entry: &Result<T, StoreError>) -> bool {
        let undecided = entry.as_ref().is_err_and(|error| *error != StoreError::DeadlinePassed);
        undecided && self.undecided == WhenUndecided::Pass
    }

    /// Makes the result of a refused call.
    fn refuse<Res, Err>(&self, decision: &GateDecision, limit_answer: &HttpAnswer<'_>) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let too_late = decision.refusal.as_ref().is_some_and(|refusal| refusal.needs.is_some());
        let cause = if too_late { RefusalCause::NoTimeLeft } else { RefusalCause::Policy };
        let mut refused = self.name.refuse(cause, decision.retry());
        if let Some(policy) = limit_answer.policy() {
            refused.by = policy.into();
        }
        self.answers.refuse(refused, Some(limit_answer))
    }
}

/// Waits as long as a queue delays an admission, and then until the service is ready. If it is dropped before that, or
/// the service fails, the admission is undone: the service was not called.
async fn delayed<S: Service<Req>, Req>(
    admission: Admission<Arc<Gate>>,
    service: &mut S,
) -> Result<Admission<Arc<Gate>>, S::Error> {
    let admission = admission.delayed().await;
    poll_fn(|cx| service.poll_ready(cx)).await?;
    Ok(admission)
}

/// Calls a service with `priority` carried. Carries nothing if the service would find the same priority anyway, so that
/// clients inside do not tell others a default priority as if a caller had named it.
async fn carrying<F: Future>(priority: Priority, call: impl FnOnce() -> F) -> F::Output {
    if priority == priority::carried().unwrap_or_default() {
        return call().await;
    }
    let future = priority::carry(priority, call);
    priority::carry_through(priority, future).await
}

/// The future of [`GateService`].
///
/// # Cancel safety
/// See [`GateLayer`].
pub struct GateFuture<Res, Err> {
    passing: Pin<Box<dyn Future<Output = Result<Res, Err>> + Send>>,
}

impl<Res, Err> Future for GateFuture<Res, Err> {
    type Output = Result<Res, Err>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.passing.as_mut().poll(cx)
    }
}

impl<Res, Err> fmt::Debug for GateFuture<Res, Err> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateFuture").finish_non_exhaustive()
    }
}
