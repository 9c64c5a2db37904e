use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::deadline::{Timeouts, carried, carry};
use tidegate::{Breaker, Tick};
use tidegate_tower::{
    BreakerLayer, DeadlineLayer, Errors, ForwardDeadlineLayer, Problems, RefusalCause, Refused,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{Finds, ScriptedService, answer, call, get, poll, status, with};

const SECOND: Duration = Duration::from_secs(1);

fn layer(clock: &ManualClock) -> DeadlineLayer {
    DeadlineLayer::within(2 * SECOND, 30 * SECOND).unwrap().with_clock(clock.clone())
}

/// Answers with the carried deadline.
const FINDS: Finds =
    Finds(|| format!("{:?}", carried().map(|until| until.at(&ManualClock::default()).since(Tick::EPOCH))));

#[test]
fn a_request_has_the_time_that_its_caller_gives_it() {
    let mut service = layer(&ManualClock::default()).layer(FINDS);
    for (request, found) in [
        (get(), "Some(2s)"),
        (with("grpc-timeout", "250m"), "Some(250ms)"),
        (with("x-envoy-expected-rq-timeout-ms", "1500"), "Some(1.5s)"),
        (with("grpc-timeout", "2H"), "Some(30s)"),
        (with("grpc-timeout", "soon"), "Some(2s)"),
        (with("grpc-timeout", "1S, 250m,soon"), "Some(250ms)"),
    ] {
        assert_eq!(answer(&mut service, request).unwrap().body(), found);
    }
}

/// A second header of a caller, or of a proxy behind it, cannot lengthen the time.
#[test]
fn of_several_values_the_shortest_time_counts() {
    let mut service = layer(&ManualClock::default()).layer(FINDS);
    for (values, found) in [
        (["250m", "1S"], "Some(250ms)"),
        (["1S", "250m"], "Some(250ms)"),
        (["soon", "250m"], "Some(250ms)"),
        (["soon", "later"], "Some(2s)"),
    ] {
        let mut request = get();
        for value in values {
            request.headers_mut().append("grpc-timeout", value.parse().unwrap());
        }
        assert_eq!(answer(&mut service, request).unwrap().body(), found, "{values:?}");
    }
}

/// An inner layer used to replace the deadline of an outer one by its own default, and clients inside told the next
/// service the longer time.
#[test]
fn of_two_layers_the_earlier_deadline_holds() {
    let clock = ManualClock::default();
    let layer = |secs| DeadlineLayer::within(secs * SECOND, 30 * SECOND).unwrap().with_clock(clock.clone());
    for (outer, inner, request, found) in [
        (1, 9, get(), "Some(1s)"),
        (9, 1, get(), "Some(1s)"),
        (9, 1, with("grpc-timeout", "5S"), "Some(5s)"),
        (9, 1, with("grpc-timeout", "250m"), "Some(250ms)"),
    ] {
        let mut service = layer(outer).layer(layer(inner).layer(FINDS));
        assert_eq!(answer(&mut service, request).unwrap().body(), found, "{outer} around {inner}");
    }
    // The next service is told so: a second, less the margin of the client.
    let told = ScriptedService::default();
    let mut service = layer(1).layer(layer(9).layer(forward(&clock).layer(told.clone())));
    answer(&mut service, get()).unwrap();
    assert_eq!(told.last().headers()["x-envoy-expected-rq-timeout-ms"], "900");
}

#[test]
fn what_cannot_be_done_in_time_is_not_begun() {
    let inner = ScriptedService::default();
    let mut service = layer(&ManualClock::default()).needing(SECOND).unwrap().layer(inner.clone());
    for (timeout, status) in [("0n", 504), ("999m", 504), ("1S", 200)] {
        assert_eq!(
            answer(&mut service, with("grpc-timeout", timeout)).unwrap().status(),
            status,
            "{timeout}"
        );
    }
    assert_eq!(inner.calls(), 1);
}

#[test]
fn a_need_that_no_request_can_meet_is_an_error() {
    let millis = Duration::from_millis;
    let layer = || DeadlineLayer::within(millis(10), millis(10)).unwrap();
    assert!(layer().needing(millis(10)).is_ok());
    let said = "needed time 20ms is above the ceiling, so every request would be refused; lower it, or raise the ceiling";
    assert_eq!(layer().needing(millis(20)).unwrap_err().to_string(), said);
    let timeouts = Timeouts::new(millis(10), millis(10)).unwrap();
    assert_eq!(ForwardDeadlineLayer::new(timeouts).needing(millis(20)).unwrap_err().to_string(), said);
}

#[test]
fn work_that_takes_too_long_is_given_up() {
    let clock = ManualClock::default();
    let mut service = layer(&clock).layer(ScriptedService::hanging());
    let mut called = Box::pin(call(&mut service, with("grpc-timeout", "1S")));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(SECOND);
    let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("its time is up") };
    assert_eq!(refused.status(), 504);
    assert!(
        refused.body().contains(r#""detail":"layer \"deadline\": no answer came in time""#),
        "{}",
        refused.body()
    );
}

fn forward(clock: &ManualClock) -> ForwardDeadlineLayer<Problems> {
    let timeouts = Timeouts::new(2 * SECOND, 30 * SECOND).unwrap().with_margin(SECOND / 10).unwrap();
    ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).answering(Problems)
}

#[test]
fn the_next_service_is_told_what_is_left_less_the_margin() {
    let (clock, inner) = (ManualClock::default(), ScriptedService::default());
    let mut client = forward(&clock).layer(inner.clone());
    let told = |name| inner.last().headers().get(name).map(|value| value.to_str().unwrap().to_owned());

    carry(Tick::from_secs(1), || answer(&mut client, get())).unwrap();
    assert_eq!(told("x-envoy-expected-rq-timeout-ms").as_deref(), Some("900"));
    carry(Tick::from_secs(1), || answer(&mut client, with("content-type", "application/grpc+proto")))
        .unwrap();
    assert_eq!(told("grpc-timeout").as_deref(), Some("900000u"));
    answer(&mut client, get()).unwrap();
    assert_eq!(told("x-envoy-expected-rq-timeout-ms").as_deref(), Some("1900"), "nobody said: the default");
    carry(Tick::from_secs(1), || answer(&mut client, with("x-envoy-expected-rq-timeout-ms", "500"))).unwrap();
    assert_eq!(told("x-envoy-expected-rq-timeout-ms").as_deref(), Some("400"), "less was asked for");
}

/// Envoy overwrites its own header with the timeout of its route.
#[test]
fn the_time_travels_in_a_header_of_ones_choice() {
    let name = || http::HeaderName::from_static("x-time-left-ms");
    let (clock, inner) = (ManualClock::default(), ScriptedService::default());
    let mut client = forward(&clock).in_header(name()).layer(inner.clone());
    let mut request = with("x-envoy-expected-rq-timeout-ms", "100");
    request.headers_mut().insert(name(), "500".parse().unwrap());
    answer(&mut client, request).unwrap();
    assert_eq!(
        inner.last().headers()["x-time-left-ms"],
        "400",
        "the shorter time of the request, less the margin"
    );
    assert_eq!(inner.last().headers()["x-envoy-expected-rq-timeout-ms"], "100", "not ours");
    answer(&mut client, with("content-type", "application/grpc")).unwrap();
    assert!(inner.last().headers().contains_key("grpc-timeout"));

    let mut service = layer(&clock).in_header(name()).layer(FINDS);
    for (header, found) in [("x-time-left-ms", "Some(500ms)"), ("x-envoy-expected-rq-timeout-ms", "Some(2s)")]
    {
        assert_eq!(answer(&mut service, with(header, "500")).unwrap().body(), found, "{header}");
    }
    assert_eq!(answer(&mut service, with("grpc-timeout", "1S")).unwrap().body(), "Some(1s)");
}

#[test]
fn a_call_for_which_no_time_is_left_is_not_made() {
    let (clock, inner) = (ManualClock::default(), ScriptedService::default());
    let mut client = forward(&clock).layer(inner.clone());
    let refused = carry(Tick::from_nanos(100_000_000), || answer(&mut client, get())).unwrap();
    assert_eq!((refused.status().as_u16(), inner.calls()), (504, 0));
}

/// A client that reads "no time is left" may repeat the call, since it was not made. This call was made.
#[test]
fn a_call_that_is_cut_short_is_told_apart_from_one_that_is_not_made() {
    let causes =
        [("999m", Some(RefusalCause::CutShort)), ("50m", Some(RefusalCause::NoTimeLeft)), ("1S", None)];
    for (timeout, cause) in causes {
        let (clock, inner) = (ManualClock::default(), ScriptedService::hanging());
        // The handler passes its request to the client, whose refusal ends at the same tick as the server's own.
        let mut server = layer(&clock).layer(forward(&clock).layer(inner.clone()));
        let mut called = Box::pin(call(&mut server, with("grpc-timeout", timeout)));
        let mut answered = poll(called.as_mut());
        if cause == Some(RefusalCause::NoTimeLeft) {
            assert_eq!(inner.calls(), 0);
        } else {
            assert!(answered.is_pending());
            assert_eq!(inner.calls(), 1);
            clock.advance(2 * SECOND);
            answered = poll(called.as_mut());
        }
        let Poll::Ready(Ok(refused)) = answered else { panic!("its time is up") };
        assert_eq!(refused.status(), 504);
        let refusal = Refused::of_response(&refused).expect("a layer refused");
        assert_eq!(refusal.cause, cause.unwrap_or(RefusalCause::TimedOut), "{timeout}");
    }
}

/// A called service that knows the deadline answers before its client gives up, since it is told less time. Such answers
/// counted as failures of the service, so callers who left little time opened the breaker for everybody.
#[test]
fn a_service_that_says_the_short_time_was_up_did_not_fail() {
    let call = || with("content-type", "application/grpc");
    let late = || [(get(), status(504)), (call(), in_grpc("4"))];
    let other = || [(get(), status(500)), (call(), in_grpc("13")), (call(), in_grpc("14"))];
    // Half of the default is a second.
    for (millis, answers, ignored) in
        [(999, &late()[..], true), (1000, &late(), false), (999, &other(), false)]
    {
        for (request, said) in answers {
            let clock = ManualClock::default();
            let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
            let inner = ScriptedService::answering([said.clone()]);
            let layers = BreakerLayer::new("stock", breaker.clone());
            let mut client = layers.layer(forward(&clock).layer(inner));
            let until = Tick::EPOCH.after(Duration::from_millis(millis));
            let answered = carry(until, || answer(&mut client, request.clone())).unwrap();
            assert_eq!((answered.status(), answered.headers()), (said.status(), said.headers()), "unchanged");
            let cause = Refused::of_response(&answered).map(|refused| refused.cause);
            assert_eq!(cause, ignored.then_some(RefusalCause::CutShort), "{millis} ms, {said:?}");
            let expected = if ignored { "closed" } else { "open" };
            assert_eq!(breaker.state().as_str(), expected, "{millis} ms, {said:?}");
        }
    }
    // Without a carried deadline the service had the default time, or the time that the program itself has written.
    for request in [get(), with("x-envoy-expected-rq-timeout-ms", "500")] {
        let inner = ScriptedService::answering([status(504)]);
        let answered = answer(&mut forward(&ManualClock::default()).layer(inner), request).unwrap();
        assert_eq!(Refused::of_response(&answered), None);
    }
}

fn in_grpc(code: &'static str) -> Response<String> {
    let mut response = Response::default();
    response.headers_mut().insert("grpc-status", code.parse().unwrap());
    response
}

/// A refusal that the service has handed on, of a client of its own, keeps its cause.
#[test]
fn a_refusal_that_an_answer_has_already_is_kept() {
    let mut said = status(504);
    said.extensions_mut().insert(Refused::new(RefusalCause::TimedOut, "further"));
    let mut client = forward(&ManualClock::default()).layer(ScriptedService::answering([said]));
    let answered = carry(Tick::from_nanos(500_000_000), || answer(&mut client, get())).unwrap();
    assert_eq!(&*Refused::of_response(&answered).unwrap().by, "further");
}

#[test]
fn a_client_gets_its_refusals_as_errors() {
    /// A client whose errors are boxed.
    #[derive(Clone)]
    struct Hangs;
    impl Service<Request<String>> for Hangs {
        type Response = Response<String>;
        type Error = Box<dyn std::error::Error + Send + Sync>;
        type Future = std::future::Pending<Result<Self::Response, Self::Error>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<String>) -> Self::Future {
            std::future::pending()
        }
    }
    let clock = ManualClock::default();
    let mut client = forward(&clock).answering(Errors).layer(Hangs);
    let mut called = Box::pin(call(&mut client, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(2 * SECOND);
    let Poll::Ready(Err(error)) = poll(called.as_mut()) else { panic!("its time is up") };
    assert_eq!(*error.downcast::<Refused>().unwrap(), Refused::new(RefusalCause::TimedOut, "deadline"));
}

/// The called service is over its time, and a layer inside has refused the call for a reason of its own: a full queue, say.
#[test]
fn a_refusal_of_a_layer_inside_is_no_timeout() {
    use tidegate::Bulkhead;
    use tidegate_tower::ConcurrencyLayer;

    type Boxed = Box<dyn std::error::Error + Send + Sync>;
    #[derive(Debug, thiserror::Error)]
    #[error("the stock was not asked")]
    struct NotAsked(#[source] Refused);

    let (clock, places) = (ManualClock::default(), Bulkhead::new(1).unwrap().with_room(0));
    let permit = places.try_enter().unwrap();
    let forward = || forward(&clock).answering(Errors);
    let cause = |result: Result<Response<String>, Boxed>| {
        Refused::of_error(&result.unwrap_err()).map(|refused| refused.cause)
    };
    // The layer inside refuses when the told time is over.
    let stock = tower::service_fn(async |_: Request<String>| Ok::<_, Boxed>(Response::new(String::new())));
    let full = ConcurrencyLayer::new("stock", places).answering(Errors).layer(stock);
    let refused = tower::service_fn(|request: Request<String>| {
        clock.advance(2 * SECOND - SECOND / 10);
        full.clone().call(request)
    });
    let result = answer(&mut forward().layer(refused), get());
    assert_eq!(cause(result), Some(RefusalCause::Concurrency(tidegate::bulkhead::NoPlace::Full)));
    // Also in the sources of another error.
    let wrapped = tower::service_fn(async |_: Request<String>| {
        clock.advance(2 * SECOND - SECOND / 10);
        Err::<Response<String>, Boxed>(NotAsked(Refused::new(RefusalCause::Open, "stock")).into())
    });
    assert_eq!(cause(answer(&mut forward().layer(wrapped), get())), Some(RefusalCause::Open));
    // Any other error at that time is the timeout.
    let failed = tower::service_fn(async |_: Request<String>| {
        clock.advance(2 * SECOND - SECOND / 10);
        Err::<Response<String>, Boxed>("the channel is closed".into())
    });
    assert_eq!(cause(answer(&mut forward().layer(failed), get())), Some(RefusalCause::TimedOut));
    drop(permit);
}
