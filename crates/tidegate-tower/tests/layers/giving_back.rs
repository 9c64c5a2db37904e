//! Charges of requests that a layer inside refuses before any work for them has begun.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tidegate::breaker::{CircuitBreaker, Force};
use tidegate::bulkhead::Permit;
use tidegate::clock::{Clock as _, ManualClock};
use tidegate::deadline::{Timeouts, carry};
use tidegate::gate::Check;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::retries::{Retrier, Retries, RetryBudget, SharedBudget};
use tidegate::{Breaker, Bulkhead, Cost, Gate, KeyedLimiter, Limiter, Quota};
use tidegate_tower::classify::{ByStatus, Classify};
use tidegate_tower::parameter::Answers;
use tidegate_tower::{
    BreakerLayer, ClientLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, Errors, ForwardDeadlineLayer,
    GateLayer, Problems, RateLimitLayer, RefusalCause, Refused, RetryLayer, ServerStack, Spent,
};
use tower::util::BoxCloneService;
use tower::{BoxError, ServiceExt as _};
use tower_layer::{Identity, Layer};

use crate::layers::service::{ScriptedService, answer, call, get, poll, status, with};

const SECOND: Duration = Duration::from_secs(1);

/// A layer whose only place is taken, and that place.
fn busy() -> (ConcurrencyLayer, Permit) {
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let held = places.try_enter().unwrap();
    (ConcurrencyLayer::new("places", places), held)
}

fn limiter() -> Limiter {
    Limiter::new(Quota::per_minute(10)).unwrap().with_clock(ManualClock::default())
}

/// A request that a full queue refused had spent its unit, so callers of a busy server were over their limit as well.
#[test]
fn a_request_that_an_inner_layer_refuses_has_spent_nothing() {
    let (places, _held) = busy();
    let limiter = limiter();
    let ask = |layer: RateLimitLayer<_>| {
        let stack = ServerStack::new().rate_limit(layer).concurrency(places.clone());
        let refused = answer(&mut stack.layer(ScriptedService::default()), get()).unwrap();
        assert_eq!(refused.status(), 503);
        limiter.standing().remaining
    };
    let layer = || RateLimitLayer::all("all", limiter.clone());
    assert_eq!(ask(layer()), 10);
    assert_eq!(ask(layer().waiting(SECOND)), 10);
    assert_eq!(ask(layer().settling()), 10);
    assert_eq!(ask(layer().keeping_charges()), 9);
    assert_eq!(ask(layer().keeping_charges().waiting(SECOND)), 8);
    assert_eq!(ask(layer().keeping_charges().settling()), 7);

    let each = KeyedLimiter::new(Quota::per_minute(10), 10).unwrap().with_clock(ManualClock::default());
    let keyed = RateLimitLayer::each("each", each.clone(), |_: &Request<String>| "key")
        .costing(|_: &Request<String>| Cost::new(4).unwrap());
    answer(&mut keyed.layer(places.layer(ScriptedService::default())), get()).unwrap();
    assert_eq!(each.standing("key").remaining, 10);
    answer(&mut keyed.layer(ScriptedService::default()), get()).unwrap();
    assert_eq!(each.standing("key").remaining, 6, "what was served is charged");
}

#[test]
fn a_gate_takes_back_what_it_charged_a_request_that_an_inner_layer_refuses() {
    let (places, held) = busy();
    let quota = || Quota::per_minute(10).gcra().unwrap();
    let mut logins = Policy::new("logins", Limit::new(quota(), "10/min"));
    logins.charge = tidegate::policy::ChargeOn::Failure;
    let at_once = Policy::new("at once", Limit::new(Quota::concurrency(5, 60 * SECOND).unwrap(), "5"));
    let all = vec![Policy::new("all", Limit::new(quota(), "10/min")), logins, at_once];
    let gate =
        Gate::in_memory(PolicySet::new(all).unwrap(), 1000).unwrap().with_clock(ManualClock::default());
    let gate = Arc::new(gate);
    let left = || {
        let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
        limits.iter().map(|limit| limit.decision.standing.remaining).collect::<Vec<_>>()
    };
    let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new());
    let stack = ServerStack::new().rate_limit(layer).concurrency(places);
    assert_eq!(answer(&mut stack.layer(ScriptedService::default()), get()).unwrap().status(), 503);
    assert_eq!(left(), [10, 10, 5]);
    drop(held);
    assert_eq!(answer(&mut stack.layer(ScriptedService::default()), get()).unwrap().status(), 200);
    assert_eq!(left(), [9, 10, 5]);
}

/// The work had begun, and may have taken effect.
#[test]
fn a_deadline_that_ends_running_work_gives_nothing_back() {
    let (clock, limiter) = (ManualClock::default(), limiter());
    let deadline = DeadlineLayer::within(SECOND, SECOND).unwrap().with_clock(clock.clone());
    let limit = RateLimitLayer::all("all", limiter.clone());
    let mut service = limit.layer(deadline.layer(ScriptedService::hanging()));
    let mut called = Box::pin(call(&mut service, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(SECOND);
    assert!(poll(called.as_mut()).is_ready());
    assert_eq!(limiter.standing().remaining, 9);
    // One for which no time was left was not begun.
    answer(&mut service, with("grpc-timeout", "0n")).unwrap();
    assert_eq!(limiter.standing().remaining, 9);
}

/// Retries, and places of which another caller takes the only one when the first try has failed.
fn crowded_retries() -> (RetryLayer<impl Classify<Response<String>, Infallible> + Clone>, ConcurrencyLayer) {
    let rules = Retries::new(3, Duration::ZERO, Duration::ZERO).unwrap();
    let budget = SharedBudget::with_clock(RetryBudget::default(), ManualClock::default());
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let (taking, taken) = (places.clone(), Arc::new(Mutex::new(None)));
    let judge = move |result: &Result<Response<String>, Infallible>| {
        taken.lock().unwrap().get_or_insert_with(|| taking.try_enter().unwrap());
        ByStatus.classify(result)
    };
    (RetryLayer::new(Retrier::new(rules, budget)).judging(judge), ConcurrencyLayer::new("places", places))
}

/// The first try was made; only the second one was refused.
#[test]
fn a_call_that_was_tried_before_keeps_its_charge() {
    let limiter = limiter();
    let limit = RateLimitLayer::all("all", limiter.clone());
    let (retry, places) = crowded_retries();
    let inner = ScriptedService::answering([status(503)]);
    let mut service = limit.layer(retry.layer(places.layer(inner.clone())));
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!((refused.status().as_u16(), inner.calls()), (503, 1));
    assert!(Refused::of_response(&refused).is_some(), "the second try was refused");
    assert_eq!(limiter.standing().remaining, 9);
}

/// As above, with a gate in place of the limit.
#[test]
fn a_call_that_was_tried_before_keeps_its_charge_at_a_gate() {
    let all = Policy::new("all", Limit::new(Quota::per_minute(10).gcra().unwrap(), "10/min"));
    let gate = Gate::in_memory(PolicySet::new(vec![all]).unwrap(), 10).unwrap();
    let gate = Arc::new(gate.with_clock(ManualClock::default()));
    let gated = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new());
    let (retry, places) = crowded_retries();
    let inner = ScriptedService::answering([status(503)]);
    let refused = answer(&mut gated.layer(retry.layer(places.layer(inner.clone()))), get()).unwrap();
    assert!(Refused::of_response(&refused).is_some() && inner.calls() == 1);
    assert_eq!(
        gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0].decision.standing.remaining,
        9
    );
}

/// A limit inside the retries charges each try, and gives back the charge of the one that was refused.
#[test]
fn a_limit_of_each_try_gives_back_what_the_second_try_was_charged() {
    let limiter = limiter();
    let limit = RateLimitLayer::all("all", limiter.clone());
    let (retry, places) = crowded_retries();
    let inner = ScriptedService::answering([status(503)]);
    let refused = answer(&mut retry.layer(limit.layer(places.layer(inner.clone()))), get()).unwrap();
    assert!(Refused::of_response(&refused).is_some() && inner.calls() == 1);
    assert_eq!(limiter.standing().remaining, 9);
}

/// What the handler has settled stays settled.
#[test]
fn a_charge_that_was_settled_is_not_given_back_again() {
    let limiter = limiter();
    let handler = tower::service_fn(|request: Request<String>| {
        assert!(request.extensions().get::<Spent>().unwrap().settle(4));
        let response: Result<Response<String>, Infallible> =
            Problems.refuse(Refused::new(RefusalCause::Busy, "within"), None);
        std::future::ready(response)
    });
    let limit = RateLimitLayer::all("all", limiter.clone()).settling();
    assert_eq!(answer(&mut limit.layer(handler), get()).unwrap().status(), 503);
    assert_eq!(limiter.standing().remaining, 6);
}

/// A client that answers, or refuses, calls with boxed errors.
type Client = BoxCloneService<Request<String>, Response<String>, BoxError>;

/// The called service, which answers 200.
fn upstream() -> Client {
    BoxCloneService::new(tower::service_fn(async |_: Request<String>| Ok(Response::default())))
}

/// Clients that refuse every call before it is made, each for another reason. The clock is that of their deadlines.
fn refusing_clients(clock: &ManualClock) -> Vec<(RefusalCause, Client)> {
    let timeouts = Timeouts::new(SECOND, 10 * SECOND).unwrap();
    let deadline = || ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone());
    let breaker = Breaker::new(CircuitBreaker::builder()).unwrap();
    breaker.force(Force::Open, None, "maintenance");
    let open = || BreakerLayer::new("stock", breaker.clone()).answering(Errors);
    let spent = limiter();
    assert!(spent.allow_n(10).unwrap().is_allowed());
    let spent = RateLimitLayer::all("stock", spent);
    vec![
        (
            RefusalCause::NoTimeLeft,
            BoxCloneService::new(ClientStack::new().deadline(deadline()).layer(upstream())),
        ),
        (RefusalCause::NoTimeLeft, BoxCloneService::new(deadline().layer(upstream()))),
        (
            RefusalCause::ForcedOpen,
            BoxCloneService::new(ClientStack::new().breaker(open()).layer(upstream())),
        ),
        (RefusalCause::ForcedOpen, BoxCloneService::new(ClientLayer.layer(open().layer(upstream())))),
        // This one refuses with a response, not with an error.
        (
            RefusalCause::RateLimit,
            BoxCloneService::new(ClientStack::new().rate_limit(spent).layer(upstream())),
        ),
    ]
}

/// A caller with a short deadline had the work of such a service done for nothing, as often as it liked.
#[test]
fn a_service_that_works_and_returns_the_refusal_of_its_client_keeps_the_charge() {
    let clock = ManualClock::default();
    for (cause, client) in refusing_clients(&clock) {
        let worked = Arc::new(Mutex::new(0));
        let works = worked.clone();
        let service = tower::service_fn(move |request: Request<String>| {
            let (client, works) = (client.clone(), works.clone());
            async move {
                *works.lock().unwrap() += 1;
                client.oneshot(request).await
            }
        });
        let limiter = limiter();
        let layer = || RateLimitLayer::all("all", limiter.clone());
        let gate = Policy::new("all", Limit::new(Quota::per_minute(10).gcra().unwrap(), "10/min"));
        let gate = Gate::in_memory(PolicySet::new(vec![gate]).unwrap(), 10).unwrap();
        let gate = Arc::new(gate.with_clock(ManualClock::default()));
        let gated = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new());
        let refusal = |result: Result<Response<String>, BoxError>| match &result {
            Ok(response) => Refused::of_response(response).map(|refused| refused.cause),
            Err(error) => Refused::of_error(error).map(|refused| refused.cause),
        };
        // The time of the carried deadline is over.
        carry(clock.now(), || {
            // Its own deadline would refuse the requests before the service is called.
            let server = |layer| {
                let stack = ServerStack::self_tuning("places").deadline(Identity::new());
                stack.rate_limit(layer).layer(service.clone())
            };
            assert_eq!(refusal(answer(&mut server(layer()), get())), Some(cause));
            assert_eq!(refusal(answer(&mut server(layer().settling()), get())), Some(cause));
            assert_eq!(
                refusal(answer(&mut layer().waiting(SECOND).layer(service.clone()), get())),
                Some(cause)
            );
            assert_eq!(refusal(answer(&mut gated.layer(service.clone()), get())), Some(cause));
        });
        assert_eq!((*worked.lock().unwrap(), limiter.standing().remaining), (4, 7), "{cause}");
        let left = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[0]
            .decision
            .standing
            .remaining;
        assert_eq!(left, 9, "{cause}");
    }
}

/// A client in a task of its own refuses where no code of the server's layers runs.
#[tokio::test]
async fn the_refusal_of_a_client_in_another_task_keeps_the_charge() {
    let clock = ManualClock::default();
    let (_, client) = refusing_clients(&clock).remove(2);
    let service = tower::service_fn(move |request: Request<String>| {
        let client = client.clone();
        async move { tokio::spawn(client.oneshot(request)).await? }
    });
    let limiter = limiter();
    let server = RateLimitLayer::all("all", limiter.clone()).layer(service);
    let refused: BoxError = server.oneshot(get()).await.unwrap_err();
    assert_eq!(Refused::of_error(&refused).map(|refused| refused.cause), Some(RefusalCause::ForcedOpen));
    assert_eq!(limiter.standing().remaining, 9);
}

/// tower's `Buffer` calls the layers inside it in a task of its own, where the mark of a layer outside does not reach.
#[tokio::test]
async fn a_client_layer_inside_a_buffer_marks_what_one_outside_does_not() {
    let breaker = Breaker::new(CircuitBreaker::builder()).unwrap();
    breaker.force(Force::Open, None, "maintenance");
    let open = BreakerLayer::new("stock", breaker).answering(Errors).layer(upstream());
    let inside = tower::buffer::Buffer::new(ClientLayer.layer(open.clone()), 1);
    let outside = ClientLayer.layer(tower::buffer::Buffer::new(open, 1));
    let limiter = limiter();
    let limit = RateLimitLayer::all("all", limiter.clone());
    limit.layer(inside).oneshot(get()).await.unwrap_err();
    assert_eq!(limiter.standing().remaining, 9);
    limit.layer(outside).oneshot(get()).await.unwrap_err();
    assert_eq!(limiter.standing().remaining, 9, "given back, as the documentation of the layer warns");
}

/// Inside a client, its own limit gives back: the try was not sent.
#[test]
fn the_limit_of_a_client_gives_back_what_its_own_layers_refuse() {
    let (clock, limiter) = (ManualClock::default(), limiter());
    let timeouts =
        Timeouts::new(SECOND, 10 * SECOND).unwrap().with_margin(10 * Duration::from_millis(1)).unwrap();
    let stack = ClientStack::new()
        .rate_limit(RateLimitLayer::all("stock", limiter.clone()).answering(Errors))
        .deadline(ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()));
    let mut client = stack.layer(upstream());
    // Time is left for the call, but none for the next service, after the margin.
    let soon = clock.now().after(5 * Duration::from_millis(1));
    let refused: BoxError = carry(soon, || answer(&mut client, get())).unwrap_err();
    assert_eq!(Refused::of_error(&refused).map(|refused| refused.cause), Some(RefusalCause::NoTimeLeft));
    assert_eq!(limiter.standing().remaining, 10);
    answer(&mut client, get()).unwrap();
    assert_eq!(limiter.standing().remaining, 9);

    // The same for single layers inside a `ClientLayer`; without one, the unit of such a try stays spent.
    let deadline = || ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone());
    let limit = RateLimitLayer::all("stock", limiter.clone()).answering(Errors);
    let mut marked = ClientLayer.layer(limit.layer(deadline().layer(upstream())));
    carry(soon, || answer(&mut marked, get())).unwrap_err();
    assert_eq!(limiter.standing().remaining, 9);
    let mut bare = limit.layer(deadline().layer(upstream()));
    carry(soon, || answer(&mut bare, get())).unwrap_err();
    assert_eq!(limiter.standing().remaining, 8);
}
