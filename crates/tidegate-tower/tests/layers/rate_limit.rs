use std::time::Duration;

use http::{HeaderValue, Request};
use tidegate::clock::ManualClock;
use tidegate::retries::{Retrier, Retries, RetryBudget, SharedBudget};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota, Tick, deadline};
use tidegate_tower::{ClientStack, RateLimitLayer, RefusalCause, Refused, RetryLayer, Spent};
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{ScriptedService, answer, call, get, poll, status, with};

fn limiter(quota: impl TryInto<Quota, Error: std::fmt::Debug>) -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    let quota = quota.try_into().unwrap();
    (Limiter::new(quota).unwrap().with_clock(clock.clone()), clock)
}

/// A key that is read by a function is not copied.
#[test]
fn a_key_may_borrow_from_the_request() {
    fn key(request: &Request<String>) -> &str {
        request.body()
    }
    let limiter = KeyedLimiter::new(Quota::per_day(1), 10).unwrap();
    let mut service = RateLimitLayer::each("per-body", limiter, key).layer(ScriptedService::default());
    let mut ask = |body: &str| answer(&mut service, Request::new(body.to_owned())).unwrap().status().as_u16();
    assert_eq!(["ann", "bob", "ann"].map(&mut ask), [200, 200, 429]);
}

/// tower's own layer cannot be cloned, and axum makes a service per connection: each would have a limit of its own.
#[test]
fn all_services_of_a_layer_share_its_limit() {
    let layer = RateLimitLayer::all("all", limiter(Quota::per_minute(3)).0);
    let inner = ScriptedService::default();
    let (mut one, mut two) = (layer.layer(inner.clone()), layer.clone().layer(inner.clone()));
    let mut three = one.clone();
    let statuses =
        [&mut one, &mut two, &mut three].map(|service| answer(service, get()).unwrap().status().as_u16());
    assert_eq!(statuses, [200, 200, 200]);
    assert_eq!(answer(&mut one, get()).unwrap().status(), 429);
    assert_eq!(inner.calls(), 3, "a refused request does not reach the service");
}

#[test]
fn those_who_pass_and_those_who_do_not_are_told_how_the_limit_stands() {
    let mut service =
        RateLimitLayer::all("pages", limiter(Quota::per_minute(1)).0).layer(ScriptedService::default());
    let passed = answer(&mut service, get()).unwrap();
    assert_eq!(passed.headers()["ratelimit-policy"], r#""pages";q=1;w=60"#);
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!(refused.headers()["retry-after"], "60");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert!(refused.body().contains(r#""violated-policies":["pages"]"#), "{}", refused.body());
}

#[test]
fn each_key_has_a_limit_of_its_own() {
    let limiter = KeyedLimiter::new(Quota::per_minute(1), 1000).unwrap().with_clock(ManualClock::default());
    let key = |request: &Request<String>| {
        request.headers().get("x-api-key").map_or(vec![], |key| key.as_bytes().to_vec())
    };
    let mut service = RateLimitLayer::each("per-key", limiter, key).layer(ScriptedService::default());
    let mut statuses = Vec::new();
    for request in
        [with("x-api-key", "ann"), with("x-api-key", "bob"), with("x-api-key", "ann"), get(), get()]
    {
        statuses.push(answer(&mut service, request).unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 200, 429], "who sends no key shares one");
}

#[test]
fn a_request_is_held_back_where_that_makes_it_pass() {
    let (limiter, clock) = limiter(Quota::per_second(1).burst(1));
    let inner = ScriptedService::default();
    let mut service =
        RateLimitLayer::all("all", limiter.clone()).waiting(Duration::from_secs(2)).layer(inner.clone());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 200);

    let mut held = Box::pin(call(&mut service, get()));
    let mut gone = Box::pin(call(&mut service, get()));
    assert!(poll(held.as_mut()).is_pending() && poll(gone.as_mut()).is_pending());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 429, "three seconds are too long");
    drop(gone);
    clock.advance(Duration::from_secs(1));
    assert!(poll(held.as_mut()).is_ready());
    assert_eq!(inner.calls(), 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.standing().remaining, 1, "whoever went away before its turn spent nothing");
}

/// A wait beyond the deadline that the task carries would end in a request that nobody waits for.
#[test]
fn a_request_that_cannot_pass_before_its_deadline_is_refused_at_once() {
    let (limiter, _) = limiter(Quota::per_second(1).burst(1));
    let inner = ScriptedService::default();
    let mut service =
        RateLimitLayer::all("all", limiter.clone()).waiting(Duration::from_secs(2)).layer(inner.clone());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 200);

    let until = |millis: u64| Tick::from_nanos(millis * 1_000_000);
    let refused = deadline::carry(until(999), || answer(&mut service, get()).unwrap());
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    let mut held = Box::pin(deadline::carry(until(1000), || call(&mut service, get())));
    assert!(poll(held.as_mut()).is_pending(), "its turn comes in time");
    assert_eq!(inner.calls(), 1);
}

#[test]
fn to_ask_whether_it_is_ready_takes_nothing() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let mut service = RateLimitLayer::all("all", limiter.clone()).layer(ScriptedService::default());
    for _ in 0..10 {
        assert!(
            Service::<Request<String>>::poll_ready(
                &mut service,
                &mut std::task::Context::from_waker(std::task::Waker::noop())
            )
            .is_ready()
        );
    }
    drop(service.clone());
    assert_eq!(limiter.standing().remaining, 1);
}

/// A call of a language model is charged with an estimate and settled with what it used, a debt included.
#[test]
fn an_estimate_is_settled_with_the_real_cost() {
    let (tokens, _) = limiter(Quota::per_minute(1000));
    let estimate = |request: &Request<String>| Cost::try_from(request.body().len()).unwrap_or(Cost::ONE);
    let inner = ScriptedService::default();
    let mut service =
        RateLimitLayer::all("tokens", tokens.clone()).costing(estimate).settling().layer(inner.clone());
    let ask = |length: usize| Request::new("x".repeat(length));

    assert_eq!(answer(&mut service, ask(800)).unwrap().status(), 200);
    assert_eq!(tokens.standing().remaining, 200);
    let spent = inner.last().extensions().get::<Spent>().expect("those who pass have one").clone();
    assert!(spent.settle(300) && !spent.clone().settle(0), "settled once");
    assert_eq!(tokens.standing().remaining, 700);

    assert_eq!(answer(&mut service, ask(500)).unwrap().status(), 200);
    assert!(inner.last().extensions().get::<Spent>().unwrap().settle(900));
    assert_eq!((tokens.standing().remaining, tokens.standing().debt), (0, 200));
    assert_eq!(answer(&mut service, ask(1)).unwrap().status(), 429, "the debt is waited off");
}

/// Around a client the real cost is known where the call is made. The charge was in the request, out of reach.
#[test]
fn a_program_settles_what_its_call_was_charged() {
    let (tokens, _) = limiter(Quota::per_minute(1000));
    let layer = |inner: &ScriptedService| {
        let limit =
            RateLimitLayer::all("tokens", tokens.clone()).costing(|_: &Request<String>| COST).settling();
        ClientStack::new().retry(retries()).rate_limit(limit).layer(inner.clone())
    };
    let ask = |spent: &Spent| {
        let mut request = get();
        request.extensions_mut().insert(spent.clone());
        request
    };
    let (spent, inner) = (Spent::new(), ScriptedService::default());
    assert!(!spent.settle(1), "nothing is charged yet");
    assert_eq!(answer(&mut layer(&inner), ask(&spent)).unwrap().status(), 200);
    assert!(spent.settle(40) && !spent.settle(0), "settled once");
    assert_eq!(tokens.standing().remaining, 960);

    // Two tries are charged: the first as estimated.
    let (spent, inner) = (Spent::default(), ScriptedService::answering([status(500)]));
    assert_eq!(answer(&mut layer(&inner), ask(&spent)).unwrap().status(), 200);
    assert_eq!((inner.calls(), tokens.standing().remaining), (2, 560));
    assert!(spent.settle(50));
    assert_eq!(tokens.standing().remaining, 710);

    // A refused call has nothing to settle.
    assert!(tokens.allow_n(700).unwrap().is_allowed());
    let spent = Spent::new();
    assert_eq!(answer(&mut layer(&inner), ask(&spent)).unwrap().status(), 429);
    assert!(!spent.settle(1));
}

/// A service that hands its own request on to a client keeps the charge of its request apart from that of the call.
#[test]
fn a_charge_of_a_server_is_not_that_of_its_client() {
    let (asked, _) = limiter(Quota::per_minute(1000));
    let (made, _) = limiter(Quota::per_minute(1000));
    let settling = |limiter: &Limiter| {
        RateLimitLayer::all("tokens", limiter.clone()).costing(|_: &Request<String>| COST).settling()
    };
    let inner = ScriptedService::default();
    let client = settling(&made).layer(inner.clone());
    let handler = tower::service_fn(move |request: Request<String>| {
        let spent = request.extensions().get::<Spent>().unwrap().clone();
        let called = client.clone().call(request);
        assert!(spent.settle(1));
        called
    });
    assert_eq!(answer(&mut settling(&asked).layer(handler), get()).unwrap().status(), 200);
    assert_eq!((asked.standing().remaining, made.standing().remaining), (999, 800));
}

const COST: Cost = Cost::new(200).unwrap();

fn retries() -> RetryLayer {
    let budget = SharedBudget::with_clock(RetryBudget::default(), ManualClock::default());
    RetryLayer::new(Retrier::new(Retries::new(2, Duration::ZERO, Duration::ZERO).unwrap(), budget))
}

/// An outer limit that let a request pass used to replace the headers of the inner limit that refused it, so a refused
/// caller read that 998 requests were left.
#[test]
fn headers_show_the_limits_of_all_layers_and_first_the_one_that_refuses() {
    use tidegate::{Bulkhead, KeyedLimiter};
    use tidegate_tower::ConcurrencyLayer;

    let clock = ManualClock::default();
    let all = Limiter::new(Quota::per_second(1000)).unwrap().with_clock(clock.clone());
    let each = KeyedLimiter::new(Quota::per_minute(1), 10).unwrap().with_clock(clock);
    let outer = RateLimitLayer::all("all", all);
    let key = |_: &Request<String>| "key";
    let mut service = outer.layer(RateLimitLayer::each("each", each, key).layer(ScriptedService::default()));
    let passed = answer(&mut service, get()).unwrap();
    assert_eq!(passed.headers()["ratelimit-policy"], r#""each";q=1;w=60, "all";q=1000;w=1"#);
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!(refused.status(), 429);
    let list = refused.headers()["ratelimit"].to_str().unwrap();
    assert!(list.starts_with(r#""each";r=0;t=60, "all";r="#), "{list}");

    // The places of an inner layer, and what the service itself says.
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let _held = places.try_enter().unwrap();
    let busy = ConcurrencyLayer::new("places", places).layer(ScriptedService::default());
    let refused = answer(&mut outer.layer(busy), get()).unwrap();
    let list = refused.headers()["ratelimit"].to_str().unwrap();
    assert!(refused.status() == 503 && list.starts_with(r#""places";r=0, "all";r="#), "{list}");
    let own = http::Response::builder().header("ratelimit", r#""upstream";r=3"#).body(String::new()).unwrap();
    let passed = answer(&mut outer.layer(ScriptedService::answering([own])), get()).unwrap();
    let list = passed.headers()["ratelimit"].to_str().unwrap();
    assert!(list.starts_with(r#""upstream";r=3, "all";r="#), "{list}");
}

/// A key that is absent or cannot be read would otherwise be a way around the limit, or a limit shared with strangers.
#[test]
fn a_request_whose_key_cannot_be_read_is_refused() {
    fn key(request: &Request<String>) -> Option<&str> {
        request.headers().get("x-api-key")?.to_str().ok()
    }
    let limiter = || KeyedLimiter::new(Quota::per_day(1), 10).unwrap();
    let inner = ScriptedService::default();
    let layer = || RateLimitLayer::each_key_read("per-key", limiter(), key);
    for layer in
        [layer(), layer().keeping_charges(), layer().waiting(Duration::from_secs(1)), layer().settling()]
    {
        let mut service = layer.layer(inner.clone());
        let before = inner.calls();
        let refused = answer(&mut service, get()).unwrap();
        assert_eq!(refused.status(), 400);
        assert_eq!(Refused::of_response(&refused).unwrap().cause, RefusalCause::NoKey);
        assert!(
            refused.body().contains("the request lacks what the limit counts it by"),
            "{}",
            refused.body()
        );
        assert!(refused.body().contains(r#""retry":"never""#), "{}", refused.body());
        assert!(!refused.headers().contains_key("retry-after"));
        let mut unreadable = get();
        unreadable.headers_mut().insert("x-api-key", HeaderValue::from_bytes(b"k\xff").unwrap());
        assert_eq!(answer(&mut service, unreadable).unwrap().status(), 400);
        assert_eq!(inner.calls(), before, "neither reaches the service");
        assert_eq!(answer(&mut service, with("x-api-key", "ann")).unwrap().status(), 200);
        assert_eq!(answer(&mut service, with("x-api-key", "ann")).unwrap().status(), 429);
    }
}
