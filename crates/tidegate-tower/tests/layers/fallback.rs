//! The fallback layer: by a key of the request, and with the last good answer of the key.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::AGE;
use http::{Method, Request, Response};
use tidegate::breaker::fallback::LastAnswers;
use tidegate::clock::ManualClock;
use tidegate::observer::{LayerEvent, Observer};
use tidegate::{Limiter, Quota};
use tidegate_tower::parameter::{Keep, LastOfKey};
use tidegate_tower::{Errors, FallbackLayer, RateLimitLayer, RefusalCause, Refused};
use tower_layer::Layer;

use crate::layers::service::{ScriptedService, answer, call, poll, status};

type Boxed = Box<dyn std::error::Error + Send + Sync>;
type Path = fn(&Request<String>) -> String;
type Last = FallbackLayer<LastOfKey<String, &'static str, Path, fn(&'static str) -> Response<String>>>;

const AGE_LIMIT: Duration = Duration::from_secs(300);

fn path(request: &Request<String>) -> String {
    request.uri().path().to_owned()
}

fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

/// An answer that says what is to be kept of it.
fn kept(code: u16, kept: &'static str) -> Response<String> {
    let mut answer = status(code);
    answer.extensions_mut().insert(Keep(kept));
    answer
}

/// A layer that keeps the answers of two paths, and its parts.
fn last() -> (Last, LastAnswers<String, &'static str>, ManualClock) {
    let clock = ManualClock::default();
    let answers = LastAnswers::new(2, AGE_LIMIT).unwrap().with_clock(clock.clone());
    let show = |kept: &'static str| Response::new(kept.to_owned());
    (FallbackLayer::last(answers.clone(), path, show), answers, clock)
}

/// The names of the layers that did something.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    fn on_layer(&self, event: &LayerEvent<'_>) {
        self.0.lock().unwrap().push(format!("{}: {:?}", event.layer, event.did));
    }
}

impl Told {
    fn all(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn the_function_is_given_the_key_of_the_failed_request() {
    let in_place = |path: String, failed: Result<Response<String>, Infallible>| {
        Ok(Response::new(format!("{path} in place of {}", failed?.status().as_u16())))
    };
    let inner = ScriptedService::answering([status(500), status(404), status(503), status(200)]);
    let told = Told::default();
    let mut service = FallbackLayer::each(path, in_place).with_observer(told.clone()).layer(inner);
    let bodies = ["/a", "/b", "/c", "/d"].map(|path| answer(&mut service, get(path)).unwrap().into_body());
    assert_eq!(bodies, ["/a in place of 500", "", "/c in place of 503", ""]);
    assert_eq!(told.all(), ["fallback: FellBack", "fallback: FellBack"]);
}

#[test]
fn a_good_answer_is_shown_for_its_own_key_and_says_that_it_is_a_stand_in() {
    let (layer, answers, clock) = last();
    let told = Told::default();
    let script = [kept(200, "ann's"), kept(201, "bob's"), status(503), status(500), status(502)];
    let mut service = layer.with_observer(told.clone()).layer(ScriptedService::answering(script));
    for path in ["/ann", "/bob"] {
        let real = answer(&mut service, get(path)).unwrap();
        assert!(!real.headers().contains_key("cache-status"));
        assert!(real.extensions().get::<Keep<&str>>().is_none(), "it is the layer's");
    }
    assert!(told.all().is_empty());
    clock.advance(Duration::from_millis(42_900));
    let shown = answer(&mut service, get("/ann")).unwrap();
    assert_eq!((shown.status().as_u16(), shown.body().as_str()), (200, "ann's"));
    assert_eq!(shown.headers()["cache-status"], "tidegate; fwd=stale; fwd-status=503");
    assert_eq!(shown.headers()[AGE], "42");
    assert_eq!(answer(&mut service, get("/bob")).unwrap().body(), "bob's");
    assert_eq!(told.all(), ["fallback: FellBack", "fallback: FellBack"]);
    let failed = answer(&mut service, get("/eve")).unwrap();
    assert_eq!((failed.status().as_u16(), failed.body().as_str()), (502, ""));
    assert!(!failed.headers().contains_key("cache-status"));
    assert!(told.all().is_empty(), "nothing was replaced");
    assert_eq!(answers.held(), 2);
}

#[test]
fn an_answer_that_is_too_old_is_not_shown() {
    let (layer, _, clock) = last();
    let script = [kept(200, "old"), status(503), status(503)];
    let mut service = layer.layer(ScriptedService::answering(script));
    answer(&mut service, get("/")).unwrap();
    clock.advance(AGE_LIMIT);
    assert_eq!(answer(&mut service, get("/")).unwrap().body(), "old");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(answer(&mut service, get("/")).unwrap().status(), 503);
}

#[test]
fn answers_are_kept_for_as_many_keys_as_was_said() {
    let (layer, answers, _) = last();
    let script = (0..3).map(|_| kept(200, "kept")).chain((0..3).map(|_| status(503)));
    let mut service = layer.layer(ScriptedService::answering(script));
    for path in ["/1", "/2", "/3"] {
        answer(&mut service, get(path)).unwrap();
    }
    let codes = ["/1", "/2", "/3"].map(|path| answer(&mut service, get(path)).unwrap().status().as_u16());
    assert_eq!((codes, answers.held()), ([503, 200, 200], 2));
}

/// A page that was kept for a caller must not hide from it that it is logged out or asks too often.
#[test]
fn what_the_caller_did_wrong_is_neither_replaced_nor_kept() {
    let (layer, answers, _) = last();
    let wrong = [401, 403, 404, 429];
    let script =
        wrong.map(|code| kept(code, "wrong")).into_iter().chain([kept(503, "failed"), kept(200, "good")]);
    let mut service = layer.layer(ScriptedService::answering(script.chain(wrong.map(status))));
    for code in wrong.into_iter().chain([503]) {
        assert_eq!(answer(&mut service, get("/")).unwrap().status(), code);
        assert_eq!(answers.held(), 0, "{code}");
    }
    answer(&mut service, get("/")).unwrap();
    for code in wrong {
        assert_eq!(answer(&mut service, get("/")).unwrap().status(), code);
    }
    assert_eq!(answers.last("/").unwrap().0, "good");
}

#[test]
fn a_refusal_by_a_rate_limit_is_not_replaced_also_where_it_is_an_error() {
    let (layer, answers, _) = last();
    answers.keep("/".into(), "kept");
    let limit = || Limiter::new(Quota::per_minute(1)).unwrap().with_clock(ManualClock::default());
    let spent = || {
        let limit = limit();
        assert!(limit.allow().is_allowed());
        RateLimitLayer::all("all", limit)
    };
    let mut server = layer.clone().layer(spent().layer(ScriptedService::default()));
    assert_eq!(answer(&mut server, get("/")).unwrap().status(), 429);

    // With a status of its own; a policy that refuses with 503 does so for the sake of the service.
    let refused = |cause| {
        let mut refused = status(503);
        refused.extensions_mut().insert(Refused::new(cause, "all"));
        refused
    };
    let script = [refused(RefusalCause::RateLimit), refused(RefusalCause::Policy)];
    let mut server = layer.clone().layer(ScriptedService::answering(script));
    let bodies = [(); 2].map(|()| answer(&mut server, get("/")).unwrap().into_body());
    assert_eq!(bodies, ["", "kept"]);

    let there = tower::service_fn(async |_: Request<String>| Err::<Response<String>, Boxed>("gone".into()));
    let mut client = layer.clone().layer(spent().answering(Errors).layer(there));
    let refused = answer(&mut client, get("/")).unwrap_err();
    assert_eq!(Refused::of_error(&refused).unwrap().cause, RefusalCause::RateLimit);
    let shown = answer(&mut layer.layer(there), get("/")).unwrap();
    assert_eq!(shown.body(), "kept", "another error is replaced");
    assert_eq!(shown.headers()["cache-status"], "tidegate; fwd=stale; detail=error");
}

/// A page that is shown for a failed order would say that the order was taken.
#[test]
fn a_request_that_changes_something_is_neither_answered_nor_kept() {
    let (layer, answers, _) = last();
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let request = || Request::builder().method(&method).uri("/orders").body(String::new()).unwrap();
        answers.forget("/orders");
        let script = [kept(200, "changed"), kept(200, "read"), status(503), status(503)];
        let mut service = layer.layer(ScriptedService::answering(script));
        answer(&mut service, request()).unwrap();
        assert_eq!(answers.held(), 0, "{method}");
        answer(&mut service, get("/orders")).unwrap();
        assert_eq!(answer(&mut service, request()).unwrap().status(), 503, "{method}");
        let head = Request::head("/orders").body(String::new()).unwrap();
        assert_eq!(answer(&mut service, head).unwrap().status(), 200);
    }
}

#[test]
fn a_future_that_is_dropped_keeps_nothing() {
    let (layer, answers, _) = last();
    let told = Told::default();
    let slow = tower::service_fn(async |_: Request<String>| {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(kept(200, "good"))
    });
    let mut service = layer.with_observer(told.clone()).layer(slow);
    let mut dropped = Box::pin(call(&mut service, get("/")));
    assert!(poll(dropped.as_mut()).is_pending());
    drop(dropped);
    assert_eq!((answers.held(), told.all().len()), (0, 0));
    let mut polled = pin!(call(&mut service, get("/")));
    assert!(poll(polled.as_mut()).is_pending() && poll(polled.as_mut()).is_ready());
    assert_eq!(answers.held(), 1);
}

#[tokio::test]
async fn a_call_with_a_key_may_be_made_in_a_task() {
    let each = FallbackLayer::each(path, |_: String, failed: Result<Response<String>, Infallible>| failed);
    let mut service = each.layer(ScriptedService::default());
    let answered = tokio::spawn(call(&mut service, get("/"))).await.unwrap();
    assert_eq!(answered.unwrap().status(), 200);
    let mut service = last().0.layer(ScriptedService::answering([kept(201, "good")]));
    assert_eq!(tokio::spawn(call(&mut service, get("/"))).await.unwrap().unwrap().status(), 201);
}
