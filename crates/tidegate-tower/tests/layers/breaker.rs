use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use tidegate::breaker::{Change, CircuitBreaker, KeyedBreaker};
use tidegate::bulkhead::Enter;
use tidegate::clock::ManualClock;
use tidegate::limiter::Retry;
use tidegate::observer::{CallDid, LayerDid, LayerEvent, Observer, PlaceDid};
use tidegate::{Breaker, Bulkhead, Limiter, Outcome, Quota, Tick};
use tidegate_tower::{BreakerLayer, ConcurrencyLayer, DeadlineLayer, RateLimitLayer, RefusalCause, Refused};
use tower_layer::Layer;

use crate::layers::service::{ScriptedService, answer, call, get, poll, status, with};

pub(crate) fn breaker(failures: u32) -> (Breaker, ManualClock) {
    let clock = ManualClock::default();
    let law = CircuitBreaker::builder().consecutive(failures).probes(1).jitter(0.0);
    (Breaker::new(law).unwrap().with_clock(clock.clone()), clock)
}

#[test]
fn a_service_that_fails_is_left_alone_and_tried_again() {
    let (breaker, clock) = breaker(2);
    let inner = ScriptedService::answering([status(500), status(503)]);
    let mut service = BreakerLayer::new("payments", breaker.clone()).layer(inner.clone());
    let statuses = [(); 3].map(|()| answer(&mut service, get()).unwrap().status().as_u16());
    assert_eq!((statuses, inner.calls()), ([500, 503, 503], 2));
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!(refused.headers()["retry-after"], "5");
    assert_eq!(refused.headers()["access-control-expose-headers"], "Retry-After", "for scripts of a browser");
    assert_eq!(
        refused.body(),
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
            r#""title":"Temporary reduced capacity","status":503,"#,
            r#""detail":"layer \"payments\": the breaker is open; try again in 5 s","#,
            r#""retry":"after","retry_after_ms":5000}"#,
        )
    );
    let why = Refused::of_response(&refused).unwrap();
    assert_eq!((why.cause, &*why.by), (RefusalCause::Open, "payments"));
    assert_eq!(why.retry, Retry::After(Duration::from_secs(5)));

    clock.advance(Duration::from_secs(5));
    assert_eq!(answer(&mut service, get()).unwrap().status(), 200, "the probe");
    assert_eq!(inner.calls(), 3);
}

#[test]
fn a_probe_that_is_dropped_leaves_its_place_to_the_next() {
    let (breaker, clock) = breaker(1);
    breaker.try_enter().unwrap().leave(Outcome::Failure);
    clock.advance(Duration::from_secs(5));
    let layer = BreakerLayer::new("payments", breaker.clone());
    let mut hanging = layer.layer(ScriptedService::hanging());
    let mut probe = Box::pin(call(&mut hanging, get()));
    assert!(poll(probe.as_mut()).is_pending());
    let mut service = layer.layer(ScriptedService::default());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503, "one probe at once");
    drop(probe);
    assert_eq!(breaker.state().as_str(), "half-open");
    assert_eq!(answer(&mut service, get()).unwrap().status(), 200);
}

#[test]
fn each_key_has_a_breaker_of_its_own() {
    let hosts = KeyedBreaker::new(CircuitBreaker::builder().consecutive(1), 100)
        .unwrap()
        .with_clock(ManualClock::default());
    let host = |request: &Request<String>| request.headers()["host"].as_bytes().to_vec();
    let mut service = BreakerLayer::each("hosts", hosts, host)
        .layer(ScriptedService::answering([status(500), status(200)]));
    let statuses =
        ["a", "a", "b"].map(|name| answer(&mut service, with("host", name)).unwrap().status().as_u16());
    assert_eq!(statuses, [500, 503, 200]);
}

/// In a stack the breaker is outside the concurrency limit. If it counted refusals by a full queue, a busy hour of this
/// program would look like an outage of the service.
#[test]
fn a_refusal_of_our_own_says_nothing_of_the_service() {
    let (breaker, _) = breaker(1);
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let _permit = places.try_enter().unwrap();
    let mut service = BreakerLayer::new("payments", breaker.clone())
        .layer(ConcurrencyLayer::new("calls", places).layer(ScriptedService::default()));
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503);
    assert_eq!(breaker.state().as_str(), "closed");
}

/// A deadline outside drops the future within. If that did not count as a failure, the breaker would never open for a
/// service that hangs. The border is half of the default.
#[test]
fn a_service_that_hangs_until_our_deadline_has_failed_and_one_whose_caller_was_impatient_has_not() {
    let second = Duration::from_secs(1);
    for (timeout, state) in
        [("10S", "open"), ("2S", "open"), ("1999m", "open"), ("1S", "open"), ("999m", "closed")]
    {
        let (breaker, _) = breaker(1);
        let clock = ManualClock::default();
        let deadline = DeadlineLayer::within(2 * second, 30 * second).unwrap().with_clock(clock.clone());
        let mut service =
            deadline.layer(BreakerLayer::new("payments", breaker.clone()).layer(ScriptedService::hanging()));
        let mut called = Box::pin(call(&mut service, with("grpc-timeout", timeout)));
        assert!(poll(called.as_mut()).is_pending());
        clock.advance(10 * second);
        let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("its time is up") };
        assert_eq!((refused.status().as_u16(), breaker.state().as_str()), (504, state), "{timeout}");
    }
}

/// Records what the observer is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Heard {
    fn on_change(&self, change: &Change) {
        self.0.lock().unwrap().push(format!("{} to {}", change.from.as_str(), change.to.as_str()));
    }

    fn on_layer(&self, event: &LayerEvent<'_>) {
        let did = match event.did {
            LayerDid::Refused { cause, .. } => format!("refused, {cause}"),
            LayerDid::Ended { outcome } => format!("ended, {outcome:?}"),
            other => format!("{other:?}"),
        };
        let did = event.error.map_or(did.clone(), |error| format!("{did}, {error}"));
        self.0.lock().unwrap().push(format!("{}: {did}", event.layer));
    }
}

#[test]
fn one_observer_is_told_of_the_layers_and_of_the_breaker() {
    let heard = Heard::default();
    let (breaker, _) = breaker(1);
    let layer =
        BreakerLayer::new("payments", breaker.with_observer(heard.clone())).with_observer(heard.clone());
    let places = ConcurrencyLayer::new("places", Bulkhead::new(1).unwrap()).with_observer(heard.clone());
    let mut service = layer.layer(places.layer(ScriptedService::answering([status(500)])));
    let _: [Response<String>; 2] = [(); 2].map(|()| answer(&mut service, get()).unwrap());
    assert_eq!(
        heard.take(),
        [
            "places: ended, Failure",
            "closed to open",
            "payments: ended, Failure",
            "payments: refused, the breaker is open"
        ]
    );
    let mut hanging = places.layer(ScriptedService::hanging());
    drop(call(&mut hanging, get()));
    assert_eq!(heard.take(), ["places: ended, Ignored"]);
}

/// Counts refusals and ends: those of layers, and those of the bulkheads and breakers within.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<Mutex<[u32; 4]>>);

impl Observer for Counts {
    fn on_layer(&self, event: &LayerEvent<'_>) {
        self.0.lock().unwrap()[usize::from(!matches!(event.did, LayerDid::Refused { .. }))] += 1;
    }

    fn on_place(&self, did: PlaceDid) {
        match did {
            PlaceDid::Refused { .. } => self.0.lock().unwrap()[2] += 1,
            PlaceDid::Left { .. } => self.0.lock().unwrap()[3] += 1,
            _ => {}
        }
    }

    fn on_call(&self, did: &CallDid) {
        self.0.lock().unwrap()[2 + usize::from(!matches!(did, CallDid::Refused { .. }))] += 1;
    }
}

/// So one of the two is to be counted.
#[test]
fn what_a_layer_tells_is_what_its_bulkhead_and_its_breaker_tell() {
    let counts = Counts::default();
    let (breaker, _) = breaker(1);
    let places = Bulkhead::new(1).unwrap().with_observer(counts.clone());
    let full = places.clone();
    let layer =
        BreakerLayer::new("payments", breaker.with_observer(counts.clone())).with_observer(counts.clone());
    let places = ConcurrencyLayer::new("places", places).with_observer(counts.clone());
    let mut service = layer.layer(places.layer(ScriptedService::answering([status(500)])));
    let _: [Response<String>; 2] = [(); 2].map(|()| answer(&mut service, get()).unwrap());
    assert_eq!(
        *counts.0.lock().unwrap(),
        [1, 2, 1, 2],
        "the place and the call end, and the breaker refuses"
    );
    let places = places.entering(|entry: Enter, _: &_| entry.within(Duration::ZERO));
    let mut service = places.layer(ScriptedService::answering([status(200)]));
    let permit = full.try_enter().unwrap();
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503);
    assert_eq!(*counts.0.lock().unwrap(), [2, 2, 2, 2]);
    drop(permit);
    assert_eq!(*counts.0.lock().unwrap(), [2, 2, 2, 3], "work past the layer is told by the bulkhead only");
}

/// A caller that gives a server less than half of the usual time must not open the breakers of the server's own
/// clients.
#[test]
fn a_hurried_caller_opens_no_breaker() {
    use tidegate::deadline::Timeouts;
    use tidegate_tower::{ClientStack, ForwardDeadlineLayer, Problems};

    let second = Duration::from_secs(1);
    for (timeout, is_open) in [("100m", false), ("499m", false), ("500m", true), ("2S", true)] {
        let (breaker, clock) = breaker(1);
        let timeouts = Timeouts::new(second, 10 * second).unwrap();
        let client = ClientStack::new()
            .breaker(BreakerLayer::new("store", breaker.clone()))
            .deadline(ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).answering(Problems));
        // The server's handler passes its request to the client.
        let mut server = DeadlineLayer::new(timeouts)
            .with_clock(clock.clone())
            .layer(client.layer(ScriptedService::hanging()));
        let mut called = Box::pin(call(&mut server, with("grpc-timeout", timeout)));
        assert!(poll(called.as_mut()).is_pending());
        clock.advance(2 * second);
        assert!(poll(called.as_mut()).is_ready());
        assert_eq!(breaker.state().as_str() == "open", is_open, "{timeout}");
    }
}

/// A service that was called late in the work of a server had little time, however patient the server's own caller is.
#[test]
fn a_service_that_was_called_with_little_time_left_opens_no_breaker() {
    use tidegate::deadline::{self, Timeouts};
    use tidegate_tower::{ClientStack, ForwardDeadlineLayer, Problems};

    for (left, cause) in [(499, RefusalCause::CutShort), (500, RefusalCause::TimedOut)] {
        let (breaker, clock) = breaker(1);
        let timeouts = Timeouts::new(Duration::from_secs(1), Duration::from_secs(10)).unwrap();
        let mut client = ClientStack::new()
            .breaker(BreakerLayer::new("store", breaker.clone()))
            .deadline(ForwardDeadlineLayer::new(timeouts).with_clock(clock.clone()).answering(Problems))
            .layer(ScriptedService::hanging());
        let until = Tick::from_nanos(left * 1_000_000);
        let mut called = Box::pin(deadline::carry(until, || call(&mut client, get())));
        assert!(poll(called.as_mut()).is_pending());
        clock.advance(Duration::from_secs(1));
        let Poll::Ready(Ok(answer)) = poll(called.as_mut()) else { panic!("its time is up") };
        assert_eq!(Refused::of_response(&answer).unwrap().cause, cause, "{left} ms");
        assert_eq!(breaker.state().as_str() == "open", cause == RefusalCause::TimedOut, "{left} ms");
    }
}

/// A call that is given up while it waits for its turn here was never made, so it counts for nothing. The places and
/// the rate limit have a clock of their own, which stands still, so only the deadline of the server ends the wait.
#[test]
fn a_call_that_is_given_up_while_it_waits_for_its_turn_says_nothing_of_the_service() {
    let second = Duration::from_secs(1);
    let places = Bulkhead::new(1).unwrap().with_clock(ManualClock::default());
    let _permit = places.try_enter().unwrap();
    let limiter = Limiter::new(Quota::per_second(1)).unwrap().with_clock(ManualClock::default());
    assert!(limiter.allow().is_allowed());
    let (breaker, clock) = breaker(1);
    let layer = BreakerLayer::new("store", breaker.clone());
    let in_line = layer.layer(ConcurrencyLayer::new("places", places).layer(ScriptedService::default()));
    let held = RateLimitLayer::all("rate", limiter).waiting(second);
    let held = layer.layer(held.layer(ScriptedService::default()));
    let deadline = DeadlineLayer::within(2 * second, 2 * second).unwrap().with_clock(clock.clone());
    let (mut in_line, mut held) = (deadline.layer(in_line), deadline.layer(held));
    let mut calls = (Box::pin(call(&mut in_line, get())), Box::pin(call(&mut held, get())));
    assert!(poll(calls.0.as_mut()).is_pending() && poll(calls.1.as_mut()).is_pending());
    clock.advance(2 * second);
    assert!(poll(calls.0.as_mut()).is_ready() && poll(calls.1.as_mut()).is_ready());
    assert_eq!(breaker.state().as_str(), "closed");

    // A call that is made beside one that waits counts as before.
    let handler = tower::service_fn(move |_: Request<String>| {
        let (mut in_line, mut made) = (in_line.clone(), layer.layer(ScriptedService::hanging()));
        async move {
            let (answer, _) = tokio::join!(call(&mut in_line, get()), call(&mut made, get()));
            answer
        }
    });
    let mut server = deadline.layer(handler);
    let mut called = Box::pin(call(&mut server, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(2 * second);
    assert!(poll(called.as_mut()).is_ready());
    assert_eq!(breaker.state().as_str(), "open");
}

/// A call that waits for its turn at our own rate limit, or in our own queue, used to count as slow, and the breaker of a
/// healthy service opened.
#[test]
fn waits_for_a_turn_of_our_own_are_no_slowness_of_the_service() {
    use tidegate_tower::ClientStack;

    let second = Duration::from_secs(1);
    let clock = ManualClock::default();
    let law = || CircuitBreaker::builder().slow_calls(second, 0.8).min_calls(5);
    let breaker = Breaker::new(law()).unwrap().with_clock(clock.clone());
    let hosts = KeyedBreaker::new(law(), 10).unwrap().with_clock(clock.clone());
    let host = |_: &Request<String>| "host";
    let limiter = Limiter::new(Quota::per_second(1).burst(1)).unwrap().with_clock(clock.clone());
    let places = Bulkhead::new(1).unwrap().with_clock(clock.clone());
    let held = places.try_enter().unwrap();
    let stack = ClientStack::new()
        .breaker(BreakerLayer::new("stock", breaker.clone()))
        .rate_limit(RateLimitLayer::all("rate", limiter).waiting(60 * second))
        .concurrency(ConcurrencyLayer::new("places", places));
    let mut client =
        BreakerLayer::each("hosts", hosts.clone(), host).layer(stack.layer(ScriptedService::default()));
    let mut calls: Vec<_> = (0..20).map(|_| Box::pin(call(&mut client, get()))).collect();
    for _ in 0..20 {
        calls.retain_mut(|call| poll(call.as_mut()).is_pending());
        clock.advance(second);
    }
    drop(held);
    calls.retain_mut(|call| poll(call.as_mut()).is_pending());
    calls.retain_mut(|call| poll(call.as_mut()).is_pending());
    assert!(calls.len() <= 1, "{}", calls.len());
    assert_eq!((breaker.state().as_str(), hosts.state("host").as_str()), ("closed", "closed"));

    // A service that is slow by itself opens it, also if its calls waited before.
    let breaker = Breaker::new(law()).unwrap().with_clock(clock.clone());
    let mut hanging: Vec<_> = (0..5)
        .map(|_| {
            let stack = ClientStack::new()
                .breaker(BreakerLayer::new("stock", breaker.clone()))
                .rate_limit(RateLimitLayer::all("rate", fast(&clock)).waiting(60 * second));
            let slow = tower::service_fn(|_: Request<String>| async {
                tokio::task::yield_now().await;
                Ok::<_, std::convert::Infallible>(status(200))
            });
            Box::pin(call(&mut stack.layer(slow), get()))
        })
        .collect();
    for _ in 0..4 {
        hanging.retain_mut(|call| poll(call.as_mut()).is_pending());
        clock.advance(2 * second);
    }
    assert_eq!(breaker.state().as_str(), "open");
}

/// A limit whose next unit is there after a second.
fn fast(clock: &ManualClock) -> Limiter {
    let limiter = Limiter::new(Quota::per_second(1).burst(1)).unwrap().with_clock(clock.clone());
    assert!(limiter.admit());
    limiter
}
